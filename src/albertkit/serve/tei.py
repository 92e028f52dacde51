"""The endpoints of Hugging Face's text-embeddings-inference (TEI).

In: requests in TEI's format. Out: responses in TEI's format. Unknown fields are ignored, as in TEI. Unlike TEI, a
long text is read in windows unless `truncate` is set, and `rerank` works with any model.
"""

from __future__ import annotations

from typing import Annotated, Any, TypedDict, cast

import numpy as np
from msgspec import Meta, Struct, ValidationError, convert
from msgspec.structs import asdict

from albertkit import __version__
from albertkit.search.index_records import check_queries
from albertkit.serve.inference import TOKEN_CHARACTERS, TOKENIZER_THREADS, RequestContext
from albertkit.serve.request_texts import as_texts, as_texts_or_tokens
from albertkit.serve.response_size import PREDICTION_BYTES, TOKEN_BYTES, label_bytes, text_bytes, vector_bytes
from albertkit.serve.schemas import (
    DTYPES,
    Depth,
    Dimensions,
    HttpError,
    IdsOrMany,
    Layer,
    Normalize,
    OutputDtype,
    Pooling,
    PromptName,
    Served,
    Table,
    Texts,
    TextsOrPairs,
    TextsOrTokens,
    TokenItem,
    Vector,
    validation_error,
)
from albertkit.serve.served_models import ServedModel
from albertkit.tasks.classify import ClassifyTask
from albertkit.tasks.examples import TextExample

POSITIVE_LABELS = ("1", "yes", "true", "entailment", "positive")  # the class that means "relevant" of two
RawScores = Annotated[bool, Meta(description="Return logits instead of probabilities.")]


class EmbedRequest(Struct, kw_only=True):
    """Sentence vectors. The fields from `model` on are not TEI's."""

    inputs: TextsOrTokens
    normalize: Normalize = None
    truncate: Annotated[bool | None, Meta(description="Truncate long texts instead of reading windows.")] = None
    prompt_name: PromptName = None
    dimensions: Dimensions = None
    model: Served = None
    depth: Depth = None
    layer: Layer = None
    pooling: Pooling = None
    output_dtype: OutputDtype = "float"


class EmbedAllRequest(Struct, kw_only=True):
    """Token vectors. The fields from `model` on are not TEI's."""

    inputs: TextsOrTokens
    truncate: Annotated[bool | None, Meta(description="Truncate long texts; otherwise they are an error.")] = None
    prompt_name: PromptName = None
    model: Served = None
    depth: Depth = None
    layer: Layer = None


class RootRequest(Struct, kw_only=True):
    """TEI's root: vectors, or classes if the first served model is a classifier."""

    inputs: Annotated[
        Any, Meta(description="As for /embed or /predict.", extra_json_schema={"type": ["string", "array"]})
    ]
    normalize: bool | None = None
    truncate: bool | None = None


class RerankRequest(Struct, kw_only=True):
    """Texts to rank for a query: by a model fine-tuned on pairs, else by the cosine of vectors."""

    query: str
    texts: Annotated[list[str], Meta(min_length=1, description="Texts to rank.")]
    raw_scores: RawScores = False
    return_text: Annotated[bool, Meta(description="Return the texts too.")] = False
    model: Served = None


class RankItem(TypedDict, total=False):
    """A text's index in the request, its relevance, and on request the text."""

    index: int
    score: float
    text: str


class PredictRequest(Struct, kw_only=True):
    """Texts or pairs to classify."""

    inputs: TextsOrPairs
    raw_scores: RawScores = False
    model: Served = None


class LabelScore(TypedDict):
    """A class and its score."""

    label: str
    score: float


class TokenizeRequest(Struct, kw_only=True):
    """Texts to tokenize."""

    inputs: Texts
    add_special_tokens: Annotated[bool, Meta(description="Add [CLS] and [SEP].")] = True
    model: Served = None


class DecodeRequest(Struct, kw_only=True):
    """Token ids to decode."""

    ids: IdsOrMany
    skip_special_tokens: Annotated[bool, Meta(description="Omit [CLS], [SEP] and [PAD].")] = True
    model: Served = None


class SimilarityInputs(Struct, kw_only=True):
    """A text, and others to compare it with."""

    source_sentence: str
    sentences: Annotated[list[str], Meta(min_length=1)]


class SimilarityRequest(Struct, kw_only=True):
    """Cosines of a text with others."""

    inputs: SimilarityInputs
    model: Served = None


