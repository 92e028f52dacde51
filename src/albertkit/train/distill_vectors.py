"""Sentence vectors distilled from teachers at several depths and widths at once: a training task for `loop.py`.

In: a pre-trained model, and `Passages` with their targets (`teachers.py`). After this file: `distill.py`. A batch
contains texts of one length, so nothing is padded. The mean vector after each depth, cut to each width, is compared
with the target cut to the same width, by `distill_task.vector_loss`.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.artifact import Artifact
from albertkit.data.masking import to_device
from albertkit.data.passages import Passages
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch
from albertkit.model.albert_model import to_tensors
from albertkit.model.encoder import Layer
from albertkit.tokenizer import Tokenizer
from albertkit.train.checkpoint import TrainState
from albertkit.train.distill_data import VectorDistillSettings
from albertkit.train.distill_task import similarity_rows, vector_loss
from albertkit.train.distributed import ProcessGroup, call_in_dtype, compute_dtype
from albertkit.train.loop import Alarm
from albertkit.train.train_settings import TrainSettings, recorded_settings

TARGETS = "targets.npy"  # the vectors of teachers for the passages
RUN = 16  # texts of similar meaning in a row
STEP = 64  # rows of a batch are a multiple of this, if there are enough
ITERATIONS = 4  # of the power method: an approximate principal direction is enough


class VectorDistillObjective(nn.Module):
    """The loss of texts against their target vectors."""

    def __init__(self, model: AlbertModel, distill: VectorDistillSettings) -> None:
        super().__init__()
        self.model = model
        self.depths, self.widths = distill.numbers("depths"), distill.numbers("widths")
        self.dtype = torch.float32

    def forward(self, depths: Sequence[int], ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(loss, sums of `VectorDistillTask.metric_names`)."""
        by_depth = self.vectors(ids, depths)
        targets = targets.float()
        target_rows = [similarity_rows(F.normalize(targets[:, :width])) for width in self.widths]
        losses = [self.compare(vectors, targets, target_rows) for vectors in by_depth]
        cosines = [
            F.cosine_similarity(v[:, : targets.shape[1]], targets[:, : v.shape[1]]).detach().sum() for v in by_depth
        ]
        sums, places = torch.zeros(len(self.depths), 2, device=ids.device), [self.depths.index(d) for d in depths]
        sums[places, 0], sums[places, 1] = torch.stack(cosines), float(len(ids))
        return torch.stack(losses).mean(), sums

    def vectors(self, ids: Tensor, depths: Sequence[int]) -> list[Tensor]:
        """(texts, length) → the mean vector of each text after each depth."""
        batch = Batch.unpad(ids)
        out = call_in_dtype(self.model, self.dtype, batch, depth=depths[-1], keep_layers=True, heads=()).encoded
        return [out.layers[d].view(*ids.shape, -1).float().mean(1) for d in depths]

    def compare(self, vectors: Tensor, targets: Tensor, target_rows: Sequence[Tensor]) -> Tensor:
        """The mean loss over widths; the target rows are the same for every depth."""
        losses = [
            vector_loss(vectors[:, :width], targets[:, :width], rows)
            for width, rows in zip(self.widths, target_rows, strict=True)
        ]
        return torch.stack(losses).mean()


