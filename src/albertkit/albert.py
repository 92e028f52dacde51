"""`Albert`: the main class for inference: vectors, words, labels and explanations of texts. No torch on the CPU.

In: any ALBERT checkpoint or artifact folder; the default is the built-in model. Out: numpy arrays and frozen results,
one for one text, a list for several, in input order. It builds on `runtime/`, which runs the model, `tasks/`, which
decodes scores, and `explain/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import numpy as np

from albertkit.errors import AlbertkitError, check_string
from albertkit.interop.convert import open_stored
from albertkit.runtime import embed as embedding
from albertkit.runtime.batching import TOKEN_BUDGET
from albertkit.runtime.early_exit import EarlyExit, exit_rule
from albertkit.runtime.embed import EmbedKeywords, EmbedOptions, TokenVectors
from albertkit.runtime.runtime_model import Depth, RuntimeModel
from albertkit.vector_dtype import empty_vectors

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from albertkit.explain.explain_input import ExplainKeywords
    from albertkit.explain.explainer import Explanation
    from albertkit.runtime.generate import GenerateKeywords
    from albertkit.runtime.mask_filling import MaskPrediction
    from albertkit.runtime.predict import PredictKeywords
    from albertkit.tasks.answer import AnswerResult
    from albertkit.tasks.choose import ChoiceResult
    from albertkit.tasks.classify import Classification
    from albertkit.tasks.dialogue import DialogueState
    from albertkit.tasks.examples import DialogueTurn
    from albertkit.tasks.generation import GeneratedText
    from albertkit.tasks.tag import IntentResult, TagResult

T = TypeVar("T")
Texts = str | Iterable[str]


class EarlyExitVectors(NamedTuple):
    """Sentence vectors (texts, dim), and the depth (texts,) at which each text exited.

    >>> from albertkit import Albert
    >>> vectors, depths = Albert().embed_early_exit(["a cat sat on the mat"], early_exit="cosine:0.9")
    >>> vectors.shape, depths.shape
    ((1, 384), (1,))
    """

    vectors: np.ndarray
    depths: np.ndarray


class Albert(RuntimeModel):
    """A model for inference: vectors, similarity, MLM predictions, tasks and explanations.

    model: a folder or file of any ALBERT checkpoint, or the name of a built-in model. The default is `small`, the
    built-in English model.
    bits: 8 or 4 quantizes a float model on opening. `albertkit quantize` does it permanently.
    threads: CPU threads. The default is all cores available to this process.
    device: "cpu", or "cuda" to run through torch.
    precision: with a GPU, "float32", or the faster "bf16" or "float16".
    depth: number of layers to apply, or "full" for all. The default is that of the model; calls can override it.
    token_budget: maximum number of tokens per batch.

    >>> from albertkit import Albert
    >>> albert = Albert()
    >>> albert.embed("a cat sat on the mat").shape
    (384,)
    >>> albert.similarity(["a cat", "a kitten", "a train"]).shape
    (3, 3)
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        bits: int | None = None,
        threads: int | None = None,
        device: str = "cpu",
        precision: str = "float32",
        depth: Depth | None = None,
        token_budget: int = TOKEN_BUDGET,
    ) -> None:
        self._options: dict[str, Any] = {"bits": bits, "threads": threads, "device": device, "depth": depth}
        self._options["precision"] = precision
        super().__init__(open_stored(model), source=model, token_budget=token_budget, **self._options)

    def __repr__(self) -> str:
        source = "built-in model" if self.source is None else str(self.source)
        stored = self.metadata.quantization or (f"int{self.bits}" if self.bits else "float")
        shape = f"dim={self.dim}, depth={self.depth}, {stored}, {self.device}"
        return f"Albert({source!r}, task={self.metadata.task!r}, {shape})"

    def __reduce__(self) -> tuple[Callable[..., Albert], tuple[Any, ...]]:
        """Pickle the source and the options; unpickling opens the model again."""
        source = self.source
        if source is not None and Path(source).exists():
            source = Path(source).absolute()
        return partial(Albert, **self._options, token_budget=self.token_budget), (source,)

    # Vectors -----------------------------------------------------------------------------------------------------

    def embed(self, texts: Texts, *, early_exit: EarlyExit = None, **keywords: Unpack[EmbedKeywords]) -> np.ndarray:
        """Sentence vectors, float32 and normalised by default: (dim,) for one text, (texts, dim) for a list.

        pooling: mean, cls, pooler or max. layer: hidden state to pool (0 for the embeddings, -1 for the last layer).
        depth: layers to apply, or "full". dim: keep only the first dimensions. normalize: scale vectors to length 1.
        long_texts: split, truncate or error, for texts longer than the model's maximum. prompt: prefix of each text, or
        the name of one of the model's prompts. space: "shared" gives English (`small`) and Chinese (`small-zh`) vectors
        one space (see `SharedSpace`). dtype: float32, float16, int8 (127 times each number) or binary (one bit per
        number, packed into uint8). early_exit: see `embed_early_exit`.

        >>> Albert().embed(["a cat", "a dog"], dim=128).shape
        (2, 128)
        """
        if isinstance(texts, str):
            return next(self.embed_iter([texts], early_exit=early_exit, **keywords))
        return self._stack(self.embed_iter(texts, early_exit=early_exit, **keywords), keywords)

    def embed_iter(
        self,
        texts: Iterable[str],
        *,
        early_exit: EarlyExit = None,
        on_exit: Callable[[int], None] | None = None,
        **keywords: Unpack[EmbedKeywords],
    ) -> Iterator[np.ndarray]:
        """The vectors of `embed` one by one, in bounded memory for any number of texts.

        on_exit: called with the depth at which each text exited.

        >>> next(Albert().embed_iter(open("texts.txt"))).shape  # doctest: +SKIP
        (384,)
        """
        options, layer, rule = self.embed_options(**keywords), keywords.get("layer"), None
        if early_exit is not None and layer is not None:
            raise AlbertkitError(
                f"layer={layer} and early_exit={early_exit!r} exclude each other: each chooses the last layer. Omit one"
            )
        if early_exit is not None:
            rule = exit_rule(self, early_exit, keywords.get("depth"), "cosine")
        yield from embedding.embed_texts(self, texts, options, rule, on_exit)

    def embed_early_exit(
        self, texts: Iterable[str], early_exit: EarlyExit, **keywords: Unpack[EmbedKeywords]
    ) -> EarlyExitVectors:
        """Vectors with early exit, and the depth at which each text exited.

        early_exit: "99%" (or 0.99) agrees with the full depth on 99 % of texts and needs `albertkit calibrate`.
        "cosine:0.99" exits when the vectors of two consecutive exit depths have at least this cosine.

        >>> Albert().embed_early_exit(["a cat sat on the mat"], "cosine:0.9").vectors.shape
        (1, 384)
        """
        depths: list[int] = []
        vectors = self.embed_iter(texts, early_exit=early_exit, on_exit=depths.append, **keywords)
        return EarlyExitVectors(self._stack(vectors, keywords), np.array(depths, np.int64))

    def _stack(self, vectors: Iterable[np.ndarray], keywords: EmbedKeywords) -> np.ndarray:
        rows = list(vectors)
        return np.stack(rows) if rows else empty_vectors(keywords.get("dim") or self.dim, keywords.get("dtype"))

    def embed_options(self, **keywords: Unpack[EmbedKeywords]) -> EmbedOptions:
        """The validated keywords of `embed`, with the model's defaults for those not passed.

        >>> Albert().embed_options().pooling
        'mean'
        """
        return embedding.embed_options(self, **keywords)

    @overload
    def token_vectors(self, texts: str, *, layer: int | None = None, depth: Depth | None = None) -> TokenVectors: ...
    @overload
    def token_vectors(
        self, texts: Iterable[str], *, layer: int | None = None, depth: Depth | None = None
    ) -> list[TokenVectors]: ...
    def token_vectors(
        self, texts: Texts, *, layer: int | None = None, depth: Depth | None = None
    ) -> TokenVectors | list[TokenVectors]:
        """The vector of each token, with the characters it covers. Long texts are truncated.

        >>> Albert().token_vectors("a cat").tokens
        ['[CLS]', '▁a', '▁cat', '[SEP]']
        """
        return _one_or_all(embedding.token_vectors(self, texts, depth, layer), isinstance(texts, str))

    def token_vectors_iter(
        self, texts: Iterable[str], *, layer: int | None = None, depth: Depth | None = None
    ) -> Iterator[TokenVectors]:
        """The results of `token_vectors` one by one, in bounded memory for any number of texts.

        >>> next(Albert().token_vectors_iter(open("texts.txt"))).vectors.shape  # doctest: +SKIP
        (12, 384)
        """
        yield from embedding.token_vectors_iter(self, texts, depth, layer)

    @overload
    def similarity(self, first: str, second: str, **keywords: Unpack[EmbedKeywords]) -> float: ...
    @overload
    def similarity(
        self, first: Texts, second: Texts | None = None, **keywords: Unpack[EmbedKeywords]
    ) -> np.ndarray: ...
    def similarity(
        self, first: Texts, second: Texts | None = None, **keywords: Unpack[EmbedKeywords]
    ) -> float | np.ndarray:
        """Cosine similarity: a number for two texts, a matrix (first, second) for lists.

        Without `second`, each text of `first` is compared with all of them.

        >>> Albert().similarity("a cat sat", "a dog sat") > 0.5
        True
        """
        if keywords.get("dtype") not in (None, "float32"):
            raise AlbertkitError(
                f"dtype={keywords['dtype']!r} is not available for cosines, which are float32. Omit it."
            )
        embedding.report_untrained_vectors(self)
        keywords["normalize"] = True  # a cosine, even if the model's vectors are not normalised
        a = self.embed(first, **keywords)
        b = a if second is None else self.embed(second, **keywords)
        table: np.ndarray = (np.atleast_2d(a) @ np.atleast_2d(b).T).clip(-1, 1)  # rounding may exceed 1
        if a.ndim == b.ndim == 1:
            return float(table[0, 0])
        return np.asarray(table[0] if a.ndim == 1 else table[:, 0] if b.ndim == 1 else table)

    # Words -------------------------------------------------------------------------------------------------------

    def fill_mask(self, text: str, k: int = 5, depth: Depth | None = None) -> list[list[MaskPrediction]]:
        """The `k` most likely words for each [MASK] in a text.

        >>> len(Albert().fill_mask("The [MASK] sat on the mat.", k=3)[0])
        3
        """
        from albertkit.runtime.mask_filling import fill_mask

        return fill_mask(self.mask_model, text, k, depth)

    @overload
    def generate(
        self, texts: str, *, depth: Depth | None = None, **settings: Unpack[GenerateKeywords]
    ) -> GeneratedText: ...
    @overload
    def generate(
        self, texts: Iterable[str], *, depth: Depth | None = None, **settings: Unpack[GenerateKeywords]
    ) -> list[GeneratedText]: ...
    def generate(
        self, texts: Texts, *, depth: Depth | None = None, **settings: Unpack[GenerateKeywords]
    ) -> GeneratedText | list[GeneratedText]:
        """The text that a model fine-tuned for `generate` generates from each text.

        beams: number of beams; 1 is greedy search. no_repeat: generate no n-gram of this length twice. max_tokens:
        maximum tokens to generate; the default is the length used in training.

        >>> Albert("summaries").generate("A long text.", beams=2).text  # doctest: +SKIP
        """
        from albertkit.runtime.generate import GenerateSettings, generate
        from albertkit.runtime.predict import check_task

        check_task(self, "generate")
        results = generate(self, embedding.list_texts(texts), GenerateSettings(**settings), depth)
        return _one_or_all(results, isinstance(texts, str))

    # Tasks -------------------------------------------------------------------------------------------------------
    # For a fine-tuned model. depth: layers to apply. early_exit: each text exits when its prediction is confident, and
    # its result contains the depth: "99%" (agree with the full depth on 99 % of texts), or "entropy:0.1".

    @overload
    def classify(self, texts: str, pairs: str | None = None, **keywords: Unpack[PredictKeywords]) -> Classification: ...
    @overload
    def classify(
        self, texts: Iterable[str], pairs: Iterable[str] | None = None, **keywords: Unpack[PredictKeywords]
    ) -> list[Classification]: ...
    def classify(
        self, texts: Texts, pairs: Texts | None = None, **keywords: Unpack[PredictKeywords]
    ) -> Classification | list[Classification]:
        """The class, classes or score of each text or pair of texts, with probabilities.

        >>> Albert("sentiment").classify("what a lovely film").label  # doctest: +SKIP
        'positive'
        """
        from albertkit.runtime.predict import predict, text_examples

        return _one_or_all(predict(self, text_examples(texts, pairs), "classify", **keywords), isinstance(texts, str))

    @overload
    def tag(self, texts: str, **keywords: Unpack[PredictKeywords]) -> TagResult: ...
    @overload
    def tag(self, texts: Iterable[str], **keywords: Unpack[PredictKeywords]) -> list[TagResult]: ...
    def tag(self, texts: Texts, **keywords: Unpack[PredictKeywords]) -> TagResult | list[TagResult]:
        """The entities in each text, as character spans.

        >>> Albert("entities").tag("Ann lives in Rome").spans  # doctest: +SKIP
        """
        from albertkit.runtime.predict import predict, word_examples

        return _one_or_all(predict(self, word_examples(texts), "tag", **keywords), isinstance(texts, str))

    @overload
    def understand(self, texts: str, **keywords: Unpack[PredictKeywords]) -> IntentResult: ...
    @overload
    def understand(self, texts: Iterable[str], **keywords: Unpack[PredictKeywords]) -> list[IntentResult]: ...
    def understand(self, texts: Texts, **keywords: Unpack[PredictKeywords]) -> IntentResult | list[IntentResult]:
        """Intent and slots of each text; a classification model predicts intents without slots.

        >>> Albert("intents").understand("wake me at seven").intent  # doctest: +SKIP
        'alarm_set'
        """
        from albertkit.runtime.predict import predict_intents

        return _one_or_all(predict_intents(self, texts, **keywords), isinstance(texts, str))

    @overload
    def track(self, turns: str, **keywords: Unpack[PredictKeywords]) -> DialogueState: ...
    @overload
    def track(
        self, turns: Iterable[str | tuple[str, str] | DialogueTurn], **keywords: Unpack[PredictKeywords]
    ) -> list[DialogueState]: ...
    def track(
        self, turns: str | Iterable[str | tuple[str, str] | DialogueTurn], **keywords: Unpack[PredictKeywords]
    ) -> DialogueState | list[DialogueState]:
        """The dialogue state after each turn: what the user wants at this point.

        A turn is the user's text, or a pair of the preceding system text and the user's text. Each call starts a new
        dialogue. To track several dialogues in one call, pass `DialogueTurn` objects, which name their dialogue.

        >>> Albert("dialogues").track(["a cheap hotel", ("In which area?", "the north")])[-1]  # doctest: +SKIP
        """
        from albertkit.runtime.predict import dialogue_turns, predict

        return _one_or_all(predict(self, dialogue_turns(turns), "dialogue", **keywords), isinstance(turns, str))

    def answer(self, question: str, context: str, **keywords: Unpack[PredictKeywords]) -> AnswerResult:
        """The span of the context that answers the question; empty if there is no answer.

        >>> Albert("questions").answer("Who sat?", "The cat sat.").text  # doctest: +SKIP
        'The cat'
        """
        from albertkit.runtime.predict import predict
        from albertkit.tasks.examples import QuestionExample

        check_string("question", question)
        check_string("context", context)
        result: AnswerResult = predict(self, [QuestionExample("0", question, context)], "answer", **keywords)[0]
        return result

    def choose(
        self, question: str, context: str, choices: Iterable[str], **keywords: Unpack[PredictKeywords]
    ) -> ChoiceResult:
        """The choice that answers the question about the context.

        >>> Albert("choices").choose("Where is Tom?", "Tom went home.", ["at work", "at home"])  # doctest: +SKIP
        """
        from albertkit.runtime.predict import predict
        from albertkit.tasks.examples import ChoiceExample

        check_string("question", question)
        check_string("context", context)
        if isinstance(choices, str):
            raise AlbertkitError(f"choices is one text, {choices!r:.40}. Pass the choices in a list.")
        example = ChoiceExample(context, question, tuple(embedding.list_texts(choices)))
        result: ChoiceResult = predict(self, [example], "choose", **keywords)[0]
        return result

    def explain(
        self,
        text: str,
        *,
        pair: str | None = None,
        question: str | None = None,
        **settings: Unpack[ExplainKeywords],
    ) -> Explanation:
        """Explain a prediction: word attributions, attention and layer predictions (see docs/guides/explain.md).

        pair, question: further inputs that the model's task needs. Settings: the fields of `ExplainSettings`, such
        as methods (occlusion, gradients) and target (the output to explain).

        >>> Albert().explain("a cat sat on the mat").to_dict()  # doctest: +SKIP
        """
        from albertkit.explain import Explainer, ExplainInput, ExplainSettings

        texts = ExplainInput(text, pair, question)
        return Explainer(self).explain(texts, ExplainSettings(**settings))


def _one_or_all(results: list[T], single: bool) -> T | list[T]:
    return results[0] if single else results