async def embed(context: RequestContext, body: EmbedRequest) -> list[Vector]:
    """Sentence vectors."""
    model = context.choose_model(body.model, "embed")
    check_prompt(model, body.prompt_name)
    options = model.albert.embed_options(
        pooling=body.pooling,
        layer=body.layer,
        depth=body.depth,
        dim=body.dimensions,
        normalize=body.normalize,
        long_texts="truncate" if body.truncate else "split",
        prompt=body.prompt_name,
        dtype=DTYPES[body.output_dtype],
    )
    texts = as_texts_or_tokens(body.inputs, "inputs")
    context.foresee_response(vector_bytes(len(texts), options.dim or model.albert.dim), "Send fewer texts.", memory=1)
    vectors = await context.embed(model, texts, options)
    return list(np.ascontiguousarray(vectors))


async def embed_all(context: RequestContext, body: EmbedAllRequest) -> list[Table]:
    """The vector of each token, special tokens included, in the order of /tokenize."""
    model = context.choose_model(body.model, "embed")
    check_prompt(model, body.prompt_name)
    options = model.albert.embed_options(
        layer=body.layer,
        depth=body.depth,
        long_texts="truncate" if body.truncate else "split",
        prompt=body.prompt_name,
    )
    return await context.embed_tokens(model, as_texts_or_tokens(body.inputs, "inputs"), options)


def check_prompt(model: ServedModel, name: str | None) -> None:
    """Raise if a prompt is not one of the model's."""
    prompts = model.albert.metadata.prompts
    if name is not None and name not in prompts:
        names = ", ".join(prompts) or "none"
        raise HttpError(422, f"prompt {name!r} is unknown; the model has {names}", param="prompt_name")


async def similarity(context: RequestContext, body: SimilarityRequest) -> list[float]:
    """Cosines of a text with others."""
    model = context.choose_model(body.model, "embed")
    texts = [body.inputs.source_sentence, *body.inputs.sentences]
    vectors = await context.embed_to_compare(model, texts, model.albert.embed_options(normalize=True))
    return list((vectors[1:] @ vectors[0]).tolist())


async def rerank(context: RequestContext, body: RerankRequest) -> list[RankItem]:
    """Texts by their relevance for a query, the best first."""
    model = context.choose_model(body.model, "rerank")
    size = len(body.texts) * PREDICTION_BYTES + (text_bytes(body.texts) if body.return_text else 0)
    context.foresee_response(size, "Send fewer texts.")
    scores = await relevance_scores(context, model, body.query, body.texts, body.raw_scores)
    items: list[RankItem] = []
    for index in np.argsort(-scores, kind="stable").tolist():
        item: RankItem = {"index": index, "score": float(scores[index])}
        if body.return_text:
            item["text"] = body.texts[index]
        items.append(item)
    return items


async def relevance_scores(
    context: RequestContext, model: ServedModel, query: str, texts: list[str], is_raw: bool = False
) -> np.ndarray:
    """The relevance (texts,) for a query: by a model fine-tuned on pairs, else the cosine of vectors."""
    check_queries([query])
    reads_pairs = "classify" in model.endpoints and model.albert.metadata.details.get("pairs")
    task = model.albert.task if reads_pairs else None
    if not isinstance(task, ClassifyTask) or (task.kind != "regression" and len(task.labels) != 2):
        return await context.query_cosines(model, query, texts)
    rows, _ = await context.predict_scores(model, [TextExample(query, text) for text in texts], "classify")
    positive = [i for i, label in enumerate(task.labels) if label.lower() in POSITIVE_LABELS]
    column = 0 if task.kind == "regression" else (positive or [1])[0]
    scores: np.ndarray = class_scores(task, rows, is_raw)[:, column]
    return scores


async def predict(context: RequestContext, body: PredictRequest) -> list[LabelScore | list[LabelScore]]:
    """Classes, the most likely first: a list for one text or pair, a list of lists for several."""
    model = context.choose_model(body.model, "predict")
    examples, is_list = as_pairs(body.inputs)
    task = model.albert.task
    assert isinstance(task, ClassifyTask), "only classifiers have this endpoint"
    labels = ("value",) if task.kind == "regression" else task.labels
    context.foresee_response(label_bytes(len(examples), labels), "Send fewer texts.")
    rows, _ = await context.predict_scores(model, examples, "classify")
    ranked: list[list[LabelScore]] = [
        [{"label": labels[i], "score": float(row[i])} for i in np.argsort(-row, kind="stable")]
        for row in class_scores(task, rows, body.raw_scores)
    ]
    return [*ranked] if is_list else [*ranked[0]]


