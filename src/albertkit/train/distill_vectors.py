"""Sentence vectors, learnt from teachers, at several depths and widths at once, while masked words are not forgotten.

In: a pre-trained model, `Passages` with their targets (`teachers.py`), and the shards for masked words. Out: a `Work` for `loop.py`.

A batch holds texts of one length, so nothing is padded. One forward pass gives the mean vector after each of some depths; each, cut to each of some
widths, is compared with the target cut alike:

    loss = 2 · (1 - cos) + KL of the rows of in-batch similarities (scale 20)

Every update also sees rows of masked words with the order of sentences, at the full depth.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.artifact import Artifact
from albertkit.data.passages import Passages
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch
from albertkit.model.albert_model import tensors_of
from albertkit.model.encoder import Layer
from albertkit.train import pretrain
from albertkit.train.checkpoint import TrainState
from albertkit.train.distill_losses import similarity_rows, vector_loss
from albertkit.train.distill_settings import VectorDistillSettings
from albertkit.train.distributed import ProcessGroup, call_in_dtype, compute_dtype
from albertkit.train.loop import Alarm
from albertkit.train.neighbours import neighbour_order
from albertkit.train.teachers import StudentVectors
from albertkit.train.train_settings import PretrainSettings, TrainSettings

RUN = 16  # texts of like meaning that come together
STEP = 64  # rows of a batch are a multiple of it, where there are as many


class VectorDistillObjective(nn.Module):
    """Texts with targets, or rows of masked words, to a loss."""

    def __init__(
        self, model: AlbertModel, words: pretrain.PretrainObjective | None, aims: VectorDistillSettings
    ) -> None:
        super().__init__()
        self.model, self.words, self.aims = model, words, aims
        self.depths, self.widths = aims.numbers("depths"), aims.numbers("widths")
        self.dtype = torch.float32

    def forward(self, kind: str, *given: Any) -> tuple[Tensor, Tensor]:
        """(loss, sums of `Distilling.metric_names`); first given is what this part of the batch counts, then, for texts, at which depths."""
        if kind == "words" and self.words is not None:
            share, *rows = given
            self.words.dtype = self.dtype
            loss, sums = self.words(*rows)
            empty = torch.zeros(len(self.depths), 2, device=sums.device)
            return share * self.aims.words * loss, torch.cat([empty, sums[:2]])
        share, depths, ids, wanted = given
        found = self.vectors(ids, depths)
        wanted = wanted.float()
        goals = [similarity_rows(F.normalize(wanted[:, :width]), self.aims.scale) for width in self.widths]
        losses = [self.compare(vectors, wanted, goals) for vectors in found]
        likeness = [F.cosine_similarity(v[:, : wanted.shape[1]], wanted[:, : v.shape[1]]).detach().sum() for v in found]
        sums = torch.zeros(len(self.depths) + 2, 2, device=ids.device)  # the last two are the masked words'
        sums[: len(likeness), 0], sums[: len(likeness), 1] = torch.stack(likeness), len(ids)
        return share * torch.stack(losses).mean(), sums

    def vectors(self, ids: Tensor, depths: Sequence[int]) -> list[Tensor]:
        """(texts, length) → the mean vector of each text after each depth."""
        batch = Batch.unpad(ids)
        out = call_in_dtype(self.model, self.dtype, batch, depth=depths[-1], keep_layers=True, heads=()).encoded
        return [out.layers[d].view(*ids.shape, -1).float().mean(1) for d in depths]

    def compare(self, vectors: Tensor, wanted: Tensor, goals: Sequence[Tensor]) -> Tensor:
        """The mean over widths of distance and of the rows of similarities, whose goals are the same for every depth."""
        losses = [
            vector_loss(vectors[:, :width], wanted[:, :width], self.aims.scale, goal)
            for width, goal in zip(self.widths, goals, strict=True)
        ]
        return torch.stack(losses).mean()


class VectorDistillTask:
    """The work of learning sentence vectors, for `loop.train`."""

    has_fixed_shape = False

    def __init__(
        self,
        start: Artifact,
        passages: Path,
        shards: Path | None,
        settings: TrainSettings,
        aims: VectorDistillSettings | None = None,
    ) -> None:
        self.initial_model, self.settings, self.aims = start, settings, aims or VectorDistillSettings()
        self.passages = Passages.open(passages)
        self.targets = np.load(passages / "targets.npy", mmap_mode="r", allow_pickle=False)
        if start.tokenizer is None or len(self.targets) != len(self.passages):
            raise AlbertkitError(
                f"{passages} has {len(self.passages)} texts and {len(self.targets)} targets; draw anew"
            )
        self.tokenizer = start.tokenizer
        self.ends = (self.tokenizer.cls_id or 0, self.tokenizer.sep_id or 0)
        torch.manual_seed(settings.seed)
        self.words: pretrain.PretrainTask | None = None
        if shards is not None and self.aims.words:
            rows = dataclasses.replace(settings, batch_size=max(1, settings.batch_size))
            self.words = pretrain.PretrainTask(
                shards,
                start.config,
                rows,
                PretrainSettings(lengths=str(min(128, start.config.max_position_embeddings)), eval_rows=512),
                start,
            )
            self.model = self.words.model
        else:
            self.model = encoder_only(start)
        inner = self.words.objective if self.words else None
        self.objective = VectorDistillObjective(self.model, inner, self.aims)
        check_widths(self.aims, min(start.config.hidden_size, self.targets.shape[1]))
        lengths = self.passages.lengths
        self.lengths, self.firsts = np.unique(lengths, return_index=True)
        self.counts = np.diff(self.firsts, append=len(lengths))
        enough = (self.counts >= 8) & (self.lengths + 2 <= start.config.max_position_embeddings)
        self.lengths, self.firsts, self.counts = self.lengths[enough], self.firsts[enough], self.counts[enough]
        if not len(self.lengths):
            raise AlbertkitError(f"{passages} holds too few texts of any one length; draw more")
        self.chances = self.counts / self.counts.sum()
        self.order: np.ndarray | None = None
        self.held: tuple[PassageTable, Tensor] | None = None
        self.flops_per_token = 3 * pretrain.operations(start.config, 64)["total"]

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Cosine with the target after each depth, then masked words."""
        return (*(f"cosine_{d}" for d in self.objective.depths), "mlm_loss", "mlm_accuracy")

    @property
    def selection_metric(self) -> str:
        """The last depth's likeness to the teachers."""
        return f"cosine_{self.objective.depths[-1]}"

    def compile(self) -> None:
        """One layer for all lengths."""
        for module in self.model.encoder.modules():
            if isinstance(module, Layer):
                module.compile(dynamic=True)

    def next_batch(self, step: int, progress: float, processes: ProcessGroup) -> tuple[list[tuple[Any, ...]], int]:
        """Texts of one length, and rows of masked words."""
        self.objective.dtype = compute_dtype(self.settings, processes.device)
        rng = np.random.default_rng([self.settings.seed, 7, step, processes.rank])
        ids, wanted = self.texts(rng, processes.device)
        tokens = ids.numel() * processes.world_size
        depths = self.objective.depths
        if np.random.default_rng([self.settings.seed, 8, step]).random() < self.aims.shallow:
            depths = depths[: -(-len(depths) // 2)]
        if self.words is None:
            return [("texts", 1.0, depths, ids, wanted)], tokens
        rows, more = self.words.next_batch(step, progress, processes)
        # the loop takes the mean over parts; texts are one half of it and masked words the other, in however many parts those come
        count = len(rows) + 1
        parts: list[tuple[Any, ...]] = [("texts", count / 2, depths, ids, wanted)]
        parts += [("words", count / (2 * len(rows)), *row) for row in rows]
        return parts, tokens + more

    def texts(self, rng: np.random.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
        """A batch of texts of one length; a length is as likely as it is frequent among the texts."""
        at = int(rng.choice(len(self.lengths), p=self.chances))
        length, first, count = int(self.lengths[at]), int(self.firsts[at]), int(self.counts[at])
        rows = min(count, self.aims.most_texts, max(8, self.aims.text_tokens // (length + 2)))
        drawn = rng.permutation(count)[:rows] if count < 4 * rows else rng.integers(0, count, rows)
        runs = int(rows * self.aims.near) // RUN
        if runs:
            place = (rng.integers(0, max(1, count - RUN + 1), runs)[:, None] + np.arange(RUN)).ravel()
            drawn[: len(place)] = self.neighbours(device)[first + place] - first
        chosen = rng.permutation(np.unique(first + drawn))
        # few shapes, so that a GPU finds its memory again
        chosen = chosen[: len(chosen) // STEP * STEP or len(chosen)]
        if self.held is None:
            self.held = PassageTable(self.passages, self.ends, device), on_device(self.targets, device)
        table, targets = self.held
        return table.rows(chosen), targets[sent(chosen, targets.device)].to(device)

    def neighbours(self, device: torch.device) -> np.ndarray:
        """The texts of each length in an order of like meaning; found once, when it is first asked for."""
        if self.order is None:
            self.order = np.arange(len(self.passages))
            for first, count in zip(self.firsts.tolist(), self.counts.tolist(), strict=True):
                vectors = torch.from_numpy(np.array(self.targets[first : first + count])).to(device)
                self.order[first : first + count] = (
                    first + neighbour_order(vectors, seed=self.settings.seed).cpu().numpy()
                )
        return self.order

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Likeness on fixed batches, and the masked words of held-out rows."""
        device = next(self.model.parameters()).device
        sums = torch.zeros(len(self.metric_names), 2, device=device)
        with torch.compiler.set_stance("force_eager"):
            for number in range(8):
                sums += self.objective(
                    "texts", 1.0, self.objective.depths, *self.texts(np.random.default_rng([10**6, number]), device)
                )[1]
        found = {n: a / max(b, 1) for n, (a, b) in zip(self.metric_names, sums.tolist(), strict=True)}
        if self.words is not None:
            found |= {k: v for k, v in self.words.evaluate().items() if k in found}
        return {k: v for k, v in found.items() if v}

    def check_metrics(self, numbers: dict[str, float], progress: float, step: int) -> Alarm | None:
        """None: a rate that is too high shows as a number that is not finite."""
        return None

    def data_position(self) -> dict[str, Any]:
        """Where the rows of masked words stand; texts follow from the step."""
        return {"words": self.words.data_position()} if self.words else {}

    def restore(self, artifact: Artifact, data: dict[str, Any]) -> None:
        """Saved weights, and the place in the rows."""
        if self.words is not None:
            self.words.restore(artifact, data.get("words", {}))
        else:
            self.model.load_state_dict(tensors_of(artifact.weights))

    def to_artifact(self, metrics: dict[str, float], state: TrainState) -> Artifact:
        """The model as it is now: made for vectors, with the mean of the tokens as its pooling."""
        done = {
            "step": "distill",
            "updates": state.step,
            "tokens": state.tokens,
            "minutes": round(state.seconds / 60, 2),
            "texts": len(self.passages),
            "settings": {k: v for k, v in {**asdict(self.settings), **asdict(self.aims)}.items() if v is not None},
        }
        meta = dataclasses.replace(
            self.initial_model.meta, task="embed", pooling="mean", normalise=True, quantisation=None, depth=None, prompts={},
            metrics={**self.initial_model.meta.metrics, "vectors": metrics}, made=(*self.initial_model.meta.made, done),
        )  # fmt: skip
        return Artifact(self.model.config, self.model.weights(), self.tokenizer, meta)


class PassageTable:
    """The texts as ids, where the model is."""

    def __init__(self, passages: Passages, ends: tuple[int, int], device: torch.device) -> None:
        self.stops, self.ends, self.device = passages.ends, ends, device
        wide = np.int16 if passages.ids.dtype == np.uint16 else np.int32  # torch knows few unsigned types; -1 is 65,535
        self.ids = on_device(passages.ids.view(wide), device)

    def rows(self, chosen: np.ndarray) -> Tensor:
        """Texts of one length, (texts, length with special tokens)."""
        length = int(self.stops[chosen[0]] - (self.stops[chosen[0] - 1] if chosen[0] else 0))
        firsts = sent(self.stops[chosen] - length, self.ids.device)
        inner = self.ids[firsts[:, None] + torch.arange(length, device=firsts.device)].to(self.device).long()
        if self.ids.dtype == torch.int16:
            inner = inner & 0xFFFF
        first, last = (inner.new_full((len(inner), 1), end) for end in self.ends)
        return torch.cat([first, inner, last], 1)


def on_device(array: np.ndarray, device: torch.device) -> Tensor:
    """An array on the device if it takes less than a quarter of what is free there, and in the machine's memory otherwise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the array is read-only, and nobody writes
        found = torch.from_numpy(np.asarray(array))
    if device.type == "cuda" and array.nbytes < torch.cuda.mem_get_info(device)[0] / 4:
        found = found.to(device)
    return found


def sent(numbers: np.ndarray, device: torch.device) -> Tensor:
    """Whole numbers to a device, without waiting for it."""
    found = torch.from_numpy(numbers)
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found


def student_vectors(start: Artifact, passages: Passages, device: torch.device) -> StudentVectors:
    """The vectors that a model gives to texts now; see `teachers.mix`."""
    model = encoder_only(start).to(device).eval()
    assert start.tokenizer is not None
    table = PassageTable(passages, (start.tokenizer.cls_id or 0, start.tokenizer.sep_id or 0), device)
    lengths = passages.lengths

    @torch.inference_mode()
    def give(numbers: np.ndarray) -> Tensor:
        found = []
        for same in np.split(numbers, np.flatnonzero(np.diff(lengths[numbers])) + 1):
            for at in range(0, len(same), 256):
                ids = table.rows(same[at : at + 256])
                hidden = model(Batch.unpad(ids), heads=()).encoded.hidden
                found.append(hidden.view(*ids.shape, -1).mean(1))
        return torch.cat(found)

    return give


def check_widths(aims: VectorDistillSettings, width: int) -> None:
    """Refuse widths that a vector does not have; before teachers read anything."""
    widths = aims.numbers("widths")
    if widths[-1] > width:
        fitting = ",".join(str(n) for n in sorted({n for n in widths if n < width} | {width}))
        raise AlbertkitError(f"widths go up to {widths[-1]}, and vectors have {width} numbers; say --widths {fitting}")


def encoder_only(start: Artifact) -> AlbertModel:
    """The encoder alone, without pooler and heads, which vectors do not need."""
    weights = {n: a for n, a in start.weights.items() if n.startswith("encoder.") and ".pooler." not in n}
    return AlbertModel.from_artifact(dataclasses.replace(start, weights=weights))
