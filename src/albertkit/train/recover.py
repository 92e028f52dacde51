"""Training of compressed models with the full model as the teacher: after pruning, and for 8 or 4 bits.

In: a `RecoveryJob`: a compressed model, the full one, and examples of its task or texts. Out: the trained model. For
8 or 4 bits, `TrainedWeights`: `compress/quantize.py` rounds them to exactly the numbers of the last training step.
Before this file: `distill_task.py`; `compress/prune.py` calls `Recovery`.
"""

from __future__ import annotations

import dataclasses
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from albertkit.albert import Albert
from albertkit.artifact import Artifact, model_identity, read_artifact, write_artifact
from albertkit.compress.quantize import QualityCheck, QualityScore, TrainedWeights, check_bits, open_float_model
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch, ModelOutput
from albertkit.model.albert_model import MlmHead
from albertkit.model.attention import Attention
from albertkit.model.encoder import FeedForward
from albertkit.quantized import BLOCK, is_quantizable, smoothing_factors, uses_four_bits
from albertkit.runtime.activation_moments import activation_moments
from albertkit.runtime.graph import LOWEST
from albertkit.runtime.graph_builder import MAX_LEVEL
from albertkit.runtime.predict import task_scores
from albertkit.tasks.task import Feature
from albertkit.train.checkpoint import raise_stopped
from albertkit.train.distill_data import DistillData, DistillSettings, RecoverySettings
from albertkit.train.distill_task import DistillTask, TeacherOutputs, without_projection
from albertkit.train.distributed import choose_device
from albertkit.train.loop import train
from albertkit.train.presets import preset_epochs, preset_learning_rate
from albertkit.train.teachers import AlbertTeacher
from albertkit.train.train_settings import Log, TrainSettings

CALIBRATION_TEXTS = 512
PLAIN_OPTIONS = {"head_size", "brightmart_layout", "scale_embedding"}  # options that do not change attention

Smooth = dict[str, np.ndarray]


@dataclass(frozen=True)
class RecoveryJob:
    """A model to train, its teacher, data and settings."""

    model: Artifact
    teacher: Artifact
    data: DistillData
    settings: RecoverySettings
    step: str
    """The name of this step in the history of the model."""
    hidden: float = 1.0
    """The weight of hidden states in the loss, for a model with a task."""
    identity: str = ""
    """How `model` was made, so that a run with another model is not resumed. By default a hash of its weights,
    whose last bits may differ between machines."""

    @property
    def distill(self) -> DistillSettings:
        """The teacher outputs in the loss: logits for a model with a task; vectors for a model that computes them."""
        if self.data.task is not None:
            return DistillSettings(labels=0.5, logits=1.0, hidden=self.hidden)
        return DistillSettings(hidden=1.0, vectors=1.0 if self.teacher.metadata.task == "embed" else 0.0)

    def train_settings(self, steps: int, evaluations: int = 1) -> TrainSettings:
        """The settings of the loop; with held-out data, the best evaluation is the result."""
        settings = self.settings
        return TrainSettings(
            steps=steps if settings.minutes is None else None,
            minutes=settings.minutes,
            batch_size=settings.batch_size,
            micro_batch_size=settings.micro_batch_size,
            learning_rate=settings.learning_rate or preset_learning_rate(self.model.config),
            warmup_ratio=0.1,
            seed=settings.seed,
            evaluations=evaluations,
            load_best=len(self.data.dev) > 0,
            device=settings.device,
            compile="no",
            tensorboard=False,
        )

    def teacher_scores(self, features: Sequence[Feature]) -> list[Any]:
        """The teacher's scores by the torch-free runtime (or torch, on a GPU)."""
        with tempfile.TemporaryDirectory() as scratch:
            write_artifact(self.teacher, Path(scratch) / "teacher")
            device = choose_device(self.settings.device).type
            return task_scores(Albert(Path(scratch) / "teacher", device=device), features)


def recover_model(
    job: RecoveryJob,
    output: Path,
    prepare: Callable[[DistillTask], None] = lambda task: None,
    log: Log = lambda text: None,
    progress_bar: bool = False,
) -> tuple[Artifact, dict[str, float]]:
    """Train the model of a job in the folder `output`, and return it with its metrics. The same call resumes.

    prepare: changes the training task before it starts.
    """
    outputs = TeacherOutputs(
        states=AlbertTeacher(job.teacher),
        logits=job.teacher_scores if job.distill.logits else None,
        pooling=job.teacher.metadata.pooling,
        identity=(model_identity(job.teacher), job.identity or model_identity(job.model), f"seed {job.settings.seed}"),
    )
    max_length = job.settings.max_length or int(job.model.metadata.details.get("max_length", 128))
    task = DistillTask(job.data, job.model, job.train_settings(1), job.distill, outputs, max_length)
    # half of the preset: the full model was trained on these examples before
    epochs = job.settings.epochs or preset_epochs(len(task.features)) / 2
    evaluations = math.ceil(epochs) if job.settings.minutes is None else 10
    task.settings = job.train_settings(max(1, round(task.batches * epochs)), evaluations)
    task.is_trained, task.step = True, job.step
    prepare(task)
    result = train(task, task.settings, output, resume=True, log=log, progress_bar=progress_bar)
    if result.model is None:
        raise_stopped(result.stopped_by)
    return without_projection(read_artifact(result.model)), result.metrics


