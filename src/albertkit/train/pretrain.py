"""Pre-training on a corpus: masked language modelling (MLM) and sentence-order prediction.

In: the folder that `data/corpus.py` wrote, a shape, `TrainSettings` and `PretrainSettings`. Out: a `TrainingTask` for
`loop.py`. Loss = MLM + sentence order (+ λ · consistency of the layers, an option). Losses are divided by the expected
number of targets, not by the drawn number. So the gradient of a batch does not depend on its split into processes and
micro-batches.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albertkit.artifact import Artifact, ArtifactMetadata
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
from albertkit.train.train_settings import PretrainSettings, TrainSettings, recorded_settings

STUCK_AT = 0.4  # share of the budget after which a model must be better than unigram frequencies
STUCK_STEPS = 500  # steps before which this is not checked
STUCK_LINES = 20  # consecutive lines of metrics in which the loss must not fall: a single one may have few tokens
STUCK_FALL = 0.01  # a loss that falls by more, from the first half of these lines to the second, is slow and not stuck
DIVERGED_STEPS = 50  # steps before which the loss may jump
EVAL_BATCH = 64  # rows


class PretrainObjective(nn.Module):
    """The losses of rows: masks them, runs the model, compares."""

    def __init__(self, model: AlbertModel, specials: masking.SpecialIds, pretrain: PretrainSettings) -> None:
        super().__init__()
        self.model, self.pretrain = model, pretrain
        self.cls, self.sep, self.mask = specials.cls, specials.sep, specials.mask
        self.register_buffer("words", specials.words, persistent=False)
        self.dtype = torch.float32
        self.mask_rows, self.token_loss = masking.mask_rows, token_loss
        self.depth: int | None = None  # of this step; None is the full depth
        model.encoder.layer_decay = pretrain.layer_decay

    def forward(
        self, tokens: Tensor, first: Tensor, ordered: Tensor, key: Tensor, offset: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(loss, sums of `PretrainTask.metric_names`)."""
        pretrain = self.pretrain
        specials = masking.SpecialIds(self.cls, self.sep, self.mask, self.words)  # type: ignore[arg-type]
        with torch.no_grad():
            masked = self.mask_rows(tokens, first, ordered, key, offset, specials, pretrain.mask_ratio)
        out = call_in_dtype(
            self.model,
            self.dtype,
            Batch.unpad(masked.ids, segments=masked.segments),
            heads=("mlm", "sop") if pretrain.sop_weight else ("mlm",),
            inputs={"mlm": {"positions": masked.positions}},
            keep_layers=pretrain.consistency_weight > 0,
            depth=self.depth,
        )
        loss, correct, count = self.token_loss(out.heads["mlm"].logits, masked.words)
        total = loss / (len(tokens) * (tokens.shape[1] - 1) * pretrain.mask_ratio)
        sums = [(loss, count), (correct, count)]
        if pretrain.sop_weight:
            loss, correct, count = token_loss(out.heads["sop"].logits, masked.order)
            total = total + pretrain.sop_weight * loss / len(tokens)
            sums += [(loss, count), (correct, count)]
        if pretrain.consistency_weight:
            loss = consistency_loss(out.encoded.layers[1:], pretrain.consistency_similarity)
            total = total + pretrain.consistency_weight * loss
            sums += [(loss, torch.ones_like(loss))]
        return total, torch.stack([torch.stack([a.detach().float(), b.float()]) for a, b in sums])


