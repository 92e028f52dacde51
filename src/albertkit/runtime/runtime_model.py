"""`RuntimeModel`: a stored model opened for inference, and the depths at which it may be used. No torch.

In: a `StoredModel` (`artifact.py`). Out: its engine, heads, tokenizer and metadata, with every option checked.
Before this file: `engine.py`. After it: `embed.py`, `predict.py`, `mask_filling.py`, `generate.py`; `albert.Albert`
is its subclass for users.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from albertkit import builtin
from albertkit.artifact import ArtifactMetadata, StoredModel, read_stored, require_tokenizer
from albertkit.config import AlbertConfig
from albertkit.cpu_cores import cores
from albertkit.errors import AlbertkitError, check_count, check_type
from albertkit.head_graph import HeadSession
from albertkit.quantized import quantize_weights, unpack_weights
from albertkit.runtime.batching import TOKEN_BUDGET
from albertkit.runtime.engine import Engine, InferenceEngine, open_engine
from albertkit.runtime.graph import Weights
from albertkit.runtime.graph_builder import as_float
from albertkit.runtime.packed_texts import PackedOutputs
from albertkit.runtime.torch_engine import TorchEngine
from albertkit.weights import heads_in

if TYPE_CHECKING:
    from albertkit.runtime.generate import TextGenerator
    from albertkit.tasks.task import Task

Depth = int | Literal["full"]
MAX_DEPTH = 1024
CALIBRATION_TEXTS = 16  # texts that a model opened with `bits` is calibrated on


class RuntimeModel:
    """A model ready to run.

    source: its folder or name. bits: 8 or 4 quantizes a float model. threads: processors to use. device: "cuda" uses
    torch. precision: float32, or on a GPU bf16 or float16. depth: default number of layers to apply ("full" for all).
    token_budget: maximum tokens per batch (`batching.py`).
    """

    def __init__(
        self,
        stored: StoredModel,
        *,
        source: str | Path | None = None,
        bits: int | None = None,
        threads: int | None = None,
        device: str = "cpu",
        precision: str = "float32",
        depth: Depth | None = None,
        token_budget: int = TOKEN_BUDGET,
    ) -> None:
        check_count("token_budget", token_budget)
        check_type("device", device, (str,), "cpu or cuda")
        weights = stored.weights if bits is None else quantize_stored(stored, bits)
        self.tokenizer = require_tokenizer(stored, str(source))
        self.config, self.metadata = stored.config, stored.metadata
        self.source, self.bits, self.device, self.token_budget = source, bits, device, token_budget
        self.depth = self.check_depth(depth if depth is not None else stored.metadata.depth)
        kind = stored.metadata.quantization or (f"int{bits}" if bits else "float")
        self._name = f"{stored.identity[:16]}-{kind}-{stored.metadata.pooling}", f"{self.max_tokens}"
        self.heads = {
            head: (as_float(weights[f"heads.{head}.linear.weight"]), as_float(weights[f"heads.{head}.linear.bias"]))
            for head in heads_in(weights)
            if f"heads.{head}.linear.weight" in weights
        }
        self.custom_heads = self._open_heads(stored.head_graphs, weights, threads or cores())
        self.can_fill_masks = "heads.mlm.bias" in weights
        self._generation_weights: Weights = dict(weights) if stored.metadata.task == "generate" else {}
        self.engine: InferenceEngine = open_engine(self.config, weights, threads, device, precision)
        # Computes many texts at once on a device, in this process or in another; None: the engine computes batches.
        self.packed_outputs: PackedOutputs | None = (
            self.engine.outputs if isinstance(self.engine, TorchEngine) else None
        )

    def _open_heads(self, graphs: Mapping[str, bytes], weights: Weights, threads: int) -> dict[str, HeadSession]:
        """The custom heads of a fine-tuned model."""
        if not graphs:
            return {}
        from albertkit.tasks import TASKS

        graphs = graphs if self.metadata.task in TASKS else {}
        return {
            head: HeadSession(head, graph, weights, threads, self.task.outputs(head)) for head, graph in graphs.items()
        }

    @property
    def name(self) -> str:
        """Identifies everything that changes a vector."""
        return self.name_at(self.depth)

    def name_at(self, depth: int) -> str:
        """The name of this model opened at another depth."""
        return f"{self._name[0]}-depth{depth}-{self._name[1]}"

    @property
    def dim(self) -> int:
        """Length of a sentence vector."""
        return self.config.hidden_size

    @property
    def max_tokens(self) -> int:
        """Maximum tokens per pass, including special tokens."""
        return self.config.max_position_embeddings

    @property
    def max_task_tokens(self) -> int:
        """Maximum tokens per example in the training of the model's task."""
        length = self.metadata.details.get("max_length")
        return min(length, self.max_tokens) if isinstance(length, int) and length > 0 else self.max_tokens

    @cached_property
    def special_tokens(self) -> tuple[list[int], list[int]]:
        """The special tokens before and after a text."""
        tokenizer = self.tokenizer
        first = [] if tokenizer.cls_id is None else [tokenizer.cls_id]
        last = [] if tokenizer.sep_id is None else [tokenizer.sep_id]
        if tokenizer.kind == "phoneme":
            first = last = [tokenizer.pad_id]
        if self.max_tokens <= len(first) + len(last):
            raise AlbertkitError(
                f"this model supports {self.max_tokens} tokens, too few for a text and its special tokens."
            )
        return first, last

    @cached_property
    def task(self) -> Task:
        """The task the model was fine-tuned for, a class of `tasks/`. Raises for a model without a task."""
        from albertkit.tasks import load_task

        return load_task(self.metadata)

    @cached_property
    def generator(self) -> TextGenerator:
        """The text generator, opened on first use."""
        from albertkit.runtime.generate import TextGenerator

        if not isinstance(self.engine, Engine):
            raise AlbertkitError(f"device={self.device!r} cannot generate texts. Omit device to use the CPU.")
        generator = TextGenerator(self.config, self._generation_weights, self.engine, self.tokenizer)
        self._generation_weights = {}
        return generator

    @cached_property
    def mask_model(self) -> RuntimeModel:
        """The model that fills masks: this model, or for the built-in vector model the built-in one with a
        masked-language-model head.
        """
        other = None if self.can_fill_masks else builtin.mask_model(self.source)
        return RuntimeModel(read_stored(other), source=other, threads=self.engine.threads) if other else self

    # Depth -------------------------------------------------------------------------------------------------------

    def check_depth(self, depth: Depth | None) -> int:
        """The number of layers to apply; None and "full" are all of them."""
        if depth is not None and self.config.options.static:
            raise AlbertkitError(f"depth={depth!r} is not available: a static model has no layers. Omit depth.")
        depth = self.config.num_hidden_layers if depth in (None, "full") else depth
        depth = int(depth) if isinstance(depth, np.integer) else depth
        if isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth <= MAX_DEPTH:
            raise AlbertkitError(
                f"depth is {depth!r}; apply 1 to {MAX_DEPTH} layers (this model has {self.config.num_hidden_layers}), "
                "or pass 'full' for all"
            )
        return depth

    def layers_to_apply(self, depth: Depth | None = None, layer: int | None = None, pooling: str = "mean") -> int:
        """Layers to apply for `depth`, or to reach the hidden states of `layer` (0 the embeddings, -1 the last)."""
        if self.config.options.static and (layer is not None or depth is not None):
            raise AlbertkitError(
                "layer and depth are not available: a static model has one vector per token. Omit layer and depth."
            )
        deepest = max(self.depth, self.config.num_hidden_layers) if depth is None else self.check_depth(depth)
        depth = self.depth if depth is None else deepest
        if layer is None:
            return depth
        if isinstance(layer, bool) or not isinstance(layer, int | np.integer) or not -depth - 1 <= layer <= deepest:
            raise AlbertkitError(
                f"layer is {layer!r}; there are layers 0 (the embeddings) to {deepest}. Pass one of them."
            )
        if pooling == "pooler" and layer not in (depth, -1):
            raise AlbertkitError("the pooler uses the last layer. Choose mean, cls or max for another one.")
        return int(layer) if layer >= 0 else depth + 1 + int(layer)