@dataclass
class Recovery:
    """The training that `prune` calls before it writes. Afterwards `scores` has the loss and the recovery."""

    data: DistillData
    settings: RecoverySettings
    output: Path
    """Folder for checkpoints."""
    log: Log = lambda text: None
    progress_bar: bool = False
    identity: str = ""
    """The settings and texts of the pruning; see `RecoveryJob.identity`."""
    scores: dict[str, QualityScore] = field(default_factory=dict)
    """`full`, `pruned`, `recovered`: scores on the held-out examples; empty without examples."""

    def __call__(self, full: Artifact, pruned: Artifact) -> Artifact:
        """The pruned model, trained."""
        job = RecoveryJob(pruned, full, self.data, self.settings, "recover", identity=self.identity)
        recovered, _ = recover_model(job, self.output, log=self.log, progress_bar=self.progress_bar)
        if not len(self.data.dev):
            return recovered
        models = {"full": full, "pruned": pruned, "recovered": recovered}
        with tempfile.TemporaryDirectory() as scratch:
            folders = {name: write_artifact(model, Path(scratch) / name) for name, model in models.items()}
            check = QualityCheck(folders["full"], self.data.dev)
            self.scores = {name: check.score(folder) for name, folder in folders.items()}
        before, after = self.scores["pruned"], self.scores["recovered"]
        if after.value < before.value:
            self.log(
                f"note: training made it worse: {after.metric} {before.value:.4f} pruned, {after.value:.4f} recovered. "
                f"Pass more examples, or a lower --learning-rate (delete {self.output} first)."
            )
        return recovered


# Quantization-aware training ---------------------------------------------------------------------------------------
# Weights are rounded once per step, exactly as by `quantized.quantize_rows` and `quantized.quantize_blocks`.


def straight_through(rounded: Tensor, original: Tensor) -> Tensor:
    """The rounded numbers, with the gradient of the original ones (Bengio et al., arXiv 1308.3432)."""
    return rounded.detach() + (original - original.detach())


@torch.no_grad()
def fake_quantize_rows(weight: Tensor) -> Tensor:
    """8 bits: one scale per row, and integers up to 127."""
    largest = weight.abs().amax(1)
    scale = torch.where(largest > 0, largest / largest.new_tensor(127), torch.ones_like(largest))[:, None]
    return (weight / scale).round().clamp(-127, 127) * scale


