"""Texts to sentence vectors, for `Albert`, the server, bulk processing and training.

In: a `RuntimeModel`, texts and `EmbedOptions`. Out: vectors, one per text, in order. Before this file:
`runtime_model.py`, `early_exit.py`. After it: `albert.py`; the server calls `split_texts`, `pool` and
`combine_windows` around its own queue. A text longer than the position table is split into overlapping windows. Its
vector is the mean of theirs, weighted by tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from albertkit.errors import AlbertkitError, check_choice, check_finite, check_keys, check_type, type_with_article
from albertkit.input_warnings import InputProblems, collect_problems, find_problems, report_problems
from albertkit.runtime.batching import token_batches
from albertkit.runtime.early_exit import EarlyExitRunner, ExitRule, ReadOutputs
from albertkit.runtime.engine import StaticEngine
from albertkit.runtime.packed_texts import OutputRequest, PackedTexts
from albertkit.runtime.prompts import prompt_text
from albertkit.runtime.runtime_model import Depth, RuntimeModel, check_trained_depth, has_trained_vectors
from albertkit.runtime.shared_map import SPACES, SharedMap, shared_map
from albertkit.vector_dtype import check_dtype, convert_vectors

if TYPE_CHECKING:
    from typing_extensions import Unpack

POOLINGS = ("mean", "cls", "pooler", "max")
LONG_TEXTS = ("split", "truncate", "error")
MAX_CHUNK_TEXTS = 4096  # most texts sorted by length together; bounds memory
DEVICE_CHUNK_TEXTS = 16_384  # of each chunk for a device, which needs large groups of similar length
FIRST_CHUNK_TEXTS = 64  # the first chunks are small, so that first results appear early
CHUNK_CHARACTERS = 4_000_000
TOKEN_VECTOR_TEXTS = 64  # texts whose token vectors are computed together; bounds memory
MAX_CHARACTERS = 1_000_000  # of one text, unless it is truncated
OVERLAP = 64  # tokens shared by neighbouring windows of a long text, at most half of a window


class EmbedKeywords(TypedDict, total=False):
    """The keywords of `Albert.embed`; each may be omitted."""

    pooling: str | None
    """mean, cls, pooler or max. Default: the model's."""
    layer: int | None
    """Hidden state to pool: 0 the embeddings, -1 the last."""
    depth: Depth | None
    """Layers to apply; "full" for all. Default: the model's."""
    dim: int | None
    """Keep only the first numbers of each vector."""
    normalize: bool | None
    """Scale vectors to length 1. Default: the model's."""
    long_texts: str
    """How to treat texts longer than the position table: split (default), truncate or error."""
    prompt: str | None
    """A prefix of each text, or the name of one of the model's prompts."""
    space: str | None
    """own (default), or shared: the space of English and Chinese vectors, for `small` and `small-zh`."""
    dtype: str | None
    """float32 (default), float16, int8 (127 times each number) or binary (bits, packed into uint8)."""