def quantize_stored(stored: StoredModel, bits: int) -> Weights:
    """The weights of a float model in 8 or 4 bits, calibrated on a few example texts. Weights of a quantized model are
    unchanged.
    """
    if stored.metadata.quantization == f"int{bits}":
        return stored.weights
    if stored.metadata.quantization is not None:
        raise AlbertkitError(
            f"bits={bits} is not available: the model is stored as {stored.metadata.quantization}. Open the float model"
        )
    from albertkit.runtime.activation_moments import example_tokens, token_moments

    floats = {name: array for name, array in stored.weights.items() if isinstance(array, np.ndarray)}
    texts = example_tokens(stored.config, stored.tokenizer, CALIBRATION_TEXTS)
    moments = token_moments(stored.config, stored.weights, texts)
    return unpack_weights(
        quantize_weights(floats, bits, moments, cancel_errors=False),
        {name: array.shape for name, array in floats.items()},
    )


def named_depth(name: str) -> int | None:
    """The depth in the name of an opened model; None if it has none, or several.

    >>> named_depth("f6912c51b4acdb0e-int8-mean-depth6-512")
    6
    """
    depths = {int(depth) for depth in re.findall(r"-depth(\d{1,4})-", name)}
    return depths.pop() if len(depths) == 1 else None