@torch.no_grad()
def fake_quantize_blocks(weight: Tensor) -> Tensor:
    """4 bits: one scale per row, one step per block of 32, and integers from -8 to 7."""
    rows, columns = weight.shape
    blocks = -(-columns // BLOCK)
    largest = weight.abs().amax(1)
    scale = torch.where(largest > 0, largest / largest.new_tensor(120), torch.ones_like(largest))[:, None]
    missing = blocks * BLOCK - columns  # padding zeros are rounded without an error
    scaled = nn.functional.pad(weight / scale, (0, missing)).view(rows, blocks, BLOCK)
    steps = torch.ones(rows, blocks, 1, device=weight.device)
    best = torch.full_like(steps, torch.inf, dtype=torch.float64)
    for number in range(1, 16):
        step = weight.new_tensor(number)
        rounded = (scaled / step).round().clamp(-8, 7) * step
        error = (rounded - scaled).square().sum(-1, keepdim=True, dtype=torch.float64)
        steps, best = torch.where(error < best, step, steps), torch.minimum(error, best)
    wide = steps.expand(rows, blocks, BLOCK).reshape(rows, -1)[:, :columns]
    values = (weight / (scale * wide)).round().clamp(-8, 7)
    return values * wide * scale


def fake_quantize_weight(name: str, weight: Tensor, bits: int, smooth: Tensor | None = None) -> Tensor:
    """A weight as it will be stored, with the gradient of the float one."""
    array = weight.detach()
    array = array if smooth is None else array / smooth
    rounded = fake_quantize_blocks(array) if bits == 4 and uses_four_bits(name) else fake_quantize_rows(array)
    return straight_through(rounded if smooth is None else rounded * smooth, weight)


def fake_quantize_tokens(x: Tensor, max_level: int, smooth: Tensor | None = None, floor: float | None = None) -> Tensor:
    """The input of a matrix product, rounded like in the runtime: one scale per token (`Builder.product`)."""
    with torch.no_grad():
        values = x.float() if smooth is None else x.float() * smooth
        if floor is None:  # signed levels
            middle = (max_level + 1) // 2
            largest, reach, low, high = values.abs(), middle - 1, -middle, max_level - middle
        else:
            values = values + floor
            largest, reach, low, high = values, max_level, 0, max_level
        factor = values.new_tensor(reach) / largest.amax(-1, keepdim=True).clamp(min=1e-20)
        values = (values * factor).round().clamp(low, high) / factor
        values = values if floor is None else values - floor
        values = values if smooth is None else values / smooth
    return straight_through(values.to(x.dtype), x)


class FakeQuantizedModel(nn.Module):
    """A model that computes like its quantized version; its parameters are those of the float model."""

    def __init__(self, model: AlbertModel, bits: int, smooth: Smooth, max_level: int = MAX_LEVEL) -> None:
        super().__init__()
        check_bits(bits)
        special = sorted(set(model.config.options.active()) - PLAIN_OPTIONS)
        if special:
            raise AlbertkitError(
                f"this model has the option {special[0]}: quantization-aware training supports plain layers only. "
                "Quantize it without --train."
            )
        self.model, self.bits, self.max_level = model, bits, max_level
        self.smooth = {name: torch.from_numpy(np.array(array)) for name, array in smooth.items()}
        self.matrices = {n for n, p in model.named_parameters() if is_quantizable(n, p.detach().cpu().numpy())}
        floor = LOWEST[model.config.hidden_act]
        for name, module in model.named_modules():
            if isinstance(module, Attention):
                self._round_input(module, f"{name}.query.weight")
                self._round_input(module.output, f"{name}.output.weight")
            elif isinstance(module, FeedForward):
                self._round_input(module.up, f"{name}.up.weight")
                self._round_input(module.down, f"{name}.down.weight", floor)
            elif isinstance(module, MlmHead) and not module.bare_projection:
                module.norm.register_forward_hook(lambda _m, _i, out: fake_quantize_tokens(out, self.max_level))

    def _round_input(self, module: nn.Module, name: str, floor: float | None = None) -> None:
        def hook(_module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            smooth = self._smooth_on(name, inputs[0].device)
            return (fake_quantize_tokens(inputs[0], self.max_level, smooth, floor), *inputs[1:])

        module.register_forward_pre_hook(hook)

    def _smooth_on(self, name: str, device: torch.device) -> Tensor | None:
        """The smoothing factors of a matrix, moved to the device once."""
        if name in self.smooth:
            self.smooth[name] = self.smooth[name].to(device)
        return self.smooth.get(name)

    def weights(self) -> dict[str, Tensor]:
        """Every matrix, rounded once per step."""
        return {
            name: fake_quantize_weight(name, parameter, self.bits, self._smooth_on(name, parameter.device))
            for name, parameter in self.model.named_parameters()
            if name in self.matrices
        }

    def forward(self, batch: Batch, **options: object) -> ModelOutput:
        output: ModelOutput = torch.func.functional_call(self.model, self.weights(), (batch,), options)
        return output


def calibrate_smoothing(artifact: Artifact, texts: Sequence[str] | None, bits: int) -> Smooth:
    """The smoothing factors of the matrices, from the inputs of the float model's layers."""
    factors = {
        name: smoothing_factors(name, square, bits) for name, square in activation_moments(artifact, texts).items()
    }
    return {name: array for name, array in factors.items() if array is not None}


def train_for_bits(
    source: Path | str,
    bits: int,
    data: DistillData,
    settings: RecoverySettings,
    output: Path,
    log: Log = lambda text: None,
    progress_bar: bool = False,
) -> TrainedWeights:
    """Train a float model for 8 or 4 bits in the folder `output`. The same call resumes."""
    artifact = open_float_model(source)
    smooth = calibrate_smoothing(artifact, data.texts()[:CALIBRATION_TEXTS] or None, bits)

    def prepare(task: DistillTask) -> None:
        task.objective.network = FakeQuantizedModel(task.model, bits, smooth)
        task.settings = dataclasses.replace(task.settings, precision="float32")  # half precision rounds differently

    job = RecoveryJob(artifact, artifact, data, settings, f"training for {bits} bits", hidden=0.5)
    trained, metrics = recover_model(job, output, prepare, log, progress_bar)
    return TrainedWeights(source, trained, smooth, metrics)
