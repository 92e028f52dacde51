"""The training loop of all training tasks.

In: a `TrainingTask` (the model, its data and its loss), `TrainSettings`, a folder. Out: that folder, with
checkpoints, metrics and the finished model. `pretrain.py`, `finetune_task.py`, `elastic.py`, `distill_task.py` and
`distill_vectors.py` have the tasks. The loop handles budget, schedule, gradient accumulation, several processes
(`distributed.py`), checkpoints and resuming (`checkpoint.py`), and rewinding after divergence.
"""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from albertkit.artifact import Artifact, write_artifact
from albertkit.data.masking import mix_seed
from albertkit.data.shards import replace_json
from albertkit.errors import AlbertkitError, NonFiniteError
from albertkit.file_io import read_json
from albertkit.tasks.task import lower_is_better
from albertkit.train import checkpoint, distributed
from albertkit.train.checkpoint import StopRequest, TrainLog, TrainState, stop_on_signals
from albertkit.train.distributed import ProcessGroup, process_group
from albertkit.train.optim import build_optimizers
from albertkit.train.run_lock import lock_run
from albertkit.train.train_settings import Log, TrainSettings

MAX_REWINDS = 3
LOGGED_SCORES = 6  # scores of an evaluation that are logged; metrics.jsonl and the report have all


@dataclass(frozen=True)
class Alarm:
    """A problem found in the metrics."""

    text: str
    rewind: bool = False  # return to the last checkpoint with half the learning rate, instead of stopping


class TrainingTask(Protocol):
    """A training task: a model, its data and its loss."""

    dev_size: int  # held-out examples; 0 if they are not counted

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the numbers that the objective sums up."""

    @property
    def selection_metric(self) -> str:
        """The evaluation metric that selects the best checkpoint."""

    @property
    def has_fixed_shape(self) -> bool:
        """Whether all batches have one shape, or one of a few."""

    @property
    def objective(self) -> nn.Module:
        """The module that contains the model. A call with one micro-batch returns the loss, and a total and a count for
        each of `metric_names`: (n, 2).
        """

    def compile(self) -> None:
        """Compile the parts that are worth it."""

    def next_batch(self, step: int, progress: float, processes: ProcessGroup) -> tuple[list[tuple[Any, ...]], int]:
        """This process's micro-batches of the next batch, and the tokens of the whole batch."""

    def evaluate(self) -> dict[str, float]:
        """Metrics on held-out data."""

    def check_metrics(self, metrics: dict[str, float], progress: float, step: int) -> Alarm | None:
        """An alarm if the model has collapsed or diverged."""

    def data_position(self) -> dict[str, Any]:
        """The position in the data, as JSON."""

    def restore(self, artifact: Artifact, data: dict[str, Any]) -> None:
        """Return to saved weights and a position in the data."""

    def to_artifact(self, metrics: dict[str, float], state: TrainState) -> Artifact:
        """The current model."""


@dataclass(frozen=True)
class TrainResult:
    """The result of a training run."""

    model: Path | None  # the folder of the finished model, or None if the training was stopped
    state: TrainState
    metrics: dict[str, float]
    dev_size: int = 0  # held-out examples
    stopped_by: int = 0  # the signal that stopped the training


def train(
    task: TrainingTask,
    settings: TrainSettings,
    output: Path | str,
    resume: bool = False,
    log: Log = lambda text: None,
    progress_bar: bool = False,
) -> TrainResult:
    """Train until the budget is spent, in the folder `output`."""
    output = Path(output)
    with process_group(settings.device, settings.precision) as processes, lock_run(output), stop_on_signals() as stop:
        run = TrainingRun(task, settings, output, processes, log if processes.is_main else lambda text: None)
        run.open(resume)
        run.train_log = TrainLog(output, settings, run.state.step, progress_bar) if processes.is_main else None
        try:
            return run.train(stop)
        except torch.OutOfMemoryError:
            rows = settings.micro_batch_size or settings.batch_size
            text = f"the device ran out of memory with {rows} rows. Set --micro-batch-size to half of that."
            raise AlbertkitError(text) from None
        finally:
            if run.train_log:
                run.train_log.close()