# Depths a model was trained for ----------------------------------------------------------------------------------


def trained_depths(config: AlbertConfig, metadata: ArtifactMetadata, deepest: int | None = None) -> tuple[int, ...]:
    """The depths for which a model was trained: those of its distillation and its full depth, otherwise every depth.

    deepest: the last depth of interest; the default is the full depth.

    >>> history = ({"step": "distill", "settings": {"depths": "3,6"}}, {"step": "frozen classifier"})
    >>> trained_depths(AlbertConfig(num_hidden_layers=12), ArtifactMetadata(history=history))
    (3, 6, 12)
    """
    full = {metadata.depth or config.num_hidden_layers, config.num_hidden_layers}
    deepest = max(full) if deepest is None else deepest
    distilled = distilled_depths(metadata.history)
    depths = range(1, deepest + 1) if distilled is None else sorted({*distilled, *full})
    return tuple(depth for depth in depths if 1 <= depth <= deepest)


def distilled_depths(history: Sequence[Mapping[str, Any]]) -> tuple[int, ...] | None:
    """The depths for which the vectors of a model were distilled; None if any depth may be good.

    >>> distilled_depths([{"step": "distill", "settings": {"depths": "3,6"}}, {"step": "quantize"}])
    (3, 6)
    >>> distilled_depths([{"step": "distill", "settings": {"depths": "3,6"}}, {"step": "elastic"}])
    """
    for step in reversed(history):
        if step.get("step") in ("pretrain", "finetune", "elastic"):
            return None
        if step.get("step") == "distill":
            depths = step.get("settings", {}).get("depths")
            if not isinstance(depths, str) or not depths.replace(",", "").replace(" ", "").isdecimal():
                return None
            return tuple(sorted({int(depth) for depth in depths.split(",") if depth.strip()}))
    return None


def has_trained_vectors(metadata: ArtifactMetadata) -> bool:
    """Whether a model was trained for sentence vectors; a head on frozen vectors keeps those of its base model.

    >>> has_trained_vectors(ArtifactMetadata(task="match")), has_trained_vectors(ArtifactMetadata(task="pretrain"))
    (True, False)
    """
    return metadata.task in ("embed", "match") or metadata.details.get("reads") == "vector"


def is_full_depth_only(history: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last training of a model was for a task at its full depth only.

    >>> is_full_depth_only([{"step": "elastic"}, {"step": "quantize"}])
    False
    >>> is_full_depth_only([{"step": "elastic"}, {"step": "finetune"}])
    True
    """
    trainings = ("pretrain", "distill", "finetune", "elastic")
    last: Mapping[str, Any] = next((s for s in reversed(history) if s.get("step") in trainings), {})
    depths = last.get("depths")
    return last.get("step") == "finetune" or (isinstance(depths, Mapping) and depths.get("elastic") is False)


def check_trained_depth(config: AlbertConfig, metadata: ArtifactMetadata, depth: int, remedy: str = "") -> None:
    """Raise for a depth for which a model's vectors were not trained; `remedy` is added to the error."""
    if depth in trained_depths(config, metadata, depth):
        return
    shown = ", ".join(map(str, trained_depths(config, metadata)))
    raise AlbertkitError(
        f"depth={depth} is not available: this model was trained for depths {shown}. Pass one of these{remedy}."
    )
