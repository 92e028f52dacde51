"""The training loop, the only one of the project.

In: a `TrainingTask` (what is trained, on what), `TrainSettings`, a folder. Out: that folder, with checkpoints, metrics, a plot and the finished
model. `pretrain.py`, and later fine-tuning and distillation, say what the work is; everything else happens here once:
budget, schedule, precision, compiling, accumulation, many processes, checkpoints, resuming, stopping, alarms.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from albertkit.artifact import read_json, write_artifact
from albertkit.data.masking import mix
from albertkit.data.shard_writer import write_json
from albertkit.errors import AlbertkitError
from albertkit.train import checkpoint
from albertkit.train.distributed import ProcessGroup, is_restart, peak, plan_attention, process_group
from albertkit.train.interrupt import StopRequest, stop_on_signals
from albertkit.train.optim import optimizers
from albertkit.train.train_log import TrainLog, plot
from albertkit.train.train_settings import TrainSettings
from albertkit.train.training_task import Alarm, TrainingTask, TrainResult

REWINDS = 3
SHOWN = 6  # scores of an evaluation that are said; metrics.jsonl and the report hold all


def train(
    work: TrainingTask,
    settings: TrainSettings,
    output: Path | str,
    resume: bool = False,
    log: Callable[[str], None] = lambda text: None,
    progress_bar: bool = False,
) -> TrainResult:
    """Train until the budget is spent; `log` gets sentences for the user."""
    output = Path(output)
    with process_group(settings.device) as processes, stop_on_signals() as stop:
        run = Run(work, settings, output, processes, log if processes.is_main else lambda text: None)
        run.open(resume)
        run.report = TrainLog(output, settings, run.state.step, progress_bar) if processes.is_main else None
        try:
            return run.go(stop)
        except torch.OutOfMemoryError:
            raise AlbertkitError(
                f"the device is out of memory with {settings.micro_batch_size or settings.batch_size} rows at once; set --micro-batch-size to half"
            ) from None
        finally:
            if run.report:
                run.report.close()


class Run:
    """One training in its folder."""

    report: TrainLog | None = None
    parted = False  # whether each process has a part of the moments
    resumes = False  # whether the caller goes on where a training stopped

    def __init__(
        self,
        work: TrainingTask,
        settings: TrainSettings,
        output: Path,
        processes: ProcessGroup,
        log: Callable[[str], None],
    ) -> None:
        self.work, self.settings, self.output, self.processes, self.log = work, settings, output, processes, log
        self.state = checkpoint.TrainState()
        work.objective.to(processes.device)
        cuda = processes.device.type == "cuda"
        plan_attention(work.has_fixed_shape)
        self.parted = settings.shard_optimizer and processes.world_size > 1
        self.optimizers = optimizers(work.objective, settings, self.parted)
        self.tops = [[group["lr"] for group in o.param_groups] for o in self.optimizers]
        self.step_of = work.objective
        if settings.compile == "whole":
            self.step_of = torch.compile(work.objective, dynamic=False)  # type: ignore[assignment]
        elif settings.compile == "layer" or (settings.compile == "auto" and cuda):
            work.compile()
        if processes.world_size > 1:
            self.step_of = nn.parallel.DistributedDataParallel(self.step_of, find_unused_parameters=True)
        self.peak = peak(processes.device) if processes.is_main else 1.0
        self.numbers: dict[str, float] = {}
        self.rewinds = 0
        self.clear()

    def open(self, resume: bool) -> None:
        """Make the folder, or go on from its last checkpoint."""
        there, self.resumes = checkpoint.steps(self.output), resume
        resume = resume or is_restart()
        self.processes.barrier()  # all have looked before the first one writes
        mine = asdict(self.settings)
        if there and not resume:
            raise AlbertkitError(
                f"{self.output} holds a training at step {there[-1]}; go on with --resume, or choose another folder"
            )
        if there:
            self.restore(there[-1])  # what is refused is refused before anything is written
        if self.processes.is_main:
            try:
                self.output.mkdir(parents=True, exist_ok=True)
                checkpoint.sweep(self.output)
                if there and (self.output / "settings.json").is_file():
                    before = read_json(self.output / "settings.json")
                    changed = [f"{k} {before.get(k)} → {v}" for k, v in mine.items() if before.get(k) != v]
                    if changed:
                        self.log(f"settings changed since the last start: {', '.join(changed)}")
                write_json(self.output / "settings.json", mine)
            except OSError as error:
                raise AlbertkitError(
                    f"{self.output} cannot be written: {error.strerror}; choose another folder"
                ) from None
        if there:
            self.log(f"going on from step {self.state.step:,} ({self.state.tokens:,} tokens)")
        else:
            if self.settings.load_best and getattr(self.work, "is_trained", False):
                self.evaluate()  # the start itself is kept, if all that follows is worse
            if self.gather(True) and self.processes.is_main:
                self.save()
        self.processes.barrier()
        self.began = time.perf_counter() - self.state.seconds

    def restore(self, step: int) -> None:
        """Put everything back as it was at a checkpoint."""
        artifact, tensors, state = checkpoint.load(checkpoint.place(self.output, step))
        try:
            self.work.restore(artifact, state.data)
        except AlbertkitError as error:
            raise AlbertkitError(f"{self.output}: {error}") from None
        checkpoint.restore_optimizers(self.optimizers, tensors)
        self.state = state
        self.numbers = artifact.meta.metrics.get("held-out", {})

    def gather(self, wanted: bool) -> bool:
        """Whether the first process wants to save. Where moments are parted, all processes ask this together, and it gets the others' parts."""
        if self.parted:
            wanted = self.processes.broadcast(float(wanted)) > 0
            for optimizer in self.optimizers if wanted else ():
                optimizer.consolidate_state_dict(0)  # type: ignore[attr-defined]
        return wanted

    def save(self) -> None:
        """Write a checkpoint and delete those that are no longer needed."""
        self.state.data, self.state.sums = self.work.data_position(), self.sums.tolist()
        artifact = self.work.to_artifact(self.numbers, self.state)
        checkpoint.save(self.output, artifact, checkpoint.optimizer_tensors(self.optimizers), self.state)
        checkpoint.prune(self.output, self.settings.keep_checkpoints, self.state.best.get("step"))

    def sound(self) -> bool:
        """Whether all weights are finite. What is not is never saved, and the next line of metrics rewinds it."""
        return all(bool(p.isfinite().all()) for p in self.work.objective.parameters())

    def progress(self) -> float:
        """Share of the budget that is spent; the first process's clock counts."""
        self.state.seconds = time.perf_counter() - self.began
        spent = self.settings.progress(self.state.step, self.state.tokens, self.state.seconds)
        return self.processes.broadcast(spent) if self.settings.minutes is not None else spent

    def go(self, stop: StopRequest) -> TrainResult:
        """Step after step until the budget is spent or someone asks to stop."""
        state, settings = self.state, self.settings
        if self.processes.world_size == 1 and len(state.sums) == len(
            self.sums
        ):  # the line of metrics that was under way
            self.sums += torch.tensor(state.sums, device=self.processes.device)
        progress, saved = self.progress(), time.perf_counter()
        if settings.patience and self.processes.any(state.worse >= settings.patience):
            return self.finish()
        while progress < 1:
            self.step(progress)
            state = self.state
            before, progress = progress, self.progress()
            due = state.step % settings.log_every == 0 or progress >= 1
            if due and not self.log_metrics(progress):
                progress, saved = self.progress(), time.perf_counter()
                continue
            marks = settings.evaluations
            evaluated = marks > 0 and (int(progress * marks) > int(before * marks) or progress >= 1)
            if evaluated:
                self.evaluate()
            stopped = self.processes.any(stop.asked) if due or self.processes.world_size == 1 else False
            old = time.perf_counter() - saved > 60 * settings.save_minutes
            counted = settings.save_steps is not None and state.step % settings.save_steps == 0
            wanted = self.processes.is_main and (evaluated or stopped or old or counted) and self.sound()
            if self.gather(wanted) and self.processes.is_main:
                self.save()
                saved = time.perf_counter()
            if stopped:
                how = "" if self.resumes else " with --resume"
                self.log(f"stopped at step {state.step:,} and saved; the same command{how} goes on")
                return TrainResult(None, state, self.numbers)
            if settings.patience and self.processes.any(state.worse >= settings.patience):
                self.log(f"no better for {settings.patience} evaluations: ending at step {state.step:,}")
                break
        return self.finish()

    def step(self, progress: float) -> None:
        """One update of the weights."""
        state, settings = self.state, self.settings
        parts, tokens = self.work.next_batch(state.step, progress, self.processes)
        torch.manual_seed(mix(settings.seed + self.processes.rank * 2**32, state.step) >> 1)
        self.work.objective.train()
        for number, part in enumerate(parts):
            more = number < len(parts) - 1
            with self.step_of.no_sync() if more and self.processes.world_size > 1 else nullcontext():  # type: ignore[operator]
                loss, sums = self.step_of(*part)
                (loss / len(parts)).backward()
            self.sums += sums.detach()
        clip = settings.max_grad_norm or math.inf
        self.norm = nn.utils.clip_grad_norm_(self.work.objective.parameters(), clip)
        factor = settings.factor(progress) * state.backoff
        for optimizer, tops in zip(self.optimizers, self.tops, strict=True):
            for group, top in zip(optimizer.param_groups, tops, strict=True):
                group["lr"] = top * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        state.step += 1
        state.tokens += tokens
        self.since += tokens

    def clear(self) -> None:
        """Start summing anew."""
        self.sums = torch.zeros(len(self.work.metric_names), 2, device=self.processes.device)
        self.since, self.clock = 0, time.perf_counter()

    def log_metrics(self, progress: float) -> bool:
        """Write a line of metrics; False if the training had to rewind."""
        sums = self.processes.sum(self.sums.double().clone()).tolist()
        numbers = {
            name: total / max(count, 1) for name, (total, count) in zip(self.work.metric_names, sums, strict=True)
        }
        numbers["gradient"] = float(self.norm)
        finite = all(math.isfinite(value) for value in numbers.values())
        alarm = (
            self.work.check_metrics(numbers, progress, self.state.step)
            if finite
            else Alarm("not a number", rewind=True)
        )
        if alarm is not None and alarm.rewind:
            self.rewind(f"{alarm.text} ({', '.join(f'{k} {v:.3g}' for k, v in numbers.items())})")
            return False
        speed = self.since / (time.perf_counter() - self.clock)
        share = speed * self.work.flops_per_token / self.peak / self.processes.world_size
        if self.report:
            rate = self.optimizers[0].param_groups[0]["lr"]
            state, left = self.state, self.state.seconds * (1 / max(progress, 1e-9) - 1)
            self.report.line(
                state.step, "train", tokens=state.tokens, seconds=state.seconds, **numbers, rate=rate,
                tokens_per_second=speed, share_of_peak=share,
            )  # fmt: skip
            shown = " ".join(f"{name} {numbers[name]:.3f}" for name in self.work.metric_names)
            left_text = f"{left / 60:.0f} min left" if left >= 90 else f"{left:.0f} s left"
            self.report.show(progress, f" {shown} {speed / 1000:,.1f} ktok/s {share:.0%} of peak {left_text}")
        if alarm is not None:
            raise AlbertkitError(
                f"stopped at step {self.state.step:,}: {alarm.text}. The last checkpoint is "
                f"{checkpoint.place(self.output, checkpoint.steps(self.output)[-1])}"
            )
        self.clear()
        return True

    def rewind(self, what: str) -> None:
        """Back to the last checkpoint, and from the second time on to the best one, at half the rate."""
        self.rewinds += 1
        if self.rewinds > REWINDS:
            raise AlbertkitError(
                f"step {self.state.step:,}: {what}, after {REWINDS} rewinds; lower --learning-rate or raise --warmup-ratio, "
                f"then go on from {checkpoint.place(self.output, checkpoint.steps(self.output)[-1])} with --resume"
            )
        self.processes.barrier()
        failed, seconds = self.state.step, self.state.seconds
        last = checkpoint.steps(self.output)[-1]
        back = last if self.rewinds == 1 else self.state.best.get("step", last)
        self.restore(int(self.processes.broadcast(float(back))))
        if self.processes.is_main:  # what came after is not to be trusted
            checkpoint.forget(self.output, self.state.step)
        self.processes.barrier()
        self.state.backoff *= 0.5**self.rewinds
        self.began = time.perf_counter() - (self.state.seconds if self.settings.minutes is None else seconds)
        self.log(f"step {failed:,}: {what}; back to step {self.state.step:,} at {self.state.backoff:g} of the rate")
        if self.report:
            self.report.line(failed, "rewind", to=self.state.step, backoff=self.state.backoff)
        self.clear()

    def evaluate(self) -> None:
        """Score on held-out data, and remember whether it is the best so far."""
        if self.processes.is_main:
            self.work.objective.eval()
            self.numbers = self.work.evaluate()
            score = self.numbers.get(self.work.selection_metric)
            if score is not None and math.isfinite(score):
                sign = 1 if "loss" in self.work.selection_metric or self.work.selection_metric == "rmse" else -1
                self.state.worse += 1
                best = self.state.best
                drawn = best.get("step") == 0 and score == best["score"]  # what was trained wins against the start
                if not best or drawn or sign * score < sign * best["score"]:
                    self.state.best, self.state.worse = {"step": self.state.step, "score": score}, 0
            if self.report and self.numbers:
                self.report.line(self.state.step, "eval", tokens=self.state.tokens, **self.numbers)
                names = [
                    *list(self.numbers)[: SHOWN - 1],
                    self.work.selection_metric,
                    *self.numbers,
                ]  # the one that decides is there
                names = [name for name in dict.fromkeys(names) if name in self.numbers][:SHOWN]
                shown = ", ".join(f"{name.replace('_', ' ')} {self.numbers[name]:.4f}" for name in names)
                self.log(f"step {self.state.step:,}: {shown}")
        self.processes.barrier()
        self.clock = time.perf_counter()
        self.since = 0

    def finish(self) -> TrainResult:
        """Write the finished model and the plot."""
        target = self.output / "model"
        if self.gather(True) and self.processes.is_main:
            self.save()
            best = self.state.best.get("step", self.state.step)
            if self.settings.load_best and (best != self.state.step or not self.numbers):
                kept, last = self.numbers, self.state
                self.restore(best)
                self.numbers = self.work.evaluate() or kept
                if best == 0 < last.step:
                    self.log("every evaluation was worse than the start, so the model stays as it was there")
                self.state = last
            artifact = self.work.to_artifact(self.numbers, self.state)
            write_artifact(artifact, target, overwrite=target.exists())
            plot(self.output / "metrics.jsonl", self.output / "loss.png")
        self.processes.barrier()
        return TrainResult(target, self.state, self.numbers)
