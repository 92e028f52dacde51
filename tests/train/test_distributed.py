"""Real processes: killed, told to stop, and two training as one."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from albertkit.cli.entry_point import main
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch
from albertkit.train import checkpoint, distributed
from albertkit.train.distributed import (
    ProcessGroup,
    fast_float32_products,
    has_amd_avx512,
    process_group,
    survives_bf16,
)
from albertkit.train.loop import TrainingRun
from albertkit.train.train_settings import TrainSettings
from tests.conftest import tiny
from tests.train.test_loop import lines, weights
from tests.waiting import LIMIT, wait_until

# As in the tests' own process: one thread, so that sums are made in the same order.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def command(shards: Path, out: Path, config: Path, **given) -> list[str]:
    """`albertkit pretrain` with the settings of `Bench.train`."""
    quick = {"batch_size": 8, "evaluations": 2, "log_every": 5, "lengths": "16", "eval_rows": 64, "device": "cpu"}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in {**quick, **given}.items()]
    options.append("--no-tensorboard")
    return ["-m", "albertkit", "pretrain", str(shards), "-o", str(out), "--shape", str(config), *options]


@pytest.fixture
def config(bench, tmp_path) -> Path:
    path = tmp_path / "shape.json"
    path.write_text(json.dumps(bench.config.to_dict()))
    return path


def act(line: list[str], output: Path, errors: Path, at: int, sent: int) -> None:
    """What a forked process does: the command line, with its output in files, and a signal to itself before a step."""
    step = TrainingRun.step

    def struck(run: TrainingRun, progress: float) -> None:
        if run.state.step == at:
            os.kill(os.getpid(), sent)
        step(run, progress)

    TrainingRun.step = struck
    for number, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), number)
    torch.set_num_threads(1)
    sys.argv = ["albertkit", *line]
    main()


class Forked:
    """`albertkit` in a process of its own, forked from one that has read torch already."""

    def __init__(self, line: list[str], place: Path, at: int, sent: int) -> None:
        self.output, self.errors = place / "output", place / "errors"
        self.errors.write_bytes(b"")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch._dynamo", "matplotlib.figure", "tests.train.test_distributed"])
        self.process = context.Process(target=act, args=(line, self.output, self.errors, at, sent))
        self.process.start()

    def end(self) -> int | None:
        """Its exit code."""
        self.process.join(LIMIT)
        return self.process.exitcode


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_sigkill_and_sigterm_then_the_same_bits(bench, tmp_path, config):
    """Killed by the system, resumed, asked to stop, resumed again: as if nothing had happened."""
    given = {"steps": 40, "save_steps": 5, "log_every": 1}
    bench.train(tmp_path / "straight", **given)
    out = tmp_path / "killed"
    line = command(bench.shards, out, config, **given)[2:]
    first = Forked(line, tmp_path, 13, signal.SIGKILL)
    assert first.end() == -signal.SIGKILL, first.errors.read_text()
    assert checkpoint.saved_steps(out)[-1] == 10 and not (out / "model").exists()
    second = Forked([*line, "--resume"], tmp_path, 22, signal.SIGTERM)
    assert second.end() == 143 and second.output.read_bytes() == b"", second.errors.read_text()
    assert b"resuming from step 10" in second.errors.read_bytes()
    assert b"and saved a checkpoint. Rerun the command to resume" in second.errors.read_bytes()
    assert checkpoint.saved_steps(out)[-1] == 23 and not (out / "model").exists()
    bench.train(out, resume=True, **given)
    assert weights(out) == weights(tmp_path / "straight")
    assert lines(out) == lines(tmp_path / "straight")


@pytest.mark.slow
def test_two_processes_train_as_one(bench, tmp_path, config):
    """Four updates by one process, four by two, four by one again: the numbers of twelve by one."""
    given = {"schedule": "constant", "warmup_ratio": 0.0, "log_every": 1, "evaluations": 1}
    bench.train(tmp_path / "one", steps=4, **given)
    bench.train(tmp_path / "team", steps=4, **given)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2"]
    line = command(bench.shards, tmp_path / "team", config, steps=8, **given)
    done = subprocess.run(
        [sys.executable, *torchrun, *line, "--resume"], capture_output=True, env=ENVIRONMENT, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert len(done.stdout.splitlines()) == 1  # only the first process speaks
    assert json.loads(done.stdout)["tokens"] == 8 * 128
    for run in ("one", "team"):
        bench.train(tmp_path / run, resume=True, steps=12, **given)
    one, team = (lines(tmp_path / run, "train") for run in ("one", "team"))
    assert [line["step"] for line in team] == [line["step"] for line in one] == list(range(1, 13))
    for mine, theirs in zip(team, one, strict=True):
        for name in ("mlm_loss", "sop_loss", "mlm_accuracy", "sop_accuracy"):
            assert mine[name] == pytest.approx(theirs[name], abs=2e-6), (mine["step"], name)
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-4)


# What torchrun does, with workers forked from a process that has torch already: reading torch takes most of the time of
# a short training.
LAUNCH = """
import os, sys, torch._dynamo
from pathlib import Path
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from albertkit.cli.entry_point import app
from albertkit.train import pretrain

def work(pids, *line):
    Path(pids, os.environ["RANK"]).write_text(str(os.getpid()))
    app(line, standalone_mode=False)