class TrainingRun:
    """A training run in its folder."""

    train_log: TrainLog | None = None
    resumes = False  # whether the caller passed `resume`

    def __init__(
        self, task: TrainingTask, settings: TrainSettings, output: Path, processes: ProcessGroup, log: Log
    ) -> None:
        self.task, self.settings, self.output, self.processes, self.log = task, settings, output, processes, log
        self.state = TrainState()
        task.objective.to(processes.device)
        distributed.allow_cudnn_attention(task.has_fixed_shape)
        self.optimizers = build_optimizers(task.objective, settings)
        self.peak_rates = [[group["lr"] for group in o.param_groups] for o in self.optimizers]
        self.objective = task.objective
        if settings.compile == "layer" or (settings.compile == "auto" and processes.device.type == "cuda"):
            task.compile()
        if processes.world_size > 1:
            self.objective = nn.parallel.DistributedDataParallel(self.objective, find_unused_parameters=True)
        self.metrics: dict[str, float] = {}
        self.rewinds = 0
        self.reset_sums()

    def open(self, resume: bool) -> None:
        """Create the folder, or resume from its last checkpoint."""
        saved, self.resumes = checkpoint.saved_steps(self.output), resume
        self.processes.barrier()  # all processes have read the folder before the main process writes
        if saved and not (resume or distributed.is_restart()):
            raise AlbertkitError(
                f"{self.output} contains a run at step {saved[-1]}. Resume it with --resume, or choose another folder."
            )
        if saved:
            self.restore_newest(saved)  # raises before anything is written
        if self.processes.is_main:
            try:
                self._write_settings(has_checkpoint=bool(saved))
            except OSError as error:
                reason = error.strerror
                raise AlbertkitError(f"{self.output} cannot be written: {reason}. Choose another folder.") from None
        if saved:
            self.log(f"resuming from step {self.state.step:,} ({self.state.tokens:,} tokens)")
        else:
            if self.settings.load_best and getattr(self.task, "is_trained", False):
                self.evaluate()  # the initial model is the result if no checkpoint is better
            if self.processes.is_main:
                self.save()
        self.processes.barrier()
        self.started_at = time.perf_counter() - self.state.seconds

    def _write_settings(self, has_checkpoint: bool) -> None:
        self.output.mkdir(parents=True, exist_ok=True)
        checkpoint.delete_after(self.output, self.state.step)  # damaged ones, if there are any
        checkpoint.delete_incomplete(self.output)
        file, settings = self.output / "settings.json", asdict(self.settings)
        if has_checkpoint and file.is_file():
            before = read_json(file)
            changed = [f"{k} {before.get(k)} → {v}" for k, v in settings.items() if before.get(k) != v]
            if changed:
                self.log(f"settings changed since the last start: {', '.join(changed)}")
        replace_json(file, settings)

    def restore_newest(self, steps: list[int]) -> None:
        """Load the last of some checkpoints that is not damaged."""
        if not steps:
            raise AlbertkitError(f"{self.output} has no checkpoint to return to. Start again in another folder.")
        for step in reversed(steps):
            try:
                self.restore(step)
                return
            except checkpoint.DamagedCheckpoint as error:
                if step == steps[0]:
                    raise AlbertkitError(f"{error} No earlier one exists. Start again in another folder.") from None
                self.log(f"{error} Trying the one before.")

    def restore(self, step: int) -> None:
        """Load a checkpoint."""
        artifact, tensors, state = checkpoint.load(checkpoint.checkpoint_folder(self.output, step))
        try:
            self.task.restore(artifact, state.data)
        except AlbertkitError as error:
            raise AlbertkitError(f"{self.output}: {error}") from None
        checkpoint.restore_optimizers(self.optimizers, tensors)
        self.state = state
        self.metrics = artifact.metadata.metrics.get("held-out", {})

    def save(self) -> None:
        """Write a checkpoint and delete those that are no longer needed."""
        self.state.data, self.state.sums = self.task.data_position(), self.sums.tolist()
        artifact = self.task.to_artifact(self.metrics, self.state)
        checkpoint.save(self.output, artifact, checkpoint.optimizer_tensors(self.optimizers), self.state)
        checkpoint.delete_old(self.output, self.settings.keep_checkpoints, self.state.best.get("step"))

    def has_finite_weights(self) -> bool:
        """Whether all weights are finite. If not, nothing is saved, and the next line of metrics triggers a rewind."""
        return all(bool(p.isfinite().all()) for p in self.task.objective.parameters())

    def progress(self) -> float:
        """The spent share of the budget, by the clock of the main process."""
        self.state.seconds = time.perf_counter() - self.started_at
        spent = self.settings.progress(self.state.step, self.state.tokens, self.state.seconds)
        return self.processes.broadcast(spent) if self.settings.minutes is not None else spent

    def train(self, stop: StopRequest) -> TrainResult:
        """Train until the budget is spent or a signal requests a stop."""
        settings = self.settings
        if self.processes.world_size == 1 and len(self.state.sums) == len(self.sums):  # a line is in progress
            self.sums += torch.tensor(self.state.sums, device=self.processes.device)
        progress, saved_at = self.progress(), time.perf_counter()
        if self.is_out_of_patience():
            return self.finish()
        while progress < 1:
            self.step(progress)
            before, progress = progress, self.progress()
            is_log_due = self.state.step % settings.log_every == 0 or progress >= 1
            if is_log_due and not self.log_metrics(progress):
                progress, saved_at = self.progress(), time.perf_counter()
                continue
            is_evaluated = settings.is_evaluation_due(before, progress)
            if is_evaluated:
                self.evaluate()
            is_stopped = (is_log_due or self.processes.world_size == 1) and self.processes.any(stop.is_set)
            is_save_due = settings.is_save_due(self.state.step, time.perf_counter() - saved_at)
            is_save_due |= is_evaluated or is_stopped
            if is_save_due and self.processes.is_main and self.has_finite_weights():
                self.save()
                saved_at = time.perf_counter()
            if is_stopped:
                how = "Rerun the command to resume" if self.resumes else "Rerun the command with --resume to resume"
                self.log(f"stopped at step {self.state.step:,} and saved a checkpoint. {how}.")
                return TrainResult(None, self.state, self.metrics, self.task.dev_size, stop.number)
            if self.is_out_of_patience():
                self.log(f"no improvement in {settings.patience} evaluations: ending at step {self.state.step:,}")
                break
        return self.finish()

    def is_out_of_patience(self) -> bool:
        patience = self.settings.patience
        return bool(patience) and self.processes.any(self.state.evaluations_since_best >= patience)

    def step(self, progress: float) -> None:
        """One training step."""
        state, settings = self.state, self.settings
        micro_batches, tokens = self.task.next_batch(state.step, progress, self.processes)
        torch.manual_seed(mix_seed(settings.seed + self.processes.rank * 2**32, state.step) >> 1)
        self.task.objective.train()
        for number, micro_batch in enumerate(micro_batches):
            accumulates = number < len(micro_batches) - 1 and self.processes.world_size > 1
            with self.objective.no_sync() if accumulates else nullcontext():  # type: ignore[operator]
                loss, sums = self.objective(*micro_batch)
                (loss / len(micro_batches)).backward()
            self.sums += sums.detach()
        max_norm = settings.max_grad_norm or math.inf
        self.grad_norm: Tensor = nn.utils.clip_grad_norm_(self.task.objective.parameters(), max_norm)
        factor = settings.learning_rate_factor(progress) * state.backoff
        for optimizer, rates in zip(self.optimizers, self.peak_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        state.step += 1
        state.tokens += tokens
        self.tokens_since_log += tokens

    def reset_sums(self) -> None:
        """Start a new line of metrics."""
        self.sums = torch.zeros(len(self.task.metric_names), 2, device=self.processes.device)
        self.tokens_since_log, self.logged_at = 0, time.perf_counter()

    def log_metrics(self, progress: float) -> bool:
        """Write a line of metrics; False if the training had to rewind."""
        names, step = self.task.metric_names, self.state.step
        sums = self.processes.sum(self.sums.double().clone()).tolist()
        numbers = {name: total / max(count, 1) for name, (total, count) in zip(names, sums, strict=True)}
        numbers["grad_norm"] = float(self.grad_norm)
        is_finite = all(math.isfinite(value) for value in numbers.values())
        alarm = self.task.check_metrics(numbers, progress, step) if is_finite else Alarm("not a number", rewind=True)
        if alarm is not None and alarm.rewind:
            self.rewind(f"{alarm.text} ({', '.join(f'{k} {v:.3g}' for k, v in numbers.items())})")
            return False
        speed = self.tokens_since_log / (time.perf_counter() - self.logged_at)
        if self.train_log:
            seconds, rate = self.state.seconds, self.optimizers[0].param_groups[0]["lr"]
            numbers |= {"learning_rate": rate, "tokens_per_second": speed}
            self.train_log.write(step, "train", {"tokens": self.state.tokens, "seconds": seconds, **numbers})
            seconds_left = seconds * (1 / max(progress, 1e-9) - 1)
            left_text = f"{seconds_left / 60:.0f} min left" if seconds_left >= 90 else f"{seconds_left:.0f} s left"
            shown = " ".join(f"{name} {numbers[name]:.3f}" for name in names)
            self.train_log.show_progress(progress, f" {shown} {speed / 1000:,.1f} ktok/s {left_text}")
        if alarm is not None:
            last = self.last_checkpoint()
            raise AlbertkitError(f"stopped at step {step:,}: {alarm.text}. The last checkpoint is {last}.")
        self.reset_sums()
        return True

    def last_checkpoint(self) -> Path:
        return checkpoint.checkpoint_folder(self.output, checkpoint.saved_steps(self.output)[-1])

    def rewind(self, problem: str) -> None:
        """Return to the last checkpoint (from the second time on, to the best one) with half the learning rate."""
        self.rewinds += 1
        if self.rewinds > MAX_REWINDS:
            raise AlbertkitError(
                f"step {self.state.step:,}: {problem}, after {MAX_REWINDS} rewinds. Lower --learning-rate or raise "
                f"--warmup-ratio, then resume from {self.last_checkpoint()} with --resume."
            )
        self.processes.barrier()
        failed, seconds = self.state.step, self.state.seconds
        last = checkpoint.saved_steps(self.output)[-1]
        target = last if self.rewinds == 1 else self.state.best.get("step", last)
        target = int(self.processes.broadcast(float(target)))
        self.restore_newest([step for step in checkpoint.saved_steps(self.output) if step <= target])
        if self.processes.is_main:
            checkpoint.delete_after(self.output, self.state.step)
        self.processes.barrier()
        self.state.backoff *= 0.5**self.rewinds
        self.started_at = time.perf_counter() - (self.state.seconds if self.settings.minutes is None else seconds)
        step, backoff = self.state.step, self.state.backoff
        self.log(f"step {failed:,}: {problem}; rewinding to step {step:,} with {backoff:g} × the learning rate")
        if self.train_log:
            self.train_log.write(failed, "rewind", {"to": step, "backoff": backoff})
        self.reset_sums()

    def evaluate(self) -> None:
        """Compute metrics on held-out data, and record the best checkpoint."""
        if self.processes.is_main:
            self.task.objective.eval()
            try:
                self.metrics = self.task.evaluate()
            except NonFiniteError as error:  # the next line of metrics triggers a rewind
                self.metrics = {}
                self.log(f"step {self.state.step:,}: {error}")
            self._update_best()
            if self.train_log and self.metrics:
                self.train_log.write(self.state.step, "eval", {"tokens": self.state.tokens, **self.metrics})
                names = [*list(self.metrics)[: LOGGED_SCORES - 1], self.task.selection_metric, *self.metrics]
                names = [name for name in dict.fromkeys(names) if name in self.metrics][:LOGGED_SCORES]
                shown = ", ".join(f"{name.replace('_', ' ')} {self.metrics[name]:.4f}" for name in names)
                size = f" ({self.task.dev_size:,} held-out examples)" if self.task.dev_size else ""
                self.log(f"step {self.state.step:,}: {shown}{size}")
        self.processes.barrier()
        self.tokens_since_log, self.logged_at = 0, time.perf_counter()

    def _update_best(self) -> None:
        score = self.metrics.get(self.task.selection_metric)
        if score is None or not math.isfinite(score):
            return
        best, sign = self.state.best, 1 if lower_is_better(self.task.selection_metric) else -1
        self.state.evaluations_since_best += 1
        ties_with_start = best.get("step") == 0 and score == best["score"]  # then the trained model is preferred
        if not best or ties_with_start or sign * score < sign * best["score"]:
            self.state.best, self.state.evaluations_since_best = {"step": self.state.step, "score": score}, 0

    def finish(self) -> TrainResult:
        """Write the finished model."""
        target = self.output / "model"
        if self.processes.is_main:
            self.save()
            best = self.state.best.get("step", self.state.step)
            if self.settings.load_best and (best != self.state.step or not self.metrics):
                metrics, last = self.metrics, self.state
                self.restore_newest([self.state.step, best])
                self.metrics = self.task.evaluate() or metrics
                if self.state.step != best:
                    self.log(f"the best checkpoint is damaged; the result is the last one, of step {last.step:,}")
                elif best == 0 < last.step:
                    self.log("every evaluation was worse than the initial model; the result is the initial model")
                self.state = last
            write_artifact(self.task.to_artifact(self.metrics, self.state), target, overwrite=target.exists())
        self.processes.barrier()
        return TrainResult(target, self.state, self.metrics, self.task.dev_size)
