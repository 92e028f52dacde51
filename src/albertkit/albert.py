"""`Albert`: a model for people. Texts in, vectors and words out, without torch.

In: a model folder of any kind, or nothing for the built-in one. Out: numpy arrays and named results. One text or many; lists, generators, numpy arrays
and columns of tables; results in the order of the input. Before this file: `engine.py` computes, `batching.py` packs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from albertkit import builtin
from albertkit.artifact import read_stored
from albertkit.errors import AlbertkitError, nearest
from albertkit.quantized import quantize_weights, unpack_weights
from albertkit.runtime.batching import TOKEN_BUDGET, token_batches
from albertkit.runtime.depths import check_trained_depth
from albertkit.runtime.engine import open_engine
from albertkit.runtime.graph import as_float
from albertkit.tokenizer import Encoding

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from albertkit.explain.explainer import ExplainKeywords
    from albertkit.explain.explanation import Explanation
    from albertkit.tasks.examples import DialogueTurn

EarlyExit = str | float  # see `runtime/early_exit.py`
POOLINGS = ("mean", "cls", "pooler", "max")
LONG = ("split", "truncate", "error")
WINDOW_TEXTS = 4096  # most texts sorted by length together; bounds memory for endless input
FIRST_WINDOW = 64  # the first windows are small, so that a pipe flows and a stopped run has something to show
WINDOW_CHARACTERS = 4_000_000
MAX_CHARACTERS = 1_000_000  # in one text, unless it is truncated
OVERLAP = 64  # tokens shared by neighbouring windows of a long text


@dataclass(frozen=True)
class TokenVectors:
    """One text, token by token."""

    vectors: np.ndarray  # (tokens, H)
    tokens: list[str]
    offsets: list[tuple[int, int]]  # characters of the text; (0, 0) at special tokens
    ids: list[int]


@dataclass(frozen=True)
class MaskPrediction:
    """One word for a mask."""

    word: str
    score: float  # probability
    text: str  # the text with the word in its place


@dataclass(frozen=True)
class EmbedOptions:
    """How texts become vectors: the settings of `Albert.embed`, checked."""

    pooling: str
    depth: int
    long_texts: str
    dim: int | None
    normalize: bool  # to length 1
    prompt: str  # put before each text


class Albert:
    """A model ready to use.

    model: a folder of any kind, or the name of a built-in model; default the built-in English one (`albertkit models`).
    bits: 8 or 4 quantises a float model on opening (`albertkit quantize` does it once and for all).
    threads: processors to use; default all that this process may use. device: "cuda" runs through torch.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        bits: int | None = None,
        threads: int | None = None,
        device: str = "cpu",
        depth: int | None = None,
        token_budget: int = TOKEN_BUDGET,
    ) -> None:
        stored = read_stored(model)
        self.source = model
        weights = stored.weights
        self._asks_another = builtin.resolve(model) == builtin.resolve(None) and "heads.mlm.bias" not in weights
        if bits is not None and stored.meta.quantisation is None:
            from albertkit.runtime.activation_moments import example_text, moments_of

            floats = {name: array for name, array in weights.items() if isinstance(array, np.ndarray)}
            seen = moments_of(stored.config, weights, example_text(stored.config, stored.tokenizer, 16))
            weights = unpack_weights(
                quantize_weights(floats, bits, seen, cancel_errors=False),
                {name: array.shape for name, array in floats.items()},
            )
        elif bits is not None and stored.meta.quantisation != f"int{bits}":
            raise AlbertkitError(
                f"bits={bits} was asked for, and the model is stored as {stored.meta.quantisation}; open the float model"
            )
        if stored.tokenizer is None:
            raise AlbertkitError(
                f"{model} holds no tokenizer, so it cannot read text; put tokenizer.json beside the weights"
            )
        self.config, self.meta, self.tokenizer = stored.config, stored.meta, stored.tokenizer
        self.bits = bits
        self.depth = self._check_depth(depth if depth is not None else stored.meta.depth)
        kind = stored.meta.quantisation or (f"int{bits}" if bits else "float")
        self.name = f"{stored.identity[:16]}-{kind}-{stored.meta.pooling}-depth{self.depth}-{self.max_tokens}"
        self.token_budget = token_budget
        self.heads = {
            name.split(".")[1]: (as_float(weights[name]), as_float(weights[name.replace("weight", "bias")]))
            for name in weights
            if name.startswith("heads.") and name.endswith(".linear.weight")
        }
        self._device, self._layers = device, dict(weights) if stored.meta.task == "generate" else {}
        if device == "cpu":
            self.engine: Any = open_engine(self.config, weights, threads)
        elif self.config.options.static:
            raise AlbertkitError(
                f"device is {device!r}; a static model is a table that the CPU reads, so leave device away"
            )
        else:
            from albertkit.runtime.torch_engine import TorchEngine

            self.engine = TorchEngine(self.config, weights, device)

    @property
    def dim(self) -> int:
        """Length of a sentence vector."""
        return self.config.hidden_size

    @property
    def max_tokens(self) -> int:
        """Tokens of a text that one pass can read, special ones included."""
        return self.config.max_position_embeddings

    # Vectors -----------------------------------------------------------------------------------------------------

    def embed(self, texts: str | Iterable[str], **settings: Any) -> np.ndarray:
        """Sentence vectors, float32 and of length 1: (dim,) for one text, (texts, dim) for many.

        pooling: mean, cls, pooler or max (default the model's). layer: which hidden state (0 the embeddings, -1 the
        last). depth: layers to apply. dim: keep the first numbers only. normalize: length 1. long_texts: what to do with a
        text beyond the position table: split (windows, then their mean), truncate, or error. prompt: put before each
        text, or the name of one of the model's prompts. early_exit: leave early (see `embed_early_exit`).
        """
        if isinstance(texts, str):
            return next(self.embed_iter([texts], **settings))
        found = list(self.embed_iter(texts, **settings))
        width = settings.get("dim") or self.dim
        return np.stack(found) if found else np.zeros((0, width), np.float32)

    def embed_iter(
        self,
        texts: Iterable[str],
        *,
        pooling: str | None = None,
        layer: int | None = None,
        depth: int | None = None,
        dim: int | None = None,
        normalize: bool | None = None,
        long_texts: str = "split",
        prompt: str | None = None,
        early_exit: EarlyExit | None = None,
        leave: Callable[[int], None] = lambda depth: None,
    ) -> Iterator[np.ndarray]:
        """The vectors of `embed` one by one, in bounded memory however many texts there are.

        leave: with `early_exit`, called with the depth at which each text left.
        """
        options = self.embed_options(pooling, layer, depth, dim, normalize, long_texts, prompt)
        if early_exit is not None:
            from albertkit.runtime.early_exit import embed_windows

            for left in embed_windows(self, texts, options, early_exit, layer, depth):
                for vector, layers in zip(left.scores, left.depths.tolist(), strict=True):
                    leave(layers)
                    yield vector
            return
        start = 0
        for window in windows(texts):
            yield from self._embed_window([options.prompt + text for text in window], options, start)
            start += len(window)

    def embed_early_exit(
        self, texts: Iterable[str], early_exit: EarlyExit, *, depth: int | None = None, **settings: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Vectors (texts, dim), and the depth (texts,) at which each stopped moving.

        early_exit: "99%" (or 0.99) promises vectors that agree with the full depth's for 99 % of texts, after `albertkit calibrate`; "cosine:0.99" leaves when
        two looks in a row give vectors of at least that cosine.
        """
        from albertkit.runtime.early_exit import embed_windows

        found = list(embed_windows(self, texts, self.embed_options(depth=depth, **settings), early_exit, None, depth))
        vectors = [vector for left in found for vector in left.scores]
        width = settings.get("dim") or self.dim
        depths = np.concatenate([left.depths for left in found]) if found else np.zeros(0, np.int64)
        return np.stack(vectors) if vectors else np.zeros((0, width), np.float32), depths

    def embed_options(
        self,
        pooling: str | None = None,
        layer: int | None = None,
        depth: int | None = None,
        dim: int | None = None,
        normalize: bool | None = None,
        long_texts: str = "split",
        prompt: str | None = None,
    ) -> EmbedOptions:
        """The settings of `embed`, checked, with the model's own where none were given."""
        how = pooling or self.meta.pooling
        if how not in POOLINGS:
            raise AlbertkitError(
                f"unknown pooling {how!r}{nearest(how, POOLINGS)}; choose one of {', '.join(POOLINGS)}"
            )
        if long_texts not in LONG:
            raise AlbertkitError(f"long_texts is {long_texts!r}; choose one of {', '.join(LONG)}")
        if dim is not None and (not isinstance(dim, int) or not 1 <= dim <= self.dim):
            raise AlbertkitError(f"dim is {dim}; this model has 1 to {self.dim} dimensions")
        if self.config.options.static and how != "mean":
            raise AlbertkitError(f"pooling is {how!r}; a static model knows only the mean of its pieces' vectors")
        unit = self.meta.normalise if normalize is None else normalize
        before = self.meta.prompts.get("default", "") if prompt is None else self.meta.prompts.get(prompt, prompt)
        layers = self._layers_to_apply(layer, depth, how)
        if layer is None:
            check_trained_depth(
                self.config, self.meta, layers, f" (layer={layers} gives the hidden states there all the same)"
            )
        return EmbedOptions(how, layers, long_texts, dim, unit, before)

    def _embed_window(self, texts: list[str], options: EmbedOptions, first: int) -> Iterator[np.ndarray]:
        pieces, owners = self.pieces(texts, options.long_texts, first)
        if self.config.options.static:
            vectors = self.engine.means(pieces)
        else:
            vectors = np.empty((len(pieces), self.dim), np.float32)
            for batch in token_batches(pieces, token_budget=self.token_budget):
                vectors[batch.order] = self._pool(self.engine.run(batch, options.depth), batch.lengths, options.pooling)
        yield from joined(vectors, [len(p) for p in pieces], owners, options)

    def _pool(self, hidden: np.ndarray, lengths: np.ndarray, how: str) -> np.ndarray:
        """(texts, length, H) → (texts, H)."""
        if how == "cls":
            return hidden[:, 0]
        if how == "pooler":
            pooled: np.ndarray = self.engine.pooler(hidden[:, 0])
            return pooled
        inside = np.arange(hidden.shape[1])[None, :, None] < lengths[:, None, None]
        if how == "max":
            return np.where(inside, hidden, -np.inf).max(axis=1)
        total: np.ndarray = np.where(inside, hidden, 0).sum(axis=1)
        return total / lengths[:, None]

    def pieces(self, texts: list[str], long: str, number: int = 0) -> tuple[list[list[int]], list[int]]:
        """Token ids with special tokens, long texts as several pieces, and how many pieces each text has.

        `number` is the place of the first text in the whole input, for errors.
        """
        checked = [self._check_size(place, text, long) for place, text in enumerate(texts, number)]
        return self.cut(self.tokenizer.ids_batch(checked), long, number)

    def cut(self, texts: list[list[int]], long: str, number: int = 0) -> tuple[list[list[int]], list[int]]:
        """As `pieces`, of texts that are token ids without special tokens."""
        first, last = self._ends
        room = self.max_tokens - len(first) - len(last)
        pieces: list[list[int]] = []
        owners: list[int] = []
        for place, ids in enumerate(texts, number):
            if len(ids) > room and long == "error":
                raise AlbertkitError(
                    f"text {place} has {len(ids)} tokens and the model reads {room}; choose long_texts='split' or 'truncate'"
                )
            step = max(1, room - OVERLAP)
            count = 1 if len(ids) <= room or long == "truncate" else 1 + math.ceil((len(ids) - room) / step)
            pieces += [
                [*first, *ids[i * step : i * step + room], *last] or [self.tokenizer.pad_id] for i in range(count)
            ]
            owners.append(count)
        return pieces, owners

    @cached_property
    def _ends(self) -> tuple[list[int], list[int]]:
        """The special tokens before and behind a text."""
        tokenizer = self.tokenizer
        first = [] if tokenizer.cls_id is None else [tokenizer.cls_id]
        last = [] if tokenizer.sep_id is None else [tokenizer.sep_id]
        if tokenizer.kind == "phoneme":
            first = last = [tokenizer.pad_id]
        if self.max_tokens <= len(first) + len(last):
            raise AlbertkitError(
                f"this model reads {self.max_tokens} tokens, too few for a text and its special tokens"
            )
        return first, last

    def _check_size(self, place: int, text: str, long: str) -> str:
        if len(text) <= MAX_CHARACTERS:
            return text
        if long == "truncate":  # what can matter: generous, and found without reading the rest
            return " ".join(text[:MAX_CHARACTERS].split())[: 64 * self.max_tokens]
        raise AlbertkitError(
            f"text {place} has {len(text):,} characters; one text has at most {MAX_CHARACTERS:,}, so split it or choose long_texts='truncate'"
        )

    def tokens(self, texts: str | Iterable[str], *, layer: int | None = None, depth: int | None = None) -> Any:
        """Token vectors with the characters each one covers: one `TokenVectors`, or a list of them. Long texts are cut."""
        single = isinstance(texts, str)
        depth = self._layers_to_apply(layer, depth, "mean")
        out: list[TokenVectors] = []
        for window in windows([texts] if isinstance(texts, str) else texts):
            encodings = self.tokenizer.encode_batch(window, max_length=self.max_tokens)
            found: list[Any] = [None] * len(encodings)
            for batch in token_batches([e.ids for e in encodings], [e.segments for e in encodings], self.token_budget):
                hidden = self.engine.run(batch, depth)
                for at, place in enumerate(batch.order):
                    e = encodings[place]
                    found[place] = TokenVectors(
                        hidden[at, : len(e.ids)].copy(), self.tokenizer.tokens(e.ids), e.offsets, e.ids
                    )
            out += found
        return out[0] if single else out

    def similarity(self, first: str | Iterable[str], second: str | Iterable[str] | None = None, **settings: Any) -> Any:
        """Cosine of texts: a number for two texts, a (first, second) table for many; without `second`, all with all."""
        settings = {**settings, "normalize": True}  # a cosine, whatever the model's own vectors look like
        a = self.embed(first, **settings)
        b = a if second is None else self.embed(second, **settings)
        table = np.atleast_2d(a) @ np.atleast_2d(b).T
        if a.ndim == b.ndim == 1:
            return float(table[0, 0])
        return table[0] if a.ndim == 1 else table[:, 0] if b.ndim == 1 else table

    # Words -------------------------------------------------------------------------------------------------------

    def fill_mask(self, text: str, k: int = 5, depth: int | None = None) -> list[list[MaskPrediction]]:
        """The `k` likeliest words for each [MASK] of a text, each guess with the text it gives."""
        if self._filler is not self:
            return self._filler.fill_mask(text, k, depth)
        encoding, places = self.masked(text, k)
        (batch,) = token_batches([encoding.ids], [encoding.segments])
        hidden = self.engine.run(batch, self._layers_to_apply(None, depth, "mean"))[0, places]
        return self.mask_predictions(text, self.best_words(hidden, k))

    def infill(
        self, text: str, length: str | int | None = None, *, rounds: int = 10, k: int = 1, depth: int | None = None
    ) -> Any:
        """A text with its blanks filled: [MASK:3] stands for three tokens, [MASK:1-4] for one to four; an `Infilled`, or the `k` best.

        length: tokens of a [MASK] that says nothing itself, such as 3 or "1-4". rounds: times that what is least sure is filled again.
        """
        from albertkit.runtime.infill import infill

        found = infill(self._filler, text, length, rounds, k, depth)
        return found[0] if k == 1 else found

    def masked(self, text: str, k: int) -> tuple[Encoding, list[int]]:
        """A text with [MASK] as the model reads it, and the places of its masks."""
        if self.tokenizer.mask_id is None:
            raise AlbertkitError("this vocabulary has no [MASK]")
        if not isinstance(k, int) or not 1 <= k <= self.config.vocab_size:
            raise AlbertkitError(f"k is {k}; choose 1 to {self.config.vocab_size}")
        if len(text) > MAX_CHARACTERS:
            raise AlbertkitError(
                f"the text has {len(text):,} characters; with a mask it must fit into {self.max_tokens} tokens"
            )
        encoding = self.tokenizer.encode(text, recognise_mask=True)
        places = [i for i, token in enumerate(encoding.ids) if token == self.tokenizer.mask_id]
        if not places:
            raise AlbertkitError(f"{text[:40]!r} holds no [MASK]; write [MASK] where a word is missing")
        if len(encoding.ids) > self.max_tokens:
            raise AlbertkitError(
                f"the text has {len(encoding.ids)} tokens; with a mask it must fit into {self.max_tokens}"
            )
        return encoding, places

    def best_words(self, hidden: np.ndarray, k: int) -> list[list[tuple[int, float]]]:
        """The `k` likeliest tokens and their probabilities for hidden states (n, H)."""
        scores = self.engine.words(hidden)[:, : self.tokenizer.vocab_size]
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
        best = np.argsort(-scores, axis=1)[:, :k]
        return [[(int(i), float(row[i])) for i in top] for row, top in zip(scores, best, strict=True)]

    def mask_predictions(self, text: str, best: list[list[tuple[int, float]]]) -> list[list[MaskPrediction]]:
        """The words that `best_words` found for each mask of a text."""
        return [[self._guess(text, nth, token, score) for token, score in top] for nth, top in enumerate(best)]

    @cached_property
    def _filler(self) -> Albert:
        """This model; or, beside the built-in one for vectors, the built-in one for words."""
        return Albert(builtin.WORDS, threads=self.engine.threads) if self._asks_another else self

    def _guess(self, text: str, nth: int, token: int, score: float) -> MaskPrediction:
        piece = self.tokenizer.tokens([token])[0]
        word = piece.removeprefix("##").replace("▁", "")
        parts = text.split("[MASK]")
        return MaskPrediction(
            word or piece, score, "[MASK]".join(parts[: nth + 1]) + word + "[MASK]".join(parts[nth + 1 :])
        )

    # Tasks -------------------------------------------------------------------------------------------------------
    # For a model that was fine-tuned; `runtime/predict.py` does the work. depth: layers to apply. early_exit: each text leaves when it is sure, and its result
    # says at which depth: "99%" (or 0.99: agree with the full depth on 99 % of texts), "entropy:0.1" or "patience:2".

    @cached_property
    def task(self) -> Any:
        """What the model was fine-tuned for."""
        from albertkit.tasks import load_task

        return load_task(self.meta)

    def classify(
        self,
        texts: str | Iterable[str],
        pairs: str | Iterable[str] | None = None,
        *,
        depth: int | None = None,
        early_exit: EarlyExit | None = None,
    ) -> Any:
        """Class, classes or value of each text or pair, with probabilities: one `Classification`, or a list of them."""
        from albertkit.runtime.predict import listed, predict
        from albertkit.tasks.examples import TextExample

        first, single = listed(texts)
        second = [None] * len(first) if pairs is None else listed(pairs)[0]
        if len(second) != len(first):
            raise AlbertkitError(f"there are {len(first)} texts and {len(second)} pairs; give one pair for each text")
        found = predict(
            self, [TextExample(a, b) for a, b in zip(first, second, strict=True)], "classify", depth, early_exit
        )
        return found[0] if single else found

    def tag(self, texts: str | Iterable[str], *, depth: int | None = None, early_exit: EarlyExit | None = None) -> Any:
        """The entities in each text, as spans of characters: one `TagResult`, or a list of them."""
        from albertkit.runtime.predict import listed, predict
        from albertkit.tasks.examples import TaggedExample
        from albertkit.tasks.word_alignment import split_words

        given, single = listed(texts)
        found = predict(self, [TaggedExample(text, split_words(text)) for text in given], "tag", depth, early_exit)
        return found[0] if single else found

    def understand(
        self, texts: str | Iterable[str], *, depth: int | None = None, early_exit: EarlyExit | None = None
    ) -> Any:
        """Intent and slots of each text: one `IntentResult`, or a list of them; classes of texts are intents without slots."""
        from albertkit.runtime.predict import listed, predict
        from albertkit.tasks.examples import TaggedExample, TextExample
        from albertkit.tasks.tag import IntentResult
        from albertkit.tasks.word_alignment import split_words

        given, single = listed(texts)
        if self.meta.task == "classify" and self.task.kind == "single":  # intents without slots
            labels = predict(self, [TextExample(text) for text in given], "classify", depth, early_exit)
            found = [IntentResult.from_classification(label) for label in labels]
        else:
            found = predict(
                self, [TaggedExample(text, split_words(text)) for text in given], "intent", depth, early_exit
            )
        return found[0] if single else found

    def track(
        self,
        turns: str | Iterable[str | tuple[str, str] | DialogueTurn],
        *,
        depth: int | None = None,
        early_exit: EarlyExit | None = None,
    ) -> Any:
        """What a user wants after each turn of a dialogue: a `DialogueState` for each, or one for a single text.

        A turn is what the user says, or a pair: what the system said before, and what the user says. Turns come in their order; each call
        begins a new dialogue. To track several in one call, give `albertkit.tasks.examples.DialogueTurn`s, which name their dialogue.
        """
        from albertkit.runtime.predict import check_made, predict, turns_of

        check_made(self, "dialogue")
        given, single = turns_of(turns)
        found = predict(self, given, "dialogue", depth, early_exit) if given else []
        return found[0] if single else found

    def answer(
        self, question: str, context: str, *, depth: int | None = None, early_exit: EarlyExit | None = None
    ) -> Any:
        """Where the context answers the question: an `AnswerResult`, empty if it does not."""
        from albertkit.runtime.predict import predict
        from albertkit.tasks.examples import QuestionExample

        return predict(self, [QuestionExample("0", question, context)], "answer", depth, early_exit)[0]

    def choose(
        self,
        context: str,
        question: str,
        choices: Iterable[str],
        *,
        depth: int | None = None,
        early_exit: EarlyExit | None = None,
    ) -> Any:
        """Which choice is right: a `ChoiceResult`."""
        from albertkit.runtime.predict import predict
        from albertkit.tasks.examples import ChoiceExample

        return predict(self, [ChoiceExample(context, question, tuple(choices))], "choose", depth, early_exit)[0]

    def explain(
        self,
        text: str,
        *,
        pair: str | None = None,
        question: str | None = None,
        choices: Iterable[str] = (),
        **settings: Unpack[ExplainKeywords],
    ) -> Explanation:
        """Explain a prediction: values of words, attention, and how the prediction forms (see `docs/explain.md`).

        pair, question, choices: what the model's task needs beside the text. Settings: the fields of `ExplainSettings`,
        among them methods (occlusion, shapley, gradients, rollout, attention) and target (what to explain).
        """
        from albertkit.explain import Explainer, ExplainInput, ExplainSettings

        texts = ExplainInput(text, pair, question, tuple(choices))
        return Explainer(self).explain(texts, ExplainSettings(**settings))

    @cached_property
    def writer(self) -> Any:
        """What writes texts, opened when it is first needed."""
        from albertkit.runtime.generate import Writer

        if self._device != "cpu":
            raise AlbertkitError(f"device is {self._device!r}; texts are written on the CPU, so leave device away")
        made = Writer(self.config, self._layers, self.engine, self.tokenizer)
        self._layers = {}
        return made

    def generate(self, texts: str | Iterable[str], *, depth: int | None = None, **style: Any) -> Any:
        """What the model writes from each text: one `GeneratedText`, or a list of them.

        beams: texts kept side by side, of which the best wins. sample: draw words, with temperature, top_p and seed. no_repeat: write no
        run of so many tokens twice. max_tokens: most tokens to write (default what it was trained with).
        """
        from albertkit.runtime.generate import Style, write
        from albertkit.runtime.predict import check_made, listed

        check_made(self, "generate")
        given, single = listed(texts)
        found = write(self, given, Style(**style), depth)
        return found[0] if single else found

    # Checks ------------------------------------------------------------------------------------------------------

    def _check_depth(self, depth: int | None) -> int:
        if depth is not None and self.config.options.static:
            raise AlbertkitError(f"depth is {depth!r}; a static model has no layers, so leave it away")
        depth = self.config.num_hidden_layers if depth is None else depth
        depth = int(depth) if isinstance(depth, np.integer) else depth
        if isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth <= 1024:
            raise AlbertkitError(
                f"depth is {depth!r}; apply 1 to 1024 layers (this model has {self.config.num_hidden_layers})"
            )
        return depth

    def _layers_to_apply(self, layer: int | None, depth: int | None, how: str) -> int:
        if self.config.options.static and (layer is not None or depth is not None):
            raise AlbertkitError(
                "a static model has one vector for each piece and no layers; leave layer and depth away"
            )
        depth = self.depth if depth is None else self._check_depth(depth)
        if layer is None:
            return depth
        if not isinstance(layer, int) or not -depth - 1 <= layer <= depth:
            raise AlbertkitError(f"layer is {layer}; with depth {depth} there are layers 0 (the embeddings) to {depth}")
        if how == "pooler" and layer not in (depth, -1):
            raise AlbertkitError("the pooler reads the last layer; choose mean, cls or max for another one")
        return layer if layer >= 0 else depth + 1 + layer


def joined(vectors: np.ndarray, lengths: list[int], owners: list[int], options: EmbedOptions) -> Iterator[np.ndarray]:
    """The vector of each text from those of its pieces (pieces, H), which have `lengths` tokens; `owners` counts each text's."""
    if len(owners) < len(vectors):
        vectors = np.stack(list(merged(vectors, lengths, owners, options.pooling)))
    cut = vectors[:, : options.dim]
    if options.normalize:
        cut = cut / np.maximum(np.sqrt((cut * cut).sum(axis=1, keepdims=True)), 1e-12)
    yield from cut


def merged(vectors: np.ndarray, lengths: list[int], owners: list[int], pooling: str) -> Iterator[np.ndarray]:
    """One vector for all pieces of a text."""
    start = 0
    for count in owners:
        own = vectors[start : start + count]
        if count == 1:
            yield own[0]
        elif pooling == "max":
            yield own.max(axis=0)
        else:  # windows weigh as many tokens as they hold
            weights = np.array(lengths[start : start + count], np.float32)
            yield (own * (weights / weights.sum())[:, None]).sum(axis=0)
        start += count


def windows(texts: Iterable[str]) -> Iterator[list[str]]:
    """Stretches of the input that are sorted together: bounded in texts and in characters. Every text is checked."""
    if isinstance(texts, str):
        texts = [texts]
    if isinstance(texts, bytes):
        raise AlbertkitError(
            "bytes were given where text is needed; decode them first, for example with .decode('utf-8')"
        )
    if not isinstance(texts, Iterable) or getattr(texts, "ndim", 1) != 1:
        raise AlbertkitError(
            f"texts is a {type(texts).__name__}; give a text, or several in a list, a generator or a column"
        )
    held, window, most = 0, list[str](), FIRST_WINDOW
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise AlbertkitError(
                f"text {place} is {_describe(text)}; every text must be a str, so leave it out or replace it"
            )
        window.append(text)
        held += len(text)
        if len(window) >= most or held >= WINDOW_CHARACTERS:
            yield window
            held, window, most = 0, [], min(2 * most, WINDOW_TEXTS)
    if window:
        yield window


def _describe(value: Any) -> str:
    if isinstance(value, bytes):
        return "bytes, not text (decode it first)"
    missing = (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )
    return "missing (None or NaN)" if missing else f"a {type(value).__name__}"
