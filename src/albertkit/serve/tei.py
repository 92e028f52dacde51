"""The endpoints of Hugging Face's text-embeddings-inference (TEI), so that its clients work.

In: requests in its shapes. Out: answers in its shapes. Before this file: `work.py` computes; after it: `app.py`. As there, fields
that are not known are passed over; unlike there, a long text is read in windows unless `truncate` is set, and `rerank` works with any
model.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import numpy as np
from msgspec import Meta, Struct

from albertkit import __version__
from albertkit.serve.http_error import HttpError
from albertkit.serve.inference import CUTTERS, RequestContext, Service, texts_of, texts_or_tokens
from albertkit.serve.schemas import (
    NUMBERS,
    ONE_OR_MANY,
    Depth,
    Dimensions,
    IdsOrMany,
    Pooling,
    Served,
    Texts,
    TextsOrPairs,
    TextsOrTokens,
    TokenItem,
)
from albertkit.serve.served_models import ServedModel
from albertkit.tasks.examples import TextExample

YES = ("1", "yes", "true", "entailment", "positive")  # classes that mean "fits", for models of two classes


class EmbedRequest(Struct, kw_only=True):
    """Sentence vectors. Fields from `model` on are ours."""

    inputs: TextsOrTokens
    normalize: bool | None = None
    truncate: Annotated[bool | None, Meta(description="Cut long texts instead of reading them in windows.")] = None
    prompt_name: Annotated[str | None, Meta(description="One of the model's prompts.")] = None
    dimensions: Dimensions = None
    model: Served = None
    depth: Depth = None
    layer: Annotated[int | None, Meta(description="Hidden state to use: 0 the embeddings, -1 the last.")] = None
    pooling: Pooling = None


class RootRequest(Struct, kw_only=True):
    """What TEI takes at its root: inputs for vectors, or for classes where the first served model is made for them."""

    inputs: Annotated[Any, Meta(description="As for /embed or /predict.", extra_json_schema=ONE_OR_MANY)]
    normalize: bool | None = None
    truncate: bool | None = None


class RerankRequest(Struct, kw_only=True):
    """Texts by how well they fit a query: by a model that was fine-tuned on pairs, else by the cosine of vectors."""

    query: str
    texts: Annotated[list[str], Meta(min_length=1)]
    raw_scores: bool = False
    return_text: bool = False
    truncate: bool | None = None
    model: Served = None


class OptionalText(TypedDict, total=False):
    """The text, if it was asked for."""

    text: str


class RankItem(OptionalText):
    """A text's place in the request, and how well it fits."""

    index: int
    score: float


class PredictRequest(Struct, kw_only=True):
    """Classes of texts or pairs."""

    inputs: TextsOrPairs
    raw_scores: bool = False
    truncate: bool | None = None
    model: Served = None


PREDICTION = {
    "type": "object",
    "properties": {"label": {"type": "string"}, "score": {"type": "number"}},
    "required": ["label", "score"],
}
PREDICTIONS = {"type": "array", "items": PREDICTION}
ONE_OR_MANY_PREDICTIONS = {"anyOf": [PREDICTIONS, {"type": "array", "items": PREDICTIONS}]}
Predictions = Annotated[Any, Meta(extra_json_schema=ONE_OR_MANY_PREDICTIONS)]
RootResponse = Annotated[
    Any, Meta(extra_json_schema={"anyOf": [{"type": "array", "items": NUMBERS}, ONE_OR_MANY_PREDICTIONS]})
]


class TokenizeRequest(Struct, kw_only=True):
    """Pieces of texts."""

    inputs: Texts
    add_special_tokens: bool = True
    model: Served = None


class DecodeRequest(Struct, kw_only=True):
    """Texts of token ids."""

    ids: IdsOrMany
    skip_special_tokens: bool = True
    model: Served = None


class SimilarityInputs(Struct, kw_only=True):
    """A text, and others to compare it with."""

    source_sentence: str
    sentences: Annotated[list[str], Meta(min_length=1)]


class SimilarityRequest(Struct, kw_only=True):
    """Cosines of a text with others."""

    inputs: SimilarityInputs
    model: Served = None


class InfoResponse(TypedDict):
    """The first served model and the limits, in text-embeddings-inference's words."""

    model_id: str
    model_sha: str
    model_dtype: str
    model_type: dict[str, Any]
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str


async def embed(service: Service, context: RequestContext, body: EmbedRequest) -> list[np.ndarray]:
    """Sentence vectors."""
    model = service.pick(context, body.model, "embed")
    prompts = model.albert.meta.prompts
    if body.prompt_name is not None and body.prompt_name not in prompts:
        known = ", ".join(prompts) or "none"
        raise HttpError(422, f"the model has no prompt {body.prompt_name!r}; it has: {known}", name="prompt_name")
    options = model.albert.embed_options(
        pooling=body.pooling,
        layer=body.layer,
        depth=body.depth,
        dim=body.dimensions,
        normalize=body.normalize,
        long_texts="truncate" if body.truncate else "split",
        prompt=body.prompt_name,
    )
    vectors = await service.vectors(context, model, texts_or_tokens(body.inputs, "inputs"), options)
    return list(np.ascontiguousarray(vectors, np.float32))


async def similarity(service: Service, context: RequestContext, body: SimilarityRequest) -> list[float]:
    """Cosines of a text with others."""
    model = service.pick(context, body.model, "embed")
    options = model.albert.embed_options(normalize=True)
    vectors = await service.vectors(context, model, [body.inputs.source_sentence, *body.inputs.sentences], options)
    found: list[float] = (vectors[1:] @ vectors[0]).tolist()
    return found


