"""The engine through torch, for a GPU: the methods and results of `InferenceEngine` (`engine.py`). Needs the [train]
extra.
"""

from __future__ import annotations

import numpy as np

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError, need
from albertkit.runtime.batching import TokenBatch
from albertkit.runtime.engine import NO_MLM_HEAD, NO_POOLER, cores
from albertkit.runtime.graph import Weights, as_float


class TorchEngine:
    """A model ready to run on `device` ("cuda", "mps", or "torch" for torch on the CPU), in float32."""

    def __init__(self, config: AlbertConfig, weights: Weights, device: str) -> None:
        self.torch = need("torch", "train", f"device={device!r}")
        from albertkit.artifact import Artifact
        from albertkit.model import AlbertModel

        self.device = "cpu" if device == "torch" else device
        if self.device.startswith("cuda") and not self.torch.cuda.is_available():
            raise AlbertkitError(
                f"device={device!r} is not available: torch finds no GPU on this machine. Omit device to use the CPU"
            )
        floats = {name: as_float(weight) for name, weight in weights.items()}
        known = {n: a for n, a in floats.items() if n.startswith(("encoder.", "heads.mlm."))}
        self.config, self.threads = config, cores()
        try:
            self.model = AlbertModel.from_artifact(Artifact(config, known)).to(self.device)
        except (RuntimeError, AssertionError) as error:
            raise AlbertkitError(f"torch cannot use device {device!r}: {str(error).splitlines()[0][:160]}") from None

    def run(self, batch: TokenBatch, depth: int) -> np.ndarray:
        """Hidden states (texts, length, H) after `depth` layers."""
        from albertkit.model import Batch

        torch = self.torch
        mask = torch.arange(batch.ids.shape[1])[None] < torch.from_numpy(batch.lengths)[:, None]
        packed = Batch.unpad(torch.from_numpy(batch.ids), mask, torch.from_numpy(batch.segments)).to(self.device)
        with torch.inference_mode():
            if depth == 0:
                hidden = self.model.encoder.embeddings(packed)
            else:
                hidden = self.model.encoder(packed, depth=depth).hidden
            out: np.ndarray = packed.pad(hidden).float().cpu().numpy()
        return out

    def apply_layers(self, hidden: np.ndarray, lengths: np.ndarray, first: int, last: int) -> np.ndarray:
        """Hidden states (texts, length, H) after layer `last`, from those after layer `first`."""
        from albertkit.model import Batch

        torch = self.torch
        mask = torch.arange(hidden.shape[1])[None] < torch.from_numpy(lengths)[:, None]
        batch = Batch.unpad(torch.zeros(hidden.shape[:2], dtype=torch.long), mask).to(self.device)
        with torch.inference_mode():
            found = torch.from_numpy(hidden)[mask].to(self.device)
            for layer in range(first, last):
                found = self.model.encoder.apply_layer(layer, found, batch)
            out: np.ndarray = batch.pad(found).float().cpu().numpy()
        return out

    def pooler(self, first: np.ndarray) -> np.ndarray:
        """tanh of a dense layer over first tokens (n, H)."""
        if self.model.encoder.pooler is None:
            raise AlbertkitError(NO_POOLER)
        with self.torch.inference_mode():
            moved = self.torch.from_numpy(first).to(self.device)
            out: np.ndarray = self.torch.tanh(self.model.encoder.pooler(moved)).cpu().numpy()
        return out

    def mlm_logits(self, hidden: np.ndarray) -> np.ndarray:
        """Scores over the vocabulary (n, V)."""
        from albertkit.model import Batch, EncoderOutput

        if "mlm" not in self.model.heads:
            raise AlbertkitError(NO_MLM_HEAD)
        table = self.model.encoder.embeddings
        with self.torch.inference_mode():
            moved = self.torch.from_numpy(np.ascontiguousarray(hidden)).to(self.device)
            batch = Batch.of([[0] * len(hidden)])
            encoded = EncoderOutput(moved, None, (), batch, table.word.weight, table.projection.weight)
            out: np.ndarray = self.model.heads["mlm"](encoded).logits.cpu().numpy()
        return out