@dataclass(frozen=True)
class EmbedOptions:
    """How texts become vectors: pooling, depth, length, dimension, normalisation and prompt.

    >>> from albertkit import EmbedOptions
    >>> EmbedOptions(pooling="mean", depth=12, long_texts="truncate", dim=64, normalize=True, prompt="").dim
    64
    """

    pooling: str
    depth: int
    long_texts: str
    dim: int | None
    normalize: bool
    prompt: str
    space: str = "own"
    dtype: str = "float32"
    shared: SharedMap | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class TokenWindows:
    """Texts as windows of token ids with special tokens, and the number of windows of each text."""

    ids: list[list[int]]
    counts: list[int]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each window."""
        return [len(window) for window in self.ids]

    @property
    def by_text(self) -> list[list[int]]:
        """The windows of each text, by their index in `ids`."""
        return [list(range(start, end)) for start, end in pairwise(np.cumsum([0, *self.counts]).tolist())]


@dataclass(frozen=True)
class TokenVectors:
    """The tokens of one text, with one vector each.

    >>> from albertkit import Albert
    >>> result = Albert().token_vectors("a cat sat")
    >>> result.tokens, result.vectors.shape
    (['[CLS]', '▁a', '▁cat', '▁sat', '[SEP]'], (5, 384))
    """

    vectors: np.ndarray
    """(tokens, H)"""
    tokens: list[str]
    offsets: list[tuple[int, int]]
    """Characters of the text that each token covers; (0, 0) at special tokens."""
    ids: list[int]


def embed_options(model: RuntimeModel, **keywords: Unpack[EmbedKeywords]) -> EmbedOptions:
    """The keywords of `embed`, checked."""
    check_keys("option", keywords, EmbedKeywords.__annotations__)
    pooling = keywords.get("pooling") or model.metadata.pooling
    layer, dim, long_texts = keywords.get("layer"), keywords.get("dim"), keywords.get("long_texts", "split")
    normalize, prompt = keywords.get("normalize"), prompt_text(keywords.get("prompt"), model.metadata.prompts)
    check_choice("pooling", pooling, POOLINGS)
    check_choice("long_texts", long_texts, LONG_TEXTS)
    space = keywords.get("space") or "own"
    check_choice("space", space, SPACES)
    if space == "shared" and (pooling != "mean" or layer is not None):
        raise AlbertkitError("space='shared' is for the model's own vectors: mean pooling, no layer. Omit the others.")
    dim = int(dim) if isinstance(dim, np.integer) else dim
    if dim is not None and (type(dim) is not int or not 1 <= dim <= model.dim):
        raise AlbertkitError(f"dim={dim!r} is not available. Pass a whole number from 1 to {model.dim}.")
    if model.config.options.static and pooling != "mean":
        raise AlbertkitError(f"pooling={pooling!r} is not available: a static model has only mean. Omit pooling.")
    check_type("normalize", normalize, (bool, type(None)), "True or False")
    normalize = model.metadata.normalize if normalize is None else normalize
    dtype = keywords.get("dtype") or "float32"
    check_dtype(dtype, normalize)
    layers = model.layers_to_apply(keywords.get("depth"), layer, pooling)
    if layer is None:
        has_layer = layers <= model.config.num_hidden_layers
        remedy = f"; layer={layers} gives the hidden states there" if has_layer else ""
        check_trained_depth(model.config, model.metadata, layers, remedy)
    return EmbedOptions(
        pooling,
        layers,
        long_texts,
        dim,
        normalize,
        prompt,
        space,
        dtype,
        shared_map(model.name.partition("-")[0]) if space == "shared" else None,
    )


# Texts to vectors ------------------------------------------------------------------------------------------------


def embed_texts(
    model: RuntimeModel,
    texts: Iterable[str],
    options: EmbedOptions,
    rule: ExitRule | None = None,
    on_exit: Callable[[int], None] | None = None,
) -> Iterator[np.ndarray]:
    """The vector of each text (dim,), in order and in bounded memory.

    rule: for early exit. on_exit: called with the depth at which each text exited.
    """
    start, reported = 0, InputProblems()
    sizes = () if model.packed_outputs is None else (DEVICE_CHUNK_TEXTS, DEVICE_CHUNK_TEXTS)
    for chunk in text_chunks(texts, *sizes):
        with collect_problems() as problems:
            windows = split_texts(model, chunk, options, start)
        report_problems(problems[0], reported)
        reported += problems[0]
        if rule is None:
            yield from embed_windows(model, windows, options)
        else:
            confidence = VectorConvergence(windows.by_text, windows.lengths, options.pooling)
            stats = EarlyExitRunner(model, rule, pooled_reader(model, options.pooling), confidence).run(windows.ids)
            if on_exit is not None:
                for depth in stats.depths.tolist():
                    on_exit(depth)
            yield from combine_windows(np.stack(stats.outputs), windows, options)
        start += len(chunk)


def embed_windows(model: RuntimeModel, windows: TokenWindows, options: EmbedOptions) -> np.ndarray:
    """The vector of each text (texts, dim)."""
    return combine_windows(window_vectors(model, windows.ids, options.depth, options.pooling), windows, options)


def window_vectors(model: RuntimeModel, ids: Sequence[Sequence[int]], depth: int, pooling: str) -> np.ndarray:
    """Pooled hidden states (windows, H), not normalized."""
    if isinstance(model.engine, StaticEngine):
        return model.engine.means(ids)
    if model.packed_outputs is not None:
        return model.packed_outputs(PackedTexts.of(ids), depth, [OutputRequest(pooling)])[0]
    vectors = np.empty((len(ids), model.dim), np.float32)
    for batch in token_batches(ids, token_budget=model.token_budget):
        vectors[batch.order] = pool(model, model.engine.run(batch, depth), batch.lengths, pooling)
    return vectors


def pool(model: RuntimeModel, hidden: np.ndarray, lengths: np.ndarray, pooling: str) -> np.ndarray:
    """(texts, length, H) → (texts, H)."""
    if pooling == "cls":
        return hidden[:, 0]
    if pooling == "pooler":
        first = hidden[:, 0]
        is_finite = np.isfinite(first).all(axis=1, keepdims=True)  # tanh would hide infinity
        return np.where(is_finite, model.engine.pooler(first), np.float32(np.nan))
    inside = np.arange(hidden.shape[1])[None, :, None] < lengths[:, None, None]
    if pooling == "max":
        return np.asarray(np.where(inside, hidden, -np.inf).max(axis=1))
    return np.asarray(np.where(inside, hidden, 0).sum(axis=1) / lengths[:, None])


def pooled_reader(model: RuntimeModel, pooling: str) -> ReadOutputs:
    """`pool`, for reading a model at several depths."""
    return lambda hidden, lengths: list(pool(model, hidden, lengths, pooling))


def combine_windows(vectors: np.ndarray, windows: TokenWindows, options: EmbedOptions) -> np.ndarray:
    """The vector of each text (texts, dim) from those of its windows (windows, H)."""
    if len(windows.counts) < len(vectors):
        lengths = windows.lengths
        vectors = np.stack([window_mean(vectors, lengths, indices, options.pooling) for indices in windows.by_text])
    if options.shared is not None:
        vectors = options.shared.apply(unit_length(vectors))
    cut = vectors[:, : options.dim]
    result = unit_length(cut) if options.normalize else cut
    check_finite("vectors", result)
    return convert_vectors(result, options.dtype)


def window_mean(
    vectors: Sequence[np.ndarray] | np.ndarray, lengths: Sequence[int], windows: list[int], pooling: str
) -> np.ndarray:
    """One vector (H,) for some windows: their mean weighted by tokens; their maximum where pooling is max."""
    if len(windows) == 1:
        return vectors[windows[0]]
    rows = np.stack([vectors[window] for window in windows])
    if pooling == "max":
        return np.asarray(rows.max(axis=0))
    weights = np.array([lengths[window] for window in windows], np.float32)
    return np.asarray((rows * (weights / weights.sum())[:, None]).sum(axis=0))


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """Rows scaled to length 1; NaN where the length is beyond the float limit."""
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
        return np.asarray(vectors / np.where(lengths < np.inf, np.maximum(lengths, 1e-12), np.nan))


def token_vectors(
    model: RuntimeModel, texts: str | Iterable[str], depth: Depth | None = None, layer: int | None = None
) -> list[TokenVectors]:
    """The vector of each token of each text; long texts are truncated."""
    layers = model.layers_to_apply(depth, layer)
    texts = list_texts(texts)
    encodings = model.tokenizer.encode_batch(texts, max_length=model.max_tokens)
    report_problems(find_problems(model.tokenizer, texts, [e.ids for e in encodings]))
    vectors: dict[int, np.ndarray] = {}
    for batch in token_batches([e.ids for e in encodings], [e.segments for e in encodings], model.token_budget):
        for index, row, length in zip(batch.order, model.engine.run(batch, layers), batch.lengths, strict=True):
            vectors[index] = row[:length].copy()
    check_finite("token vectors", vectors.values())
    return [
        TokenVectors(vectors[index], model.tokenizer.tokens(e.ids), e.offsets, e.ids)
        for index, e in enumerate(encodings)
    ]


def token_vectors_iter(
    model: RuntimeModel, texts: str | Iterable[str], depth: Depth | None = None, layer: int | None = None
) -> Iterator[TokenVectors]:
    """`token_vectors` in bounded memory for any number of texts."""
    reported, remaining = InputProblems(), iter([texts] if isinstance(texts, str) else texts)
    while group := list(islice(remaining, TOKEN_VECTOR_TEXTS)):
        with collect_problems() as problems:
            results = token_vectors(model, group, depth, layer)
        report_problems(problems[0], reported)
        reported += problems[0]
        yield from results


def report_untrained_vectors(model: object) -> None:
    """Warn if vectors are compared for which a model was not trained. As features of a classifier, they are useful."""
    if isinstance(model, RuntimeModel) and not has_trained_vectors(model.metadata):
        report_problems(InputProblems(has_untrained_vectors=True))


# Texts to tokens -------------------------------------------------------------------------------------------------


def text_chunks(
    texts: str | Iterable[str], first: int = FIRST_CHUNK_TEXTS, largest: int = MAX_CHUNK_TEXTS
) -> Iterator[list[str]]:
    """Chunks of the input that are sorted together, bounded in texts and in characters. Every text is checked.

    Chunks have `first` texts, then twice as many each time, up to `largest`.
    """
    texts = [texts] if isinstance(texts, str) else texts
    if isinstance(texts, bytes):
        raise AlbertkitError("texts is bytes, not str. Decode it first, for example with .decode('utf-8').")
    if not isinstance(texts, Iterable) or isinstance(texts, Mapping | set) or getattr(texts, "ndim", 1) != 1:
        raise AlbertkitError(
            f"texts is {type_with_article(texts)}. Pass a text, or several in a list, a generator or a column."
        )
    characters, chunk, chunk_size = 0, list[str](), first
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise AlbertkitError(f"text {index} is {_describe(text)}; every text must be a str. Remove or replace it.")
        chunk.append(text)
        characters += len(text)
        if len(chunk) >= chunk_size or characters >= CHUNK_CHARACTERS:
            yield chunk
            characters, chunk, chunk_size = 0, [], min(2 * chunk_size, largest)
    if chunk:
        yield chunk


def list_texts(texts: str | Iterable[str]) -> list[str]:
    """A text or several as a list, each checked."""
    return [text for chunk in text_chunks(texts) for text in chunk]


def split_texts(model: RuntimeModel, texts: Sequence[str], options: EmbedOptions, start: int = 0) -> TokenWindows:
    """Texts with their prompt as windows of token ids; `start` is the index of the first text in the input, for
    errors.
    """
    shortened = [
        shorten(model, index, options.prompt + text, options.long_texts) for index, text in enumerate(texts, start)
    ]
    ids = model.tokenizer.ids_batch(shortened)
    report_problems(find_problems(model.tokenizer, texts, ids))
    return split_tokens(model, ids, options.long_texts, start)


def split_tokens(model: RuntimeModel, texts: Sequence[list[int]], long_texts: str, start: int = 0) -> TokenWindows:
    """Token ids without special tokens as windows with them."""
    first, last = model.special_tokens
    room = model.max_tokens - len(first) - len(last)
    step = max(1, room - min(OVERLAP, room // 2))
    ids: list[list[int]] = []
    counts: list[int] = []
    for index, text in enumerate(texts, start):
        if len(text) > room and long_texts == "error":
            raise AlbertkitError(
                f"text {index} has {len(text)} tokens, but the model supports {room}. "
                f"Pass long_texts='split' or 'truncate'."
            )
        count = 1 if len(text) <= room or long_texts == "truncate" else 1 + math.ceil((len(text) - room) / step)
        windows = [[*first, *text[i * step : i * step + room], *last] for i in range(count)]
        ids += [window or [model.tokenizer.pad_id] for window in windows]
        counts.append(count)
    return TokenWindows(ids, counts)


def shorten(model: RuntimeModel, index: int, text: str, long_texts: str) -> str:
    """A text of at most `MAX_CHARACTERS`. A longer one is truncated generously, or raises."""
    if len(text) <= MAX_CHARACTERS:
        return text
    if long_texts == "truncate":  # generous, and without processing the rest
        return " ".join(text[:MAX_CHARACTERS].split())[: 64 * model.max_tokens]
    raise AlbertkitError(
        f"text {index} has {len(text):,} characters: the limit is {MAX_CHARACTERS:,}. "
        f"Split it, or pass long_texts='truncate'."
    )


def _describe(value: Any) -> str:
    if isinstance(value, bytes):
        return "bytes, not text (decode it first)"
    missing = (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )
    return "missing (None or NaN)" if missing else type_with_article(value)


# Early exit ------------------------------------------------------------------------------------------------------


class VectorConvergence:
    """The uncertainty of vectors: 1 - cosine with the vector at the previous exit depth."""

    def __init__(self, units: list[list[int]], lengths: Sequence[int], pooling: str = "mean") -> None:
        self.units, self.lengths, self.pooling = units, lengths, pooling

    def uncertainty(self, units: Sequence[int], now: Sequence[Any], before: Sequence[Any] | None) -> np.ndarray:
        """(units,) 1 - cosine; infinite at the first exit depth."""
        from albertkit.tasks.confidence import cosines

        if before is None:
            return np.full(len(units), np.inf)
        tables = [
            [window_mean(rows, self.lengths, self.units[u], self.pooling) for u in units] for rows in (now, before)
        ]
        return 1 - cosines(*(np.stack(table) for table in tables))