async def rerank(service: Service, context: RequestContext, body: RerankRequest) -> list[dict[str, Any]]:
    """Texts in the order in which they fit a query, the best first."""
    model = service.pick(context, body.model, "rerank")
    if reads_pairs(model):
        rows = await service.scores(context, model, [TextExample(body.query, text) for text in body.texts], "classify")
        scores = fitting(model, np.stack(rows).astype(np.float64), body.raw_scores)
    else:
        scores = await service.fitting(context, model, body.query, body.texts)
    order = np.argsort(-scores, kind="stable").tolist()
    return [
        {"index": i, "score": float(scores[i])} | ({"text": body.texts[i]} if body.return_text else {}) for i in order
    ]


def reads_pairs(model: ServedModel) -> bool:
    """Whether a model scores pairs: made for classes, with a value or two classes."""
    albert = model.albert
    return "classify" in model.can and (albert.task.kind == "regression" or len(albert.task.labels) == 2)


def fitting(model: ServedModel, rows: np.ndarray, raw: bool) -> np.ndarray:
    """(texts, classes) scores → how well each fits: the value, or the probability of the class that means yes."""
    task = model.albert.task
    if task.kind == "regression":
        found: np.ndarray = rows[:, 0] if raw else task.mean + task.std * rows[:, 0]
        return found
    yes = next((i for i, label in enumerate(task.labels) if label.lower() in YES), 1)
    chosen: np.ndarray = (rows if raw else task.probabilities(rows))[:, yes]
    return chosen


async def predict(service: Service, context: RequestContext, body: PredictRequest) -> list[Any]:
    """Classes, the likeliest first: a list for one text or pair, a list of lists for several."""
    model = service.pick(context, body.model, "predict")
    examples, many = pairs_of(body.inputs)
    task = model.albert.task
    rows = np.stack(await service.scores(context, model, examples, "classify")).astype(np.float64)
    if task.kind == "regression":
        labels: tuple[str, ...] = ("value",)
        scores = rows if body.raw_scores else task.mean + task.std * rows
    else:
        labels, scores = task.labels, rows if body.raw_scores else task.probabilities(rows)
    found = [[{"label": labels[i], "score": float(row[i])} for i in np.argsort(-row, kind="stable")] for row in scores]
    return found if many else found[0]


def pairs_of(value: Any) -> tuple[list[TextExample], bool]:
    """Texts or pairs, and whether a list of them was given: "a", ["a", "b"] (a pair), or [["a"], ["a", "b"]]."""
    many = isinstance(value, list) and bool(value) and isinstance(value[0], list)
    found = []
    for one in value if many else [value]:
        parts = [one] if isinstance(one, str) and not many else one
        if not isinstance(parts, list) or len(parts) not in (1, 2) or not all(isinstance(p, str) for p in parts):
            rule = "a text, a pair [text, text], or a list of [text] and [text, text]"
            raise HttpError(422, f"inputs must be {rule}", name="inputs")
        found.append(TextExample(*parts))
    return found, many


async def tokenize(service: Service, context: RequestContext, body: TokenizeRequest) -> list[list[TokenItem]]:
    """The tokens of texts."""
    model = service.pick(context, body.model, "tokenize")
    texts = texts_of(body.inputs, "inputs")
    service.count(context, texts)
    found = await service.cut(lambda: [tokens_of(model, text, body.add_special_tokens) for text in texts])
    context.tokens = sum(map(len, found))
    return found


def tokens_of(model: ServedModel, text: str, specials: bool = True, **settings: Any) -> list[TokenItem]:
    """The tokens of a text with the characters they cover."""
    tokenizer = model.albert.tokenizer
    encoding = tokenizer.encode(text, add_specials=specials, **settings)
    rows = zip(encoding.ids, tokenizer.tokens(encoding.ids), encoding.specials, encoding.offsets, strict=True)
    return [
        TokenItem(i, token, special, None if special else a, None if special else b)
        for i, token, special, (a, b) in rows
    ]


async def decode(service: Service, context: RequestContext, body: DecodeRequest) -> list[str]:
    """The texts of token ids, as far as ids tell."""
    model = service.pick(context, body.model, "tokenize")
    many = texts_or_tokens(body.ids, "ids")
    if many and isinstance(many[0], str):
        raise HttpError(422, "ids must be token ids of a text, or a list of such", name="ids")
    service.count(context, many)
    tokenizer = model.albert.tokenizer
    return await service.cut(lambda: [tokenizer.decode(ids, body.skip_special_tokens) for ids in many])


async def info(service: Service, context: RequestContext, body: None) -> dict[str, Any]:
    """The first served model and the limits."""
    model, settings = next(iter(service.models)), service.settings
    albert = model.albert
    kind: dict[str, Any] = {"embedding": {"pooling": albert.meta.pooling}}
    if "classify" in model.can:
        names = {str(i): label for i, label in enumerate(albert.meta.labels)}
        kind = {"classifier": {"id2label": names, "label2id": {label: int(i) for i, label in names.items()}}}
    return {
        "model_id": model.name,
        "model_sha": albert.name,
        "model_dtype": model.facts()["weights"],
        "model_type": kind,
        "max_concurrent_requests": settings.max_connections,
        "max_input_length": albert.max_tokens,
        "max_batch_tokens": settings.token_budget,
        "max_batch_requests": None,
        "max_client_batch_size": settings.max_texts,
        "auto_truncate": False,
        "tokenization_workers": CUTTERS,
        "version": __version__,
    }


async def root(service: Service, context: RequestContext, body: RootRequest) -> Any:
    """What TEI answers at its root: classes from a model made for them, else vectors."""
    if "predict" in next(iter(service.models)).can:
        return await predict(service, context, PredictRequest(inputs=body.inputs))
    return await embed(
        service, context, EmbedRequest(inputs=body.inputs, normalize=body.normalize, truncate=body.truncate)
    )
