"""Bulk work on a device, here torch on the CPU: equal to the runtime, exactly once, and never on the CPU by mistake."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest
import torch

from albertkit.albert import Albert
from albertkit.bulk import engines
from albertkit.bulk.device import open_outputs
from albertkit.bulk.worker import PartWorker
from albertkit.errors import AlbertkitError
from tests.bulk.sample_texts import cosines, run_bulk, texts, vectors, write_lines
from tests.bulk.test_engines import in_process as on_cpu
from tests.bulk.test_engines import keys
from tests.bulk.test_tasks import tasks  # noqa: F401  a fixture

parquet = pytest.importorskip("pyarrow.parquet")
on_device = partial(run_bulk, device="torch")


def in_process(job, parts, workers):
    """One worker and its device, without processes."""
    yield from map(PartWorker(job, open_outputs(job)), parts)


def test_vectors_are_those_of_the_runtime(models, tmp_path):
    lines = [*texts(60), "", "猫猫猫猫猫", *texts(8, 1)]
    file, out = write_lines(tmp_path / "a.txt", lines), tmp_path / "out"
    with pytest.warns(UserWarning, match="cannot read the text '猫猫猫猫猫'|cannot read 1 of"):
        done = on_device("embed", [str(file)], str(out), engine=in_process, model=str(models / "float"), part_rows=32)
    assert (done.rows, done.parts, done.unreadable_rows) == (70, 3, 1)
    found, computed = vectors(out)
    assert found == keys((file, 70))
    with pytest.warns(UserWarning):
        assert cosines(computed, Albert(models / "float").embed(lines)).min() > 0.9999


def test_labels_and_spans_are_those_of_the_runtime(tasks, tmp_path):  # noqa: F811
    file = write_lines(tmp_path / "a.txt", lines := texts(30))
    run = partial(on_device, inputs=[str(file)], engine=in_process, part_rows=10, format="parquet")
    run("classify", output=str(tmp_path / "labels"), model=str(tasks / "classify"), task_options={"pair": "a cat"})
    run("tag", output=str(tmp_path / "spans"), model=str(tasks / "tag"))
    labels = parquet.read_table(tmp_path / "labels").to_pylist()
    expected = Albert(tasks / "classify").classify(lines, ["a cat"] * 30)
    assert [row["label"] for row in labels] == [one.label for one in expected]
    assert np.allclose([row["probability"] for row in labels], [one.probability for one in expected], atol=1e-4)
    spans = [row["spans"] for row in parquet.read_table(tmp_path / "spans").to_pylist()]
    entities = [one.spans for one in Albert(tasks / "tag").tag(lines)]
    assert [[(s["start"], s["end"], s["label"]) for s in row] for row in spans] == [
        [(s.start, s.end, s.label) for s in row] for row in entities
    ]


@pytest.mark.slow
def test_a_killed_device_stops_the_run_which_resumes_with_the_same_files(models, tmp_path):
    """Two workers share the device; the files are those of one worker without processes."""
    file, out = write_lines(tmp_path / "a.txt", texts(900)), tmp_path / "out"
    run = partial(on_device, "embed", [str(file)], model=str(models / "float"), part_rows=100)

    def kill(what: str, done: int, total: int) -> None:
        if what == "parts" and done:
            (device,) = (child for child in active_children() if "device" in child.name)
            os.kill(device.pid, signal.SIGKILL)

    with pytest.raises(AlbertkitError, match="process of device torch ended.*Rerun the command"):
        run(str(out), workers=2, progress=kill)
    assert not active_children()
    before = {path.name for path in out.glob("part-*")}
    assert 1 <= len(before) < 9
    done = run(str(out), workers=2)
    assert (done.done_parts, done.rows) == (9 - len(before), 900)
    run(str(tmp_path / "alone"), engine=in_process)
    for path in sorted(out.glob("part-*")):
        assert path.read_bytes() == (tmp_path / "alone" / path.name).read_bytes()
    found, _ = vectors(out)
    assert found == keys((file, 900))


@pytest.mark.slow
def test_a_run_leaves_no_temporary_files(models, tmp_path):
    """Of the socket of the device, whose process is killed."""
    file = write_lines(tmp_path / "a.txt", texts(20))
    line = ["embed", "-m", models / "float", "--engine", "local", "--workers", "1", "--device", "torch", file]
    with tempfile.TemporaryDirectory() as temporary:  # its path is short, as the path of a socket must be
        subprocess.run(
            [sys.executable, "-m", "albertkit", *map(str, line), "-o", str(tmp_path / "out")],
            env={**os.environ, "TMPDIR": temporary},
            check=True,
            capture_output=True,
        )
        assert list(Path(temporary).rglob("*")) == []
    assert vectors(tmp_path / "out")[0] == keys((file, 20))


def test_only_local_processes_need_the_device_here(models, tmp_path):
    """The GPUs of a cluster are on other machines."""
    file = write_lines(tmp_path / "a.txt", texts(10))
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    reached = []

    def elsewhere(job, parts, workers):
        reached.append(job.options.device)
        return on_cpu(replace(job, options=replace(job.options, device="cpu")), parts, workers)

    run = partial(run_bulk, "embed", [str(file)], model=str(models / "float"), device="cuda")
    assert run(str(tmp_path / "out"), engine=elsewhere).done_parts == 1 and reached == ["cuda"]
    with pytest.raises(AlbertkitError, match="torch finds no GPU"):
        run(str(tmp_path / "local"))
    assert not (tmp_path / "local").exists()


class Cluster:
    """The resources of a Ray cluster."""

    def __init__(self, total: int, free: float) -> None:
        self.total, self.free = total, free

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 8.0, **({"GPU": float(self.total)} if self.total else {})}

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 8.0, **({"GPU": self.free} if self.free else {})}


def test_a_busy_gpu_of_a_cluster_is_not_waited_for():
    assert engines._free_gpus(Cluster(4, 4.0), "cuda") == 4
    with pytest.warns(UserWarning, match="use 3 of 4 GPUs of the Ray cluster; this run uses 1"):
        assert engines._free_gpus(Cluster(4, 1.5), "cuda") == 1
    for cluster, reason in ((Cluster(2, 0), r"use all GPUs of the Ray cluster \(2\)"), (Cluster(0, 0), "finds no GPU")):
        with pytest.raises(AlbertkitError, match=reason):
            engines._free_gpus(cluster, "cuda")


@pytest.mark.slow
def test_ray_computes_on_a_device(ray, models, tmp_path):
    file, out = write_lines(tmp_path / "a.txt", lines := texts(40)), tmp_path / "out"
    run = partial(on_device, "embed", [str(file)], model=str(models / "float"), part_rows=10, engine=engines.run_ray)
    assert run(str(out), workers=2).done_parts == 4
    assert cosines(vectors(out)[1], Albert(models / "float").embed(lines)).min() > 0.9999
    with pytest.raises(AlbertkitError, match="torch cannot use device 'nothing'|Ray finds no GPU"):
        run(str(tmp_path / "none"), device="nothing")


def test_nothing_runs_on_the_cpu_by_mistake(models, tmp_path):
    file = write_lines(tmp_path / "a.txt", texts(10))
    run = partial(run_bulk, "embed", [str(file)], model=str(models / "float"), engine=in_process)
    with pytest.raises(AlbertkitError, match="not available with early exit"):
        run(str(tmp_path / "out"), device="torch", task_options={"early_exit": "cosine:0.9"})
    with pytest.raises(AlbertkitError, match="precision='bf16' is not available on the CPU"):
        run(str(tmp_path / "out"), precision="bf16")
    assert not (tmp_path / "out").exists()
    run(str(tmp_path / "out"), engine=on_cpu)
    for changed in ({"device": "torch"}, {"device": "torch", "precision": "bf16"}):
        with pytest.raises(AlbertkitError, match='device was null and is "torch"'):
            run(str(tmp_path / "out"), **changed)
