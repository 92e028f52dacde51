"""`TorchEngine`: token ids to hidden states, pooled vectors and scores through torch, on a GPU.

In: config, weights, and a `TokenBatch` (`batching.py`) or `PackedTexts` (`packed_texts.py`). Out: numpy arrays. For
packed texts everything from the embedding to the output is computed on the device, in groups of similar length, and
only outputs come back. Before this file: `model/encoder.py`. After it: `engine.py` chooses an engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError, check_choice, need, short_reason
from albertkit.runtime.batching import TOKEN_BUDGET, TokenBatch
from albertkit.runtime.graph import Weights
from albertkit.runtime.graph_builder import as_float
from albertkit.runtime.packed_texts import OutputRequest, PackedTexts, PaddedGroup, padded_groups

if TYPE_CHECKING:
    from torch import Tensor

    from albertkit.model import Batch

NO_POOLER = "this model has no pooler. Choose the pooling mean, cls or max."
NO_MLM_HEAD = "this model has no masked-language-model head, so it cannot fill masks. Use a pre-trained checkpoint."
PRECISIONS = ("float32", "bf16", "float16")
GPU_TOKENS = 49_152  # of a group: the work of a layer takes longer than starting its kernels


def check_precision(device: str, precision: str) -> None:
    """Raise for an unknown precision, or one that the device does not compute in."""
    check_choice("precision", precision, PRECISIONS)
    if device == "cpu" and precision != "float32":
        raise AlbertkitError(
            f"precision={precision!r} is not available on the CPU, which computes in float32. Omit precision."
        )


def check_device(device: str) -> None:
    """Raise if torch or the device is missing."""
    torch = need("torch", "train", f"device={device!r}")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise AlbertkitError(
            f"device={device!r} is not available: torch finds no GPU on this machine. Omit device to use the CPU."
        )


@dataclass(frozen=True)
class DeviceTexts:
    """Packed texts on the device, sorted from long to short."""

    ids: Tensor  # (tokens,) int32, in the order of the input
    segments: Tensor | None  # (tokens,) uint8
    starts: Tensor  # (texts,) int64, first token of each text
    lengths: Tensor  # (texts,) int64
    order: Tensor  # (texts,) int64, position of each text in the input
    host_lengths: np.ndarray  # `lengths` on the CPU


@dataclass(frozen=True)
class PaddedTexts:
    """A group of texts, padded to one length."""

    batch: Batch
    inside: Tensor  # (texts, length) bool: False at padding
    tokens: Tensor  # (texts, length) int64: position of each token in the input; at padding, the number of tokens
    texts: Tensor  # (texts,) int64: position of each text in the input
    lengths: Tensor  # (texts,) int64


class TorchEngine:
    """A model on `device` ("cuda", "mps", or "torch" for torch on the CPU).

    precision: float32, or bf16 or float16 for a GPU, which computes these many times faster.
    """

    def __init__(self, config: AlbertConfig, weights: Weights, device: str, precision: str = "float32") -> None:
        from albertkit.artifact import Artifact
        from albertkit.model import AlbertModel

        check_device(device)
        self.torch = need("torch", "train", f"device={device!r}")
        self.device = "cpu" if device == "torch" else device
        self.is_gpu = self.device.startswith("cuda")
        dtypes = {"bf16": self.torch.bfloat16, "float16": self.torch.float16}
        self.dtype = dtypes.get(precision, self.torch.float32)
        model_weights = {n: as_float(w) for n, w in weights.items() if n.startswith(("encoder.", "heads.mlm."))}
        self.config, self.threads = config, self.torch.get_num_threads()
        try:
            self.model = AlbertModel.from_artifact(Artifact(config, model_weights)).to(self.device, self.dtype)
        except (RuntimeError, AssertionError) as error:
            raise AlbertkitError(f"torch cannot use device {device!r}: {short_reason(error)}") from None
        self.token_budget = GPU_TOKENS if self.is_gpu else TOKEN_BUDGET
        self._lock = Lock()

    def compile(self) -> None:
        """Compile the layers, which takes some time and pays for many texts."""
        from albertkit.model.encoder import Layer

        for module in self.model.encoder.modules():
            if isinstance(module, Layer):
                module.compile_after_attention()

    # Packed texts ------------------------------------------------------------------------------------------------

    def outputs(self, texts: PackedTexts, depth: int, requests: Sequence[OutputRequest]) -> list[np.ndarray]:
        """One array per request, see `PackedOutputs`. Several threads may call it: one prepares its texts while the
        device computes for another.
        """
        config = self.config
        texts.check(config.vocab_size, config.type_vocab_size, config.max_position_embeddings)
        try:
            with self._lock, self.torch.no_grad(), self._on_device():
                results = [self._to_host(result) for result in self._compute(texts, depth, requests)]
                done = self.torch.cuda.Event() if self.is_gpu else None
                if done is not None:
                    done.record()
            if done is not None:
                done.synchronize()
        except self.torch.OutOfMemoryError:
            raise AlbertkitError(
                f"the memory of device {self.device} is not enough for {len(texts.ids):,} tokens. "
                "Stop other programs that use it, or use the CPU."
            ) from None
        return [np.asarray(tensor.numpy()) for tensor in results]

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """The stream of the device, and the attention kernels to use: cuDNN would plan anew for every shape."""
        if not self.is_gpu:
            yield
            return
        from torch.nn.attention import SDPBackend, sdpa_kernel

        kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        with self.torch.cuda.device(self.device), sdpa_kernel(kernels):
            yield

    def _compute(self, texts: PackedTexts, depth: int, requests: Sequence[OutputRequest]) -> list[Tensor]:
        torch = self.torch
        moved = self._move(texts)
        dense = [
            None if r.weight is None or r.bias is None else (self._to_device(r.weight), self._to_device(r.bias))
            for r in requests
        ]
        widths = [self.config.hidden_size if r.weight is None else len(r.weight) for r in requests]
        counts = [len(texts.ids) + 1 if r.pooling is None else len(texts.lengths) for r in requests]
        results = [torch.empty(n, width, device=self.device) for n, width in zip(counts, widths, strict=True)]
        for group in padded_groups(moved.host_lengths, self.token_budget, self.config.max_position_embeddings):
            padded = self._pad(moved, group)
            hidden = self._encode(padded.batch, depth).unflatten(0, padded.inside.shape)  # (texts, length, H)
            for request, layer, result in zip(requests, dense, results, strict=True):
                if request.pooling is None:
                    vectors, rows = hidden.float().flatten(0, 1), padded.tokens.flatten()
                else:
                    vectors, rows = self._pool(hidden, padded, request.pooling), padded.texts
                if layer is not None:
                    vectors = torch.nn.functional.linear(vectors, *layer)
                result.index_copy_(0, rows, vectors)
        # the row after the last token collects padding
        return [x[: len(texts.ids)] if r.pooling is None else x for x, r in zip(results, requests, strict=True)]

    def _move(self, texts: PackedTexts) -> DeviceTexts:
        order = np.argsort(-texts.lengths, kind="stable")
        lengths = texts.lengths[order].astype(np.int64)
        return DeviceTexts(
            self._to_device(texts.ids),
            None if texts.segments is None else self._to_device(texts.segments),
            self._to_device(texts.starts[order]),
            self._to_device(lengths),
            self._to_device(order),
            lengths,
        )

    def _pad(self, texts: DeviceTexts, group: PaddedGroup) -> PaddedTexts:
        from albertkit.model import Batch

        part, length, torch = slice(group.first, group.last), group.length, self.torch
        positions = torch.arange(length, device=self.device).expand(group.last - group.first, -1)  # (texts, length)
        inside = positions < texts.lengths[part, None]
        tokens = (texts.starts[part, None] + positions).where(inside, len(texts.ids))
        read = tokens.where(inside, 0).flatten()
        ids = texts.ids[read].long()
        segments = torch.zeros_like(ids) if texts.segments is None else texts.segments[read].long()
        mask = None if (texts.host_lengths[part] == length).all() else inside
        batch = Batch(ids, segments, positions.flatten(), ((len(positions), length),), key_mask=mask)
        return PaddedTexts(batch, inside, tokens, texts.order[part], texts.lengths[part])

    def _encode(self, batch: Batch, depth: int) -> Tensor:
        """The result at a depth, (tokens, H)."""
        hidden = self._apply(self.model.encoder.embeddings(batch), batch, 0, depth)
        return self.model.encoder.read_out(hidden, batch, depth) if depth else hidden

    def _pool(self, hidden: Tensor, padded: PaddedTexts, pooling: str) -> Tensor:
        """(texts, length, H) → (texts, H)."""
        if pooling == "cls":
            return hidden[:, 0].float()
        if pooling == "pooler":
            return self._pooler(hidden[:, 0])
        outside = ~padded.inside[..., None]
        if pooling == "max":
            return hidden.float().masked_fill(outside, float("-inf")).amax(1)
        return hidden.float().masked_fill(outside, 0.0).sum(1) / padded.lengths[:, None]

    def _pooler(self, first: Tensor) -> Tensor:
        """tanh of a dense layer over first tokens (texts, H); NaN for infinity, which tanh would hide."""
        if self.model.encoder.pooler is None:
            raise AlbertkitError(NO_POOLER)
        pooled: Tensor = self.torch.tanh(self.model.encoder.pooler(first)).float()
        return pooled.where(first.isfinite().all(1, keepdim=True), float("nan"))

    def _to_device(self, array: np.ndarray) -> Tensor:
        """A copy on the device; through pinned memory, so that nothing waits for the GPU."""
        tensor: Tensor = self.torch.from_numpy(np.ascontiguousarray(array))
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.is_gpu else tensor.to(self.device)

    def _to_host(self, tensor: Tensor) -> Tensor:
        """A copy on the CPU, complete when the device has done its work."""
        if not self.is_gpu:
            return tensor.cpu()
        return self.torch.empty(tensor.shape, pin_memory=True).copy_(tensor, non_blocking=True)

    # Padded batches ----------------------------------------------------------------------------------------------

    def run(self, batch: TokenBatch, depth: int) -> np.ndarray:
        """See `engine.Engine`."""
        packed = self._pack(batch.ids, batch.lengths, batch.segments)
        with self.torch.no_grad():
            self.model.encoder.check(packed)
            return self._unpack(self._encode(packed, depth), packed)

    def apply_layers(self, hidden: np.ndarray, lengths: np.ndarray, first: int, last: int) -> np.ndarray:
        """See `engine.Engine`."""
        with self.torch.no_grad():
            states, packed = self._states(hidden, lengths)
            return self._unpack(self._apply(states, packed, first, last), packed)

    def read_out(self, hidden: np.ndarray, lengths: np.ndarray, depth: int) -> np.ndarray:
        """See `engine.Engine`."""
        if not depth or not (self.config.options.coda_layers or self.config.options.pre_norm):
            return hidden
        with self.torch.no_grad():
            states, packed = self._states(hidden, lengths)
            return self._unpack(self.model.encoder.read_out(states, packed, depth), packed)

    def _states(self, hidden: np.ndarray, lengths: np.ndarray) -> tuple[Tensor, Batch]:
        """Padded hidden states as packed ones."""
        inside = np.arange(hidden.shape[1])[None] < lengths[:, None]
        packed = self._pack(np.zeros(hidden.shape[:2], np.int64), lengths)
        return self.torch.from_numpy(hidden[inside]).to(self.device, self.dtype), packed

    def _pack(self, ids: np.ndarray, lengths: np.ndarray, segments: np.ndarray | None = None) -> Batch:
        from albertkit.model import Batch

        torch = self.torch
        mask = torch.arange(ids.shape[1])[None] < torch.from_numpy(lengths)[:, None]
        return Batch.unpad(torch.from_numpy(ids), mask, None if segments is None else torch.from_numpy(segments)).to(
            self.device
        )

    def _apply(self, hidden: Tensor, packed: Batch, first: int, last: int) -> Tensor:
        for layer in range(self.config.coda_start(first), self.config.coda_start(last)):
            hidden = self.model.encoder.apply_layer(layer, hidden, packed, last)
        return hidden

    def _unpack(self, hidden: Tensor, packed: Batch) -> np.ndarray:
        return np.asarray(packed.pad(hidden).float().cpu().numpy())

    def pooler(self, first: np.ndarray) -> np.ndarray:
        """See `engine.Engine`."""
        with self.torch.no_grad():
            return np.asarray(self._pooler(self.torch.from_numpy(first).to(self.device, self.dtype)).cpu().numpy())

    def mlm_logits(self, hidden: np.ndarray) -> np.ndarray:
        """See `engine.Engine`."""
        from albertkit.model import Batch, EncoderOutput

        if "mlm" not in self.model.heads:
            raise AlbertkitError(NO_MLM_HEAD)
        table = self.model.encoder.embeddings
        with self.torch.no_grad():
            moved = self.torch.from_numpy(np.ascontiguousarray(hidden)).to(self.device, self.dtype)
            batch = Batch.of([[0] * len(hidden)])
            encoded = EncoderOutput(moved, None, (), batch, table.word.weight, table.projection.weight)
            return np.asarray(self.model.heads["mlm"](encoded).logits.float().cpu().numpy())
