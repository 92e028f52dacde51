"""Pre-training: masked language modelling and sentence order, on a corpus.

In: the folder that `corpus.py` wrote, a shape, `TrainSettings` and `PretrainSettings`. Out: a `TrainingTask` for
`loop.py`.

Loss = MLM + sentence order (+ λ · consistency of the layers, an option). MLM scores are computed at masked tokens only.
Both losses are divided by the expected number of targets, not by the drawn one, so that a batch gives the same gradient
however it is split among processes and micro-batches.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.artifact import Artifact, ArtifactMetadata
from albertkit.compress.cost import operations
from albertkit.config import AlbertConfig
from albertkit.data import masking
from albertkit.data.row_stream import RowStream, SegmentPairs, StreamPosition
from albertkit.data.shards import Shards
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch
from albertkit.model.albert_model import build_head, to_tensors
from albertkit.model.encoder import Layer
from albertkit.tokenizer import Tokenizer
from albertkit.train.checkpoint import TrainState
from albertkit.train.distributed import ProcessGroup, call_in_dtype, compute_dtype
from albertkit.train.loop import Alarm
from albertkit.train.train_settings import PretrainSettings, TrainSettings

STUCK_AT = 0.4  # share of the budget after which a model must do better than counting words
STUCK_STEPS = 500  # and the updates it has at least
DIVERGED_STEPS = 50  # updates before which a loss may jump
STUCK_LINES = 3  # lines of metrics in a row that must say so: one may be about few words


class PretrainObjective(nn.Module):
    """Rows to losses: draws the questions, runs the model, compares."""

    def __init__(self, model: AlbertModel, specials: masking.SpecialIds, goals: PretrainSettings) -> None:
        super().__init__()
        self.model, self.goals = model, goals
        self.cls, self.sep, self.mask = specials.cls, specials.sep, specials.mask
        self.register_buffer("words", specials.words, persistent=False)
        self.dtype = torch.float32
        self.ask, self.judge = masking.mask_rows, judge
        self.depth: int | None = None  # of this update; None is the full one
        model.encoder.layer_decay = goals.layer_decay

    def forward(
        self, tokens: Tensor, first: Tensor, ordered: Tensor, key: Tensor, offset: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(loss, sums of `PretrainTask.metric_names`)."""
        goals = self.goals
        specials = masking.SpecialIds(self.cls, self.sep, self.mask, self.words)  # type: ignore[arg-type]
        with torch.no_grad():
            asked = self.ask(tokens, first, ordered, key, offset, specials, goals.mask_ratio)
        batch = Batch.unpad(asked.ids, segments=asked.segments)
        names = ("mlm", "sop") if goals.sop_weight else ("mlm",)
        options: dict[str, Any] = {"heads": names, "inputs": {"mlm": {"positions": asked.positions}}}
        options["keep_layers"], options["depth"] = goals.consistency_weight > 0, self.depth
        out = call_in_dtype(self.model, self.dtype, batch, **options)
        loss, right, known = self.judge(out.heads["mlm"].logits, asked.words)
        total = loss / (len(tokens) * (tokens.shape[1] - 1) * goals.mask_ratio)
        sums = [(loss, known), (right, known)]
        if goals.sop_weight:
            loss, right, known = judge(out.heads["sop"].logits, asked.order)
            total = total + goals.sop_weight * loss / len(tokens)
            sums += [(loss, known), (right, known)]
        if goals.consistency_weight:
            loss = consistency_loss(out.encoded.layers[1:], goals.consistency_similarity)
            total = total + goals.consistency_weight * loss
            sums += [(loss, torch.ones_like(loss))]
        return total, torch.stack([torch.stack([a.detach().float(), b.float()]) for a, b in sums])