class VectorDistillTask:
    """Distillation of sentence vectors, for `loop.train`."""

    has_fixed_shape = False
    dev_size = 0

    def __init__(
        self, student: Artifact, passages: Path, settings: TrainSettings, distill: VectorDistillSettings
    ) -> None:
        self.initial_model, self.settings, self.distill = student, settings, distill
        self.passages = Passages.open(passages)
        self.targets = np.load(passages / TARGETS, mmap_mode="r", allow_pickle=False)
        if student.tokenizer is None or len(self.targets) != len(self.passages):
            raise AlbertkitError(
                f"{passages} has {len(self.passages)} texts, but {len(self.targets)} targets. Delete the folder "
                "to compute them again."
            )
        self.tokenizer = student.tokenizer
        torch.manual_seed(settings.seed)
        needed = {n: a for n, a in student.weights.items() if n.startswith("encoder.") and ".pooler." not in n}
        self.model = AlbertModel.from_artifact(dataclasses.replace(student, weights=needed))
        self.objective = VectorDistillObjective(self.model, distill)
        self.metric_names = tuple(f"cosine_{depth}" for depth in self.objective.depths)  # cosine with the target
        self.selection_metric = self.metric_names[-1]
        check_widths(self.distill, min(student.config.hidden_size, self.targets.shape[1]))
        lengths = self.passages.lengths
        self.lengths, self.firsts = np.unique(lengths, return_index=True)
        self.counts = np.diff(self.firsts, append=len(lengths))
        enough = (self.counts >= 8) & (self.lengths + 2 <= student.config.max_position_embeddings)
        self.lengths, self.firsts, self.counts = self.lengths[enough], self.firsts[enough], self.counts[enough]
        if not len(self.lengths):
            raise AlbertkitError(f"{passages} has fewer than 8 texts of every length. Use a larger corpus.")
        self.length_probabilities = self.counts / self.counts.sum()
        self.order: np.ndarray | None = None
        self.tables: tuple[PassageTable, Tensor] | None = None

    def compile(self) -> None:
        """Compile one layer for all lengths."""
        for module in self.model.encoder.modules():
            if isinstance(module, Layer):
                module.compile(dynamic=True)

    def next_batch(self, step: int, progress: float, processes: ProcessGroup) -> tuple[list[tuple[Any, ...]], int]:
        """Texts of one length."""
        self.objective.dtype = compute_dtype(self.settings, processes.device)
        rng = np.random.default_rng([self.settings.seed, 7, step, processes.rank])
        ids, targets = self.draw_texts(rng, processes.device)
        return [(self.draw_depths(step), ids, targets)], ids.numel() * processes.world_size

    def draw_depths(self, step: int) -> tuple[int, ...]:
        """The depths of a step: all or the shallower half; of these all, or a few and the deepest."""
        rng, depths = np.random.default_rng([self.settings.seed, 8, step]), self.objective.depths
        if rng.random() < self.distill.shallow_share:
            depths = depths[: -(-len(depths) // 2)]
        if 0 < self.distill.sampled_depths < len(depths) - 1:
            depths = (*sorted(rng.choice(depths[:-1], self.distill.sampled_depths, replace=False).tolist()), depths[-1])
        return depths

    def draw_texts(self, rng: np.random.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
        """Ids and targets of texts of one length. The length is drawn by its frequency."""
        row = int(rng.choice(len(self.lengths), p=self.length_probabilities))
        length, first, count = int(self.lengths[row]), int(self.firsts[row]), int(self.counts[row])
        rows = min(count, self.distill.max_texts, max(8, self.distill.batch_tokens // (length + 2)))
        drawn = rng.permutation(count)[:rows] if count < 4 * rows else rng.integers(0, count, rows)
        runs = int(rows * self.distill.neighbor_share) // RUN
        if runs:
            places = (rng.integers(0, max(1, count - RUN + 1), runs)[:, None] + np.arange(RUN)).ravel()
            drawn[: len(places)] = self.order_by_meaning(device)[first + places] - first
        chosen = rng.permutation(np.unique(first + drawn))
        chosen = chosen[: len(chosen) // STEP * STEP or len(chosen)]  # few distinct shapes let a GPU reuse its memory
        if self.tables is None:
            self.tables = PassageTable(self.passages, self.tokenizer, device), load_on_device(self.targets, device)
        table, targets = self.tables
        return table.rows(chosen), targets[to_device(chosen, targets.device)].to(device)

    def order_by_meaning(self, device: torch.device) -> np.ndarray:
        """The texts of each length in an order of similar meaning; computed once."""
        if self.order is None:
            self.order = np.arange(len(self.passages))
            for first, count in zip(self.firsts.tolist(), self.counts.tolist(), strict=True):
                vectors = torch.from_numpy(np.array(self.targets[first : first + count])).to(device)
                order = neighbor_order(vectors, seed=self.settings.seed).cpu().numpy()
                self.order[first : first + count] = first + order
        return self.order

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Cosines on fixed batches."""
        device = next(self.model.parameters()).device
        sums = torch.zeros(len(self.metric_names), 2, device=device)
        with torch.compiler.set_stance("force_eager"):
            for number in range(8):
                texts = self.draw_texts(np.random.default_rng([10**6, number]), device)
                sums += self.objective(self.objective.depths, *texts)[1]
        return {n: a / b for n, (a, b) in zip(self.metric_names, sums.tolist(), strict=True)}

    def check_metrics(self, numbers: dict[str, float], progress: float, step: int) -> Alarm | None:
        """Always None: divergence shows as a number that is not finite, which the loop detects."""
        return None

    def data_position(self) -> dict[str, Any]:
        """Empty: the step determines the texts."""
        return {}

    def restore(self, artifact: Artifact, data: dict[str, Any]) -> None:
        """Restore saved weights."""
        self.model.load_state_dict(to_tensors(artifact.weights))

    def to_artifact(self, metrics: dict[str, float], state: TrainState) -> Artifact:
        """The current model, for vectors with mean pooling."""
        step = {
            "step": "distill",
            "steps": state.step,
            "tokens": state.tokens,
            "minutes": state.minutes,
            "texts": len(self.passages),
            "settings": recorded_settings(self.settings, self.distill),
        }
        before = self.initial_model.metadata
        meta = dataclasses.replace(
            before,
            task="embed",
            pooling="mean",
            normalize=True,
            quantization=None,
            depth=None,
            prompts={},
            metrics={**before.metrics, "vectors": metrics},
            history=(*before.history, step),
        )
        return Artifact(self.model.config, self.model.weights(), self.tokenizer, meta)


def check_widths(distill: VectorDistillSettings, width: int) -> None:
    """Raise an error for widths above that of the vectors, before teachers compute anything."""
    widths = distill.numbers("widths")
    if widths[-1] > width:
        available = ",".join(str(n) for n in sorted({n for n in widths if n < width} | {width}))
        raise AlbertkitError(
            f"width {widths[-1]} is not available: the vectors have {width} numbers. Pass --widths {available}."
        )


# Passages --------------------------------------------------------------------------------------------------------


class PassageTable:
    """The passages as token ids, on the model's device."""

    def __init__(self, passages: Passages, tokenizer: Tokenizer, device: torch.device) -> None:
        self.ends, self.device = passages.ends, device
        self.specials = (tokenizer.cls_id or 0, tokenizer.sep_id or 0)
        dtype = np.int16 if passages.ids.dtype == np.uint16 else np.int32  # torch has few unsigned types; -1 is 65,535
        self.ids = load_on_device(passages.ids.view(dtype), device)

    def rows(self, chosen: np.ndarray) -> Tensor:
        """Texts of one length, (texts, length with special tokens)."""
        length = int(self.ends[chosen[0]] - (self.ends[chosen[0] - 1] if chosen[0] else 0))
        firsts = to_device(self.ends[chosen] - length, self.ids.device)
        ids = self.ids[firsts[:, None] + torch.arange(length, device=firsts.device)].to(self.device).long()
        if self.ids.dtype == torch.int16:
            ids = ids & 0xFFFF
        first, last = (ids.new_full((len(ids), 1), special) for special in self.specials)
        return torch.cat([first, ids, last], 1)


def load_on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """An array on the device if it takes less than a quarter of its free memory, otherwise in main memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the array is read-only; nothing is written
        tensor = torch.from_numpy(np.asarray(array))
    if device.type == "cuda" and array.nbytes < torch.cuda.mem_get_info(device)[0] / 4:
        tensor = tensor.to(device)
    return tensor


def neighbor_order(vectors: Tensor, leaf: int = 8, seed: int = 0) -> Tensor:
    """An order of (texts, width) vectors in which neighbours have similar meaning: the leaves of a balanced tree.

    The texts are halved along the direction in which they differ most, and each half again, down to `leaf` texts; all
    parts of one level are halved together.
    """
    count, width = vectors.shape
    generator = torch.Generator().manual_seed(seed)
    order = torch.arange(count, device=vectors.device)
    size = count
    while size > leaf:
        parts = -(-count // size)
        missing = parts * size - count
        table = torch.cat([order, order.new_full((missing,), -1)]).view(parts, size)  # the last part may be short
        inside = (table >= 0).unsqueeze(-1)
        rows = vectors[table.clamp(min=0)].float() * inside
        rows = (rows - rows.sum(1, keepdim=True) / inside.sum(1, keepdim=True).clamp(min=1)) * inside
        direction = torch.randn(parts, width, 1, generator=generator).to(vectors.device)
        for _ in range(ITERATIONS):
            direction = rows.transpose(1, 2) @ (rows @ direction)
            direction = direction / direction.norm(dim=1, keepdim=True).clamp(min=1e-12)
        places = (rows @ direction).squeeze(-1).masked_fill(table < 0, float("inf"))
        order = table.gather(1, places.argsort(1)).flatten()
        order = order[order >= 0]
        size = -(-size // 2)
    return order