config = LaunchConfig(
    min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:0", local_addr="127.0.0.1",
    max_restarts=1, monitor_interval=0.1, start_method="fork", run_id="test",
)
elastic_launch(config, work)(*sys.argv[1:])
"""


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_the_run_goes_on(bench, tmp_path, config):
    """Two processes, one killed: torchrun starts both again, without --resume in the command. The
    checkpoint is one that a single process goes on from, and the numbers are those of a single process.
    """
    given = {"schedule": "constant", "warmup_ratio": 0.0, "log_every": 1, "evaluations": 1, "save_steps": 4}
    out, pids = tmp_path / "team", tmp_path / "pids"
    pids.mkdir()
    line = [sys.executable, "-c", LAUNCH, str(pids), *command(bench.shards, out, config, steps=40, **given)[2:]]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
        try:
            wait_until(lambda: 8 in checkpoint.saved_steps(out) or process.poll() is not None)
            assert process.poll() is None, "it ended"
            os.kill(int((pids / "1").read_text()), signal.SIGKILL)
            output, errors = process.communicate(timeout=LIMIT)
        finally:
            process.terminate()  # it takes its workers with it
        assert process.returncode == 0, errors.decode()[-2000:]
    assert b"resuming from step" in errors and json.loads(output)["tokens"] == 40 * 128
    bench.train(out, resume=True, **{**given, "steps": 42})
    bench.train(tmp_path / "one", **{**given, "steps": 42})
    one, team = (lines(run, "train") for run in (tmp_path / "one", out))
    assert [line["step"] for line in team] == list(range(1, 43))
    for mine, theirs in zip(team, one, strict=True):
        assert mine["mlm_loss"] == pytest.approx(theirs["mlm_loss"], abs=5e-6 if mine["step"] < 12 else 1e-3), mine[
            "step"
        ]


def test_the_first_process_writes_nothing_before_all_have_looked(tmp_path):
    """Otherwise one that comes late would take the first one's checkpoint for somebody else's training."""
    seen = []

    class Processes(ProcessGroup):
        def barrier(self) -> None:
            seen.append(sorted(path.name for path in tmp_path.iterdir()))

    run = object.__new__(TrainingRun)  # building one whole would need the other process
    run.settings, run.output, run.processes = TrainSettings(steps=1), tmp_path, Processes(0, 2, torch.device("cpu"))
    run.state, run.save = checkpoint.TrainState(), lambda: (tmp_path / "checkpoints").mkdir()
    run.open(resume=False)
    assert seen == [[], ["checkpoints", "settings.json"]]


# Products on a CPU -----------------------------------------------------------------------------------------------


def test_fast_products_round_like_float32_and_end_with_the_training():
    """In bf16 the error would be 4e-3. Shapes are those of a layer: forward, gradients, and attention."""
    torch.manual_seed(0)
    x, w, y = torch.randn(211, 96), torch.randn(160, 96), torch.randn(211, 160)
    heads = torch.randn(12, 37, 16)
    pairs = [(x, w.T), (y, w), (y.T, x), (heads, heads.transpose(1, 2)), (heads.transpose(1, 2), heads)]
    with process_group("cpu") as processes:
        assert processes.world_size == 1
        for left, right in pairs:
            exact = left.double() @ right.double()
            assert ((left @ right).double() - exact).abs().max() < 1e-5 * exact.abs().max()
    if has_amd_avx512():
        assert torch.backends.mkldnn.matmul.fp32_precision != "bf16"


def test_gradients_with_fast_products_are_those_of_mkl():
    """Of a batch with several lengths, whose attention is computed in plain products instead of one fused operator."""
    if not has_amd_avx512():
        pytest.skip("this processor has no AVX-512, or is not from AMD")
    torch.manual_seed(0)
    model = AlbertModel(tiny(num_hidden_layers=2)).train()
    batch = Batch.of([[5] * 3 + [7] * n for n in (30, 30, 17, 2)])

    def gradients() -> dict[str, torch.Tensor]:
        model.zero_grad()
        model(batch).encoded.hidden.square().mean().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    expected = gradients()
    with fast_float32_products(torch.device("cpu")):
        found = gradients()
    assert expected.keys() == found.keys()
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max() < 1e-4 * gradient.abs().max() + 1e-7, name
    assert torch.backends.cuda.flash_sdp_enabled()


def test_products_that_are_not_exact_are_left_to_mkl(monkeypatch):
    if not has_amd_avx512():
        pytest.skip("this processor has no AVX-512, or is not from AMD")
    products = torch.backends.mkldnn.matmul
    with fast_float32_products(torch.device("cpu")):
        assert products.fp32_precision == "bf16"
    monkeypatch.setattr(distributed, "_is_product_exact", lambda: False)
    with fast_float32_products(torch.device("cpu")):
        assert products.fp32_precision != "bf16"


def test_bf16_on_a_cpu_that_cannot_multiply_it_is_an_error(monkeypatch):
    monkeypatch.setattr(distributed, "BF16_PRODUCT", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    survives_bf16.cache_clear()
    try:
        with (
            pytest.raises(AlbertkitError, match="bf16 is not available"),
            process_group("cpu", "bf16"),
        ):
            pass
    finally:
        survives_bf16.cache_clear()