def token_loss(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of losses, the number of correct predictions and of targets; scores (n, classes), targets (n,)."""
    scores = scores.float()
    loss = F.cross_entropy(scores, targets, ignore_index=masking.IGNORED, reduction="sum")
    is_target = targets >= 0
    return loss, ((scores.argmax(-1) == targets) & is_target).sum(), is_target.sum()


def consistency_loss(layers: tuple[Tensor, ...], similarity: str = "cosine") -> Tensor:
    """The mean of -log σ(similarity) over all pairs of layers, of each token's hidden states.

    The similarity is the cosine or the dot product. After a LayerNorm, the dot product is about H times as large: its
    σ is 1 for slightly similar states already, and the gradient vanishes.
    """
    states = torch.stack(layers, 1).float()  # (tokens, L, H)
    states = F.normalize(states, dim=-1) if similarity == "cosine" else states
    similarities = states @ states.transpose(1, 2)  # (tokens, L, L)
    pairs = torch.triu_indices(len(layers), len(layers), offset=1, device=states.device)
    return -F.logsigmoid(similarities[:, pairs[0], pairs[1]]).mean() if len(layers) > 1 else similarities.sum() * 0


class PretrainTask:
    """MLM and sentence-order prediction on the rows of a corpus, for `loop.train`."""

    selection_metric = "mlm_loss"
    has_fixed_shape = True
    dev_size = 0

    def __init__(
        self,
        shards: Shards | Path | str,
        config: AlbertConfig,
        settings: TrainSettings,
        pretrain: PretrainSettings | None = None,
        model: Artifact | None = None,
    ) -> None:
        self.shards = shards if isinstance(shards, Shards) else Shards.open(shards)
        self.settings, self.pretrain, self.initial_model = settings, pretrain or PretrainSettings(), model
        self.tokenizer = self.shards.tokenizer()
        self.config = (
            fit_vocabulary(config, self.tokenizer) if model is None else check_same_vocabulary(model, self.tokenizer)
        )
        longest = max(length for length, _ in self.pretrain.phases())
        if longest > self.config.max_position_embeddings:
            raise AlbertkitError(
                f"rows of {longest} tokens do not fit: this shape has {self.config.max_position_embeddings} positions. "
                "Pass smaller --lengths."
            )
        deepest = max(self.pretrain.shallow_depths(), default=1)
        if deepest > self.config.num_hidden_layers:
            raise AlbertkitError(
                f"depth {deepest} is not available: this shape has {self.config.num_hidden_layers} layers. "
                "Pass smaller --depths."
            )
        torch.manual_seed(settings.seed)
        if model is None:
            self.model = AlbertModel(self.config, {name: build_head(name, self.config) for name in ("mlm", "sop")})
        else:
            self.model = AlbertModel.from_artifact(model)
            for name in [name for name in ("mlm", "sop") if name not in self.model.heads]:
                self.model.heads[name] = build_head(name, self.config)
        self.objective = PretrainObjective(self.model, masking_ids(self.tokenizer), self.pretrain)
        self.metric_names: tuple[str, ...] = ("mlm_loss", "mlm_accuracy")
        self.metric_names += ("sop_loss", "sop_accuracy") if self.pretrain.sop_weight else ()
        self.metric_names += ("consistency_loss",) if self.pretrain.consistency_weight else ()
        self.length = self.pretrain.phases()[0][0]
        counts = self.shards.unigrams()
        share = counts[counts > 0] / counts.sum()
        self.entropy = -float((share * np.log(share)).sum())
        self.stuck: list[float] = []  # the last losses, all above the unigram entropy
        self.lowest: dict[int, float] = {}  # by length of rows, since the loss depends on the length
        self.positions: dict[int, StreamPosition] = {}  # by length of rows
        self.streams: dict[int, RowStream] = {}
        self.trained_positions = 0 if model is None else known_positions(model)

    def compile(self) -> None:
        """Compile the costly parts: the shared layer, which is used L times, the masking, and the MLM loss."""
        for module in self.model.encoder.modules():
            if isinstance(module, Layer):
                module.compile(dynamic=False)
        self.objective.mask_rows = torch.compile(masking.mask_rows, dynamic=False)
        self.objective.token_loss = torch.compile(token_loss, dynamic=False)

    def next_batch(self, step: int, progress: float, processes: ProcessGroup) -> tuple[list[tuple[Any, ...]], int]:
        """This process's rows of the next batch, as tensors on its device."""
        settings, seed = self.settings, self.settings.seed
        self.objective.dtype = compute_dtype(settings, processes.device)
        self.objective.depth = self.draw_depth(step)
        length = self.pretrain.length_at(progress)
        if length > self.trained_positions:
            if self.trained_positions:
                extend_positions(self.model.encoder.embeddings.position.weight, self.trained_positions)
            self.trained_positions = length
        if masking.mix_seed(seed + 1, step) / 2**64 < self.pretrain.short_ratio:
            length = max(8, length // 4)
        rows = settings.batch_size * self.length // length
        share = max(1, rows // processes.world_size)  # rows of this process
        first = processes.rank * share
        if length not in self.streams:
            train = self.shards.split("train")
            self.streams[length] = RowStream(
                train, length, seed, self.positions.get(length), self.pretrain.single_ratio
            )
        pairs = self.streams[length].take(share * processes.world_size, slice(first, first + share))
        self.positions[length] = self.streams[length].position
        limit = max(1, settings.micro_batch_size * self.length // length) if settings.micro_batch_size else share
        size = max(n for n in range(1, min(limit, share) + 1) if share % n == 0)
        key = masking.random_key(seed, step, processes.device)
        micro_batches = []
        for start in range(0, share, size):
            offset = masking.to_device(first + start, processes.device)
            micro_batches.append((*rows_to_device(pairs[start : start + size], processes.device), key, offset))
        return micro_batches, share * processes.world_size * length

    def draw_depth(self, step: int) -> int | None:
        """The depth of a step: the full depth in half of the steps, otherwise one of the shallower depths."""
        depths, random = self.pretrain.shallow_depths(), masking.mix_seed(self.settings.seed + 2, step)
        return depths[(random >> 1) % len(depths)] if depths and random & 1 else None

    def evaluate(self) -> dict[str, float]:
        """Metrics on held-out rows at the full depth, and MLM metrics at the trained shallower depths."""
        metrics = self.evaluate_depth(None)
        for depth in self.pretrain.shallow_depths() if metrics else ():
            at_depth = self.evaluate_depth(depth)
            metrics |= {f"{name}_at_{depth}": v for name, v in at_depth.items() if name.startswith("mlm")}
        self.objective.depth = None
        return metrics

    @torch.no_grad()
    def evaluate_depth(self, depth: int | None) -> dict[str, float]:
        """Metrics on held-out rows at a depth, with the same masks each time."""
        self.objective.depth = depth
        held_out = self.shards.split("held-out")
        if max((len(shard.tokens) for shard in held_out), default=0) < self.length - 3:
            return {}
        stream = RowStream(held_out, self.length, 0, single=self.pretrain.single_ratio)
        rows = min(self.pretrain.eval_rows, stream.rows_in_group)
        if not rows:
            return {}
        device = self.model.encoder.embeddings.word.weight.device
        key = masking.random_key(0, 0, device)
        sums = torch.zeros(len(self.metric_names), 2, device=device)
        for start in range(0, rows, EVAL_BATCH):
            pairs = stream.take(min(EVAL_BATCH, rows - start))
            with torch.compiler.set_stance("force_eager"):  # compiling takes longer
                sums += self.objective(*rows_to_device(pairs, device), key, masking.to_device(start, device))[1]
        return {name: a / max(b, 1) for name, (a, b) in zip(self.metric_names, sums.tolist(), strict=True)}

    def check_metrics(self, numbers: dict[str, float], progress: float, step: int) -> Alarm | None:
        """Divergence: the loss is far above its minimum. Collapse: above the unigram entropy it no longer falls."""
        if not self.pretrain.alarm:
            return None
        loss, length = numbers["mlm_loss"], self.pretrain.length_at(progress)
        lowest = self.lowest.get(length, math.inf)
        if step > DIVERGED_STEPS and loss > 1.15 * lowest + 0.2:
            return Alarm(f"the loss was {lowest:.2f} and is {loss:.2f}: the training has diverged", rewind=True)
        self.lowest[length] = min(lowest, loss)
        is_early = progress < max(STUCK_AT, 2 * self.settings.warmup_ratio) or step < STUCK_STEPS
        self.stuck = [] if is_early or loss < self.entropy else [*self.stuck, loss][-STUCK_LINES:]
        if len(self.stuck) < STUCK_LINES or self._falls_slowly():
            return None
        return Alarm(
            f"the MLM loss is {loss:.2f}, above the {self.entropy:.2f} of unigram frequencies, and does not fall: the "
            f"model has collapsed. Start again with half the --learning-rate, a larger --warmup-ratio or another "
            f"--seed, or switch this off with --no-alarm. With very little data or budget, use a smaller shape"
        )

    def _falls_slowly(self) -> bool:
        half = STUCK_LINES // 2
        return sum(self.stuck[:half]) - sum(self.stuck[half:]) > STUCK_FALL * half

    def data_position(self) -> dict[str, Any]:
        """The position in the rows, and the lowest loss so far, of each length."""
        lowest = {str(length): loss for length, loss in self.lowest.items()}
        rows = {str(length): asdict(position) for length, position in self.positions.items()}
        return {"rows": rows, "lowest": lowest, "positions": self.trained_positions}

    def restore(self, artifact: Artifact, data: dict[str, Any]) -> None:
        """Return to saved weights and a position in the data."""
        if artifact.config != self.config:
            raise AlbertkitError("the checkpoint has a different shape. Resume with the same --shape and --option.")
        self.model.load_state_dict(to_tensors(artifact.weights))
        self.positions = {int(length): StreamPosition(**position) for length, position in data.get("rows", {}).items()}
        self.lowest = {int(length): float(loss) for length, loss in data.get("lowest", {}).items()}
        self.trained_positions = int(data.get("positions", self.trained_positions))
        self.streams = {}

    def to_artifact(self, metrics: dict[str, float], state: TrainState) -> Artifact:
        """The current model."""
        step = {
            "step": "pretrain",
            "steps": state.step,
            "tokens": state.tokens,
            "minutes": state.minutes,
            "positions": self.trained_positions,
            "settings": recorded_settings(self.settings, self.pretrain),
            "corpus": self.shards.manifest.get("counts", {}),
        }
        before = self.initial_model.metadata.history if self.initial_model else ()
        all_metrics = {"held-out": metrics} if metrics else {}
        meta = ArtifactMetadata(task="pretrain", metrics=all_metrics, history=(*before, step))
        return Artifact(self.config, self.model.weights(), self.tokenizer, meta)


def known_positions(model: Artifact) -> int:
    """The number of positions a model was trained on: from its history, or else all."""
    stored = [step["positions"] for step in model.metadata.history if step.get("positions")]
    return int(max(stored)) if stored else model.config.max_position_embeddings


@torch.no_grad()
def extend_positions(positions: Tensor, trained: int) -> None:
    """Fill untrained position vectors with copies of the trained ones, except the first.

    Untrained vectors are far from all others, and a few of them per row ruin a model (LOG.md).
    """
    places = torch.arange(trained, len(positions), device=positions.device)
    positions[trained:] = positions[1 + (places - 1) % (trained - 1)] if trained > 1 else positions[:1]


def rows_to_device(pairs: SegmentPairs, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Rows as tensors on a device. Unsigned integers are reinterpreted as signed ones."""
    signed = pairs.tokens.view(np.int16 if pairs.tokens.itemsize == 2 else np.int32)
    tensors = tuple(torch.from_numpy(np.ascontiguousarray(a)) for a in (signed, pairs.first, pairs.ordered))
    if device.type == "cuda":
        return tuple(t.pin_memory().to(device, non_blocking=True) for t in tensors)  # type: ignore[return-value]
    return tensors  # type: ignore[return-value]


def fit_vocabulary(config: AlbertConfig, tokenizer: Tokenizer) -> AlbertConfig:
    """The shape with the tokenizer's vocabulary size, rounded up to a multiple of 8, which is faster on GPUs."""
    size = -(-tokenizer.vocab_size // 8) * 8
    ids = {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
    return config.replace(vocab_size=size, **{k: v for k, v in ids.items() if v is not None})


def check_same_vocabulary(start: Artifact, tokenizer: Tokenizer) -> AlbertConfig:
    """The shape of the initial model, if it has the vocabulary of the corpus."""
    if tokenizer.vocab_size > start.config.vocab_size:
        raise AlbertkitError(
            f"the corpus has a vocabulary of {tokenizer.vocab_size} tokens, the initial model "
            f"{start.config.vocab_size}. Build the corpus with the model's tokenizer."
        )
    if start.tokenizer is not None and start.tokenizer.vocabulary.tokens != tokenizer.vocabulary.tokens:
        raise AlbertkitError(
            "the initial model and the corpus have different vocabularies. Build the corpus with the model's tokenizer."
        )
    return start.config


def masking_ids(tokenizer: Tokenizer) -> masking.SpecialIds:
    """The special ids of a tokenizer, for masking."""
    cls, sep, mask = tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id
    if cls is None or sep is None or mask is None:
        raise AlbertkitError(
            "this tokenizer has no [CLS], [SEP] or [MASK]: pre-training needs all three. Train another one."
        )
    words = [i for i in range(tokenizer.vocab_size) if i not in {tokenizer.pad_id, tokenizer.unk_id, cls, sep, mask}]
    return masking.SpecialIds(cls, sep, mask, torch.tensor(words))


def training_plan(task: PretrainTask) -> dict[str, Any]:
    """The plan of a training, for `--dry-run`."""
    return {
        "parameters": sum(p.numel() for p in task.model.parameters()),
        "vocabulary": task.config.vocab_size,
        "tokens in the corpus": sum(len(shard.tokens) for shard in task.shards.split("train")),
        "tokens per step": task.settings.batch_size * task.length,
        **recorded_settings(task.settings),
        **{name: value for name, value in asdict(task.pretrain).items() if value != ""},
    }