def judge(scores: Tensor, answers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (n, classes) against answers: sum of the losses, how many are right, how many were asked."""
    scores = scores.float()
    loss = F.cross_entropy(scores, answers, ignore_index=masking.IGNORED, reduction="sum")
    known = answers >= 0
    return loss, ((scores.argmax(-1) == answers) & known).sum(), known.sum()


def consistency_loss(layers: tuple[Tensor, ...], similarity: str = "cosine") -> Tensor:
    """The mean of -log σ(similarity) of each token's hidden states after every two layers.

    The similarity is the cosine or the dot product. Behind a LayerNorm the latter is about H times as large: its σ is 1
    as soon as two states are a little similar, and then has no gradient.
    """
    unit = torch.stack(layers, 1).float()  # (tokens, L, H)
    unit = F.normalize(unit, dim=-1) if similarity == "cosine" else unit
    alike = unit @ unit.transpose(1, 2)  # (tokens, L, L)
    pairs = torch.triu_indices(len(layers), len(layers), offset=1, device=unit.device)
    return -F.logsigmoid(alike[:, pairs[0], pairs[1]]).mean() if len(layers) > 1 else alike.sum() * 0


class PretrainTask:
    """What `loop.train` trains: MLM and sentence order on the rows of a corpus."""

    selection_metric = "mlm_loss"
    has_fixed_shape = True

    def __init__(
        self,
        shards: Shards | Path | str,
        config: AlbertConfig,
        settings: TrainSettings,
        goals: PretrainSettings | None = None,
        model: Artifact | None = None,
    ) -> None:
        self.shards = shards if isinstance(shards, Shards) else Shards.open(shards)
        self.settings, self.goals = settings, goals or PretrainSettings()
        self.tokenizer = self.shards.tokenizer()
        self.config = fit(config, self.tokenizer) if model is None else same_words(model, self.tokenizer)
        longest = max(length for length, _ in self.goals.phases())
        if longest > self.config.max_position_embeddings:
            raise AlbertkitError(
                f"rows of {longest} tokens do not fit the {self.config.max_position_embeddings} positions of this shape"
            )
        deepest = max(self.goals.shallow_depths(), default=1)
        if deepest > self.config.num_hidden_layers:
            raise AlbertkitError(
                f"depths go up to {deepest}, and this shape has {self.config.num_hidden_layers} layers; choose fewer"
            )
        torch.manual_seed(settings.seed)
        if model is None:
            heads = {name: build_head(name, self.config) for name in ("mlm", "sop")}
            self.model = AlbertModel(self.config, heads)
        else:
            self.model = AlbertModel.from_artifact(model)
            for name in ("mlm", "sop"):
                if name not in self.model.heads:
                    self.model.heads[name] = build_head(name, self.config)
        self.objective = PretrainObjective(self.model, specials(self.tokenizer), self.goals)
        self.metric_names: tuple[str, ...] = ("mlm_loss", "mlm_accuracy")
        self.metric_names += ("sop_loss", "sop_accuracy") if self.goals.sop_weight else ()
        self.metric_names += ("consistency_loss",) if self.goals.consistency_weight else ()
        self.length = self.goals.phases()[0][0]
        counted = operations(self.config, self.length)["total"]
        counted += (
            self.goals.mask_ratio * 2 * self.config.embedding_size * (self.config.hidden_size + self.config.vocab_size)
        )
        self.flops_per_token = 3 * counted
        self.initial_model = model
        counts = self.shards.unigrams()
        share = counts[counts > 0] / counts.sum()
        self.entropy = -float((share * np.log(share)).sum())
        self.stuck = 0
        self.lowest: dict[int, float] = {}  # by the length of rows: other lengths have other losses
        self.at: dict[int, StreamPosition] = {}
        self.streams: dict[int, RowStream] = {}
        self.reach = 0 if model is None else known_positions(model)

    def compile(self) -> None:
        """Compile what is large: one shared layer, which is then used L times, the questions, and the word loss."""
        for module in self.model.encoder.modules():
            if isinstance(module, Layer):
                module.compile(dynamic=False)
        self.objective.ask = torch.compile(masking.mask_rows, dynamic=False)
        self.objective.judge = torch.compile(judge, dynamic=False)

    def stream(self, length: int) -> RowStream:
        """The rows of a length, from where they were left."""
        if length not in self.streams:
            train = self.shards.split("train")
            self.streams[length] = RowStream(
                train, length, self.settings.seed, self.at.get(length), self.goals.single_ratio
            )
        return self.streams[length]

    def next_batch(self, step: int, progress: float, processes: ProcessGroup) -> tuple[list[tuple[Any, ...]], int]:
        """This process's rows of the next batch, as tensors on its device."""
        self.objective.dtype = compute_dtype(self.settings, processes.device)
        self.objective.depth = self.drawn(step)
        length = self.goals.length_at(progress)
        if length > self.reach:
            if self.reach:
                stretch(self.model.encoder.embeddings.position.weight, self.reach)
            self.reach = length
        if masking.mix_seed(self.settings.seed + 1, step) / 2**64 < self.goals.short_ratio:
            length = max(8, length // 4)
        rows = self.settings.batch_size * self.length // length
        each = max(1, rows // processes.world_size)
        rows = each * processes.world_size
        stream = self.stream(length)
        pairs = stream.take(rows, slice(processes.rank * each, (processes.rank + 1) * each))
        self.at[length] = stream.position
        most = (
            max(1, self.settings.micro_batch_size * self.length // length) if self.settings.micro_batch_size else each
        )
        part = max(n for n in range(1, min(most, each) + 1) if each % n == 0)
        key = masking.random_key(self.settings.seed, step, processes.device)
        parts = []
        for start in range(0, each, part):
            offset = masking.to_device(processes.rank * each + start, processes.device)
            parts.append((*tensors(pairs[start : start + part], processes.device), key, offset))
        return parts, rows * length

    def drawn(self, step: int) -> int | None:
        """The depth of an update: every second time the full one, else one of the shallower ones there are."""
        depths, chance = self.goals.shallow_depths(), masking.mix_seed(self.settings.seed + 2, step)
        return depths[(chance >> 1) % len(depths)] if depths and chance & 1 else None

    def evaluate(self) -> dict[str, float]:
        """Metrics on held-out rows at the full depth, and those of MLM at the shallower depths that are trained."""
        self.objective.depth = None
        found = self.evaluate_depth()
        for depth in self.goals.shallow_depths() if found else ():
            self.objective.depth = depth
            found |= {f"{name}_at_{depth}": v for name, v in self.evaluate_depth().items() if name.startswith("mlm")}
        self.objective.depth = None
        return found

    @torch.no_grad()
    def evaluate_depth(self) -> dict[str, float]:
        """Metrics on held-out rows at the current depth, with the same masks each time."""
        held = self.shards.split("held-out")
        if max((len(shard.tokens) for shard in held), default=0) < self.length - 3:
            return {}
        stream = RowStream(held, self.length, 0, single=self.goals.single_ratio)
        rows = min(self.goals.eval_rows, stream.rows_in_group)
        if not rows:
            return {}
        device = self.model.encoder.embeddings.word.weight.device
        key = masking.random_key(0, 0, device)
        sums = torch.zeros(len(self.metric_names), 2, device=device)
        for start in range(0, rows, 64):
            pairs = stream.take(min(64, rows - start))
            with torch.compiler.set_stance("force_eager"):  # not worth compiling for
                _, found = self.objective(*tensors(pairs, device), key, masking.to_device(start, device))
            sums += found
        return {name: a / max(b, 1) for name, (a, b) in zip(self.metric_names, sums.tolist(), strict=True)}

    def check_metrics(self, numbers: dict[str, float], progress: float, step: int) -> Alarm | None:
        """Divergence: the loss is far above its minimum. Collapse: it stays above the unigram entropy."""
        loss, length = numbers["mlm_loss"], self.goals.length_at(progress)
        lowest = self.lowest.get(length, math.inf)
        if step > DIVERGED_STEPS and loss > 1.15 * lowest + 0.2:
            return Alarm(f"the loss was {lowest:.2f} and is {loss:.2f}: the training has diverged", rewind=True)
        self.lowest[length] = min(lowest, loss)
        early = progress < max(STUCK_AT, 2 * self.settings.warmup_ratio) or step < STUCK_STEPS
        self.stuck = 0 if early or loss < self.entropy else self.stuck + 1
        if self.stuck < STUCK_LINES:
            return None
        return Alarm(
            f"the loss of masked words is {loss:.2f}, and counting words alone gives {self.entropy:.2f}: the model has "
            f"collapsed. Start again with half the --learning-rate, a longer --warmup-ratio or another --seed; "
            f"with very little data or budget, use a smaller shape"
        )

    def data_position(self) -> dict[str, Any]:
        """Position in the rows, and the lowest loss so far, of each length."""
        lowest = {str(length): loss for length, loss in self.lowest.items()}
        rows = {str(length): asdict(at) for length, at in self.at.items()}
        return {"rows": rows, "lowest": lowest, "positions": self.reach}

    def restore(self, artifact: Artifact, data: dict[str, Any]) -> None:
        """Saved weights, and the place in the data they were saved at."""
        if artifact.config != self.config:
            raise AlbertkitError(
                "the checkpoint has another shape than the one asked for; resume with the same --shape and --option"
            )
        self.model.load_state_dict(to_tensors(artifact.weights))
        self.at = {int(length): StreamPosition(**at) for length, at in data.get("rows", {}).items()}
        self.lowest = {int(length): float(loss) for length, loss in data.get("lowest", {}).items()}
        self.reach = int(data.get("positions", self.reach))
        self.streams = {}

    def to_artifact(self, metrics: dict[str, float], state: TrainState) -> Artifact:
        """The model as it is now, with how it came about."""
        done = {
            "step": "pretrain",
            "updates": state.step,
            "tokens": state.tokens,
            "minutes": round(state.seconds / 60, 2),
            "positions": self.reach,
            "settings": {k: v for k, v in {**asdict(self.settings), **asdict(self.goals)}.items() if v is not None},
            "corpus": self.shards.manifest.get("counts", {}),
        }
        before = self.initial_model.metadata.history if self.initial_model else ()
        meta = ArtifactMetadata(
            task="pretrain", metrics={"held-out": metrics} if metrics else {}, history=(*before, done)
        )
        return Artifact(self.config, self.model.weights(), self.tokenizer, meta)


def known_positions(start: Artifact) -> int:
    """Positions that a model has learnt: as it says itself, or else all that it has."""
    said = [done["positions"] for done in start.metadata.history if done.get("positions")]
    return int(max(said)) if said else start.config.max_position_embeddings


@torch.no_grad()
def stretch(positions: Tensor, known: int) -> None:
    """Fill untrained position vectors with those of trained positions, repeatedly, but never with the first.

    Untrained vectors are far from all others: a model with one at every fourth token forgets the rest (LOG.md).
    """
    places = torch.arange(known, len(positions), device=positions.device)
    positions[known:] = positions[1 + (places - 1) % (known - 1)] if known > 1 else positions[:1]


def tensors(pairs: SegmentPairs, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Rows as tensors on a device; unsigned numbers travel as signed ones of the same bits."""
    signed = pairs.tokens.view(np.int16 if pairs.tokens.itemsize == 2 else np.int32)
    found = tuple(torch.from_numpy(np.ascontiguousarray(a)) for a in (signed, pairs.first, pairs.ordered))
    if device.type == "cuda":
        return tuple(t.pin_memory().to(device, non_blocking=True) for t in found)  # type: ignore[return-value]
    return found  # type: ignore[return-value]


def fit(config: AlbertConfig, tokenizer: Tokenizer) -> AlbertConfig:
    """The shape with the tokenizer's vocabulary, rounded up to a multiple of 8, which GPUs multiply faster."""
    size = -(-tokenizer.vocab_size // 8) * 8
    ids = {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
    return config.replace(vocab_size=size, **{k: v for k, v in ids.items() if v is not None})


def same_words(start: Artifact, tokenizer: Tokenizer) -> AlbertConfig:
    """The shape of the model to start from, if its word table is about the corpus's tokens."""
    if tokenizer.vocab_size > start.config.vocab_size:
        raise AlbertkitError(
            f"the corpus has {tokenizer.vocab_size} tokens, the model to start from {start.config.vocab_size}; "
            f"make the corpus with that model's tokenizer"
        )
    if start.tokenizer is not None and start.tokenizer.vocabulary.tokens != tokenizer.vocabulary.tokens:
        raise AlbertkitError(
            "the model to start from has another vocabulary than the corpus; build the corpus with its tokenizer"
        )
    return start.config


def specials(tokenizer: Tokenizer) -> masking.SpecialIds:
    """What masking needs to know of a tokenizer."""
    cls, sep, mask = tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id
    if cls is None or sep is None or mask is None:
        raise AlbertkitError(
            "this tokenizer has no [CLS], [SEP] or [MASK], which pre-training needs; train another one"
        )
    words = [i for i in range(tokenizer.vocab_size) if i not in {tokenizer.pad_id, tokenizer.unk_id, cls, sep, mask}]
    return masking.SpecialIds(cls, sep, mask, torch.tensor(words))


def describe(work: PretrainTask) -> dict[str, Any]:
    """What a training will do, before it does it."""
    rows = work.settings.batch_size
    return {
        "parameters": sum(p.numel() for p in work.model.parameters()),
        "vocabulary": work.config.vocab_size,
        "tokens in the corpus": sum(len(s.tokens) for s in work.shards.split("train")),
        "tokens for one update": rows * work.length,
        **{k: v for k, v in dataclasses.asdict(work.settings).items() if v is not None},
        **{k: v for k, v in dataclasses.asdict(work.goals).items() if v != ""},
    }