def class_scores(task: ClassifyTask, rows: list[np.ndarray], is_raw: bool) -> np.ndarray:
    """The scores of a head (texts, classes) as they are, or as the values of a regression or probabilities."""
    scores = np.stack(rows).astype(np.float64)
    if is_raw:
        return scores
    return task.mean + task.std * scores if task.kind == "regression" else task.probabilities(scores)


def as_pairs(value: str | list[str | list[str]]) -> tuple[list[TextExample], bool]:
    """Examples, and whether the value is a list of them: "a", ["a", "b"] (a pair), or [["a"], ["a", "b"]]."""
    is_list = isinstance(value, list) and isinstance(value[0], list)
    rows = value if is_list else [value if isinstance(value, list) else [value]]
    for parts in rows:
        if isinstance(parts, str) or len(parts) > 2 or not all(isinstance(part, str) for part in parts):
            rule = "a text, a pair [text, text], or a list of [text] and [text, text]"
            raise HttpError(422, f"inputs must be {rule}", param="inputs")
    return [TextExample(*cast(list[str], parts)) for parts in rows], is_list


async def tokenize(context: RequestContext, body: TokenizeRequest) -> list[list[TokenItem]]:
    """The tokens of texts."""
    model = context.choose_model(body.model, "tokenize")
    texts = as_texts(body.inputs)
    context.count_texts(texts)
    foreseen = sum(map(len, texts)) // TOKEN_CHARACTERS * TOKEN_BYTES
    context.foresee_response(foreseen, "Send fewer or shorter texts.")

    def tokens_of(part: list[str], start: int) -> list[list[TokenItem]]:
        return [token_items(model, text, add_specials=body.add_special_tokens) for text in part]

    tokens: list[list[TokenItem]] = []
    async for part in context.tokenize(tokens_of, texts):
        tokens += part
        context.tokens += sum(map(len, part))
        context.foresee_response(max(0, context.tokens * TOKEN_BYTES - context.response_bytes), "Send fewer texts.")
    return tokens


def token_items(
    model: ServedModel, text: str, pair: str | None = None, add_specials: bool = True, recognize_mask: bool = False
) -> list[TokenItem]:
    """The tokens of a text with the characters they cover."""
    tokenizer = model.albert.tokenizer
    encoding = tokenizer.encode(text, pair, add_specials=add_specials, recognize_mask=recognize_mask)
    rows = zip(encoding.ids, tokenizer.tokens(encoding.ids), encoding.specials, encoding.offsets, strict=True)
    return [
        TokenItem(i, token, special, None if special else start, None if special else stop)
        for i, token, special, (start, stop) in rows
    ]


async def decode(context: RequestContext, body: DecodeRequest) -> list[str]:
    """The texts of token ids."""
    model = context.choose_model(body.model, "tokenize")
    token_ids = cast(list[list[int]], as_texts_or_tokens([*body.ids], "ids"))
    context.count_texts(token_ids)
    tokens = sum(map(len, token_ids))
    context.check_tokens(tokens)
    context.foresee_response(tokens * TOKEN_CHARACTERS, "Send fewer ids.")
    tokenizer = model.albert.tokenizer
    return await context.run_tokenizer(lambda: [tokenizer.decode(ids, body.skip_special_tokens) for ids in token_ids])


async def info(context: RequestContext, body: None) -> dict[str, Any]:
    """The first served model and the limits, in TEI's format."""
    model, settings = next(iter(context.service.models)), context.settings
    albert = model.albert
    model_type: dict[str, Any] = {"embedding": {"pooling": albert.metadata.pooling}}
    if "classify" in model.endpoints:
        names = {str(i): label for i, label in enumerate(albert.metadata.labels)}
        model_type = {"classifier": {"id2label": names, "label2id": {label: int(i) for i, label in names.items()}}}
    return {
        "model_id": model.name,
        "model_sha": albert.name,
        "model_dtype": model.info.weights,
        "model_type": model_type,
        "max_concurrent_requests": settings.max_connections,
        "max_input_length": albert.max_tokens,
        "max_batch_tokens": settings.token_budget,
        "max_batch_requests": None,
        "max_client_batch_size": settings.max_texts,
        "auto_truncate": False,
        "tokenization_workers": TOKENIZER_THREADS,
        "version": __version__,
    }


async def root(context: RequestContext, body: RootRequest) -> list[Any]:
    """TEI's root: classes from a classifier, else vectors."""
    is_classifier = "predict" in next(iter(context.service.models)).endpoints
    request: type[Struct] = PredictRequest if is_classifier else EmbedRequest
    try:
        converted: Any = convert(asdict(body), request)
    except ValidationError as error:
        raise validation_error(error, asdict(body), request) from None
    return await (predict if is_classifier else embed)(context, converted)
