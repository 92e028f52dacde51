"""Whole runs: equal to `Albert`, exactly once, through kills of workers and drivers, and clear about what is wrong."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import pytest

from albertkit.albert import Albert
from albertkit.bulk import engines
from albertkit.bulk.worker import PartWorker
from albertkit.errors import AlbertkitError
from tests.bulk.sample_texts import dies, run_bulk, texts, vectors, write_lines
from tests.waiting import wait_until

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def in_process(job, parts, workers):
    """An engine without processes, for what is not about engines."""
    worker = PartWorker(job)
    yield from map(worker, parts)


def keys(*files: tuple[Path, int]) -> list[tuple[str, int]]:
    return [(str(path), row) for path, count in files for row in range(count)]


def commands(model, out, *files, **given) -> list[str]:
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    return [
        sys.executable,
        "-m",
        "albertkit",
        "embed",
        "-m",
        str(model),
        "--output",
        str(out),
        *options,
        *map(str, files),
    ]


@pytest.mark.slow
def test_vectors_equal_those_of_albert(models, tmp_path):
    """Bit by bit: of each part for a float model, of all texts together for int8, whose vectors do not depend on
    neighbours.
    """
    first, second = texts(70), ["", "naïve 猫", *texts(40, 1)]
    files = [write_lines(tmp_path / "a.txt", first), write_lines(tmp_path / "b.txt", second)]
    for model in ("float", "int8"):
        out = tmp_path / model
        done = run_bulk(
            "embed",
            [str(f) for f in files],
            str(out),
            model=str(models / model),
            workers=2 if model == "int8" else 1,
            part_rows=30,
        )
        assert (done.rows, done.parts, done.done_parts, done.bad_rows) == (112, 5, 5, 0)
        found, computed = vectors(out)
        assert found == keys((files[0], 70), (files[1], 42))
        albert = Albert(models / model, threads=1)
        given = [first[:30], first[30:60], first[60:], second[:30], second[30:]]
        expected = [albert.embed(part) for part in given] if model == "float" else [albert.embed(first + second)]
        assert np.array_equal(computed, np.concatenate(expected))
    assert not [path for path in out.iterdir() if path.name.endswith(".part")]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_killed_workers_are_replaced(models, tmp_path, engine, request):
    lines = texts(6_000)
    file = write_lines(tmp_path / "a.txt", lines)
    killed: list[int] = []

    def running() -> list[int]:
        return actors() if engine == "ray" else [child.pid for child in active_children()]

    def kill(what: str, done: int, total: int) -> None:
        if what == "parts" and done and len(killed) < 2:
            ids = running()
            assert ids, "no worker is running"
            for one in ids:
                os.kill(one, signal.SIGKILL)
            killed.extend(ids)

    run = engines.run_local
    if engine == "ray":
        request.getfixturevalue("ray")
        run = engines.run_ray
    out = tmp_path / "out"
    done = run_bulk(
        "embed", [str(file)], str(out), model=str(models / "int8"), engine=run, workers=2, part_rows=1000, progress=kill
    )
    assert len(set(killed)) >= 2 and done.done_parts == 6
    found, computed = vectors(out)
    assert found == keys((file, 6_000))
    assert np.array_equal(computed, Albert(models / "int8", threads=1).embed(lines))


def actors() -> list[int]:
    """Ray's workers of ours: descendants of this process that Ray named after the class."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.joinpath("cmdline").read_bytes().startswith(b"ray::PartActor") and descends(int(path.name)):
                found.append(int(path.name))
        except OSError:
            continue
    return found


def descends(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def test_a_part_that_kills_every_worker_stops_the_run(models, tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "_work", dies)
    file = write_lines(tmp_path / "a.txt", texts(10))
    with pytest.raises(AlbertkitError, match="part 0 was tried by 4 workers"):
        run_bulk("embed", [str(file)], str(tmp_path / "out"), model=str(models / "int8"))
    assert not active_children()


def test_a_killed_run_resumes(models, tmp_path):
    """SIGKILL of the driver: its workers go as well; the same command does what is missing, and only that."""
    lines = texts(12_000)
    file, out = write_lines(tmp_path / "a.txt", lines), tmp_path / "out"
    line = commands(models / "int8", out, file, engine="local", workers=1, part_rows=600)
    with subprocess.Popen(line, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_until(lambda: len(list(out.glob("part-*"))) >= 2 or process.poll() is not None)
        assert process.poll() is None, process.stderr.read().decode()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.kill()
    wait_until(lambda: not any(alive(child) for child in children), "the workers live on")
    there = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    assert 2 <= len(there) < 20
    (out / ".part-000019.npz.0.part").write_bytes(b"PK half of a file")
    damaged = sorted(there)[0]
    (out / damaged).write_bytes((out / damaged).read_bytes()[:-9])
    done = run_bulk(
        "embed",
        [str(file)],
        str(out),
        model=str(models / "int8"),
        engine=in_process,
        part_rows=600,
        task_options={"long_texts": "split"},
    )
    assert done.done_parts == 20 - len(there) + 1 and done.rows == 12_000
    for name, stamp in there.items():
        assert (stamp == (out / name).stat().st_mtime_ns) == (name != damaged)
    found, computed = vectors(out)
    assert found == keys((file, 12_000)) and not list(out.glob(".part-*"))
    assert np.array_equal(computed[::997], Albert(models / "int8", threads=1).embed(lines[::997]))


def alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_another_command_is_refused(models, tmp_path):
    file, out = write_lines(tmp_path / "a.txt", texts(10)), tmp_path / "out"
    run = partial(run_bulk, "embed", [str(file)], str(out), engine=in_process)
    run(model=str(models / "int8"))
    assert run(model=str(models / "int8")).done_parts == 0
    for changed, why in (
        ({"model": str(models / "float")}, "model was"),
        ({"part_rows": 3}, "part_rows was 50000 and is 3"),
        ({"task_options": {"dim": 8}}, 'options was {} and is {"dim": 8}'),
    ):
        with pytest.raises(AlbertkitError, match=why.replace("{", r"\{").replace("}", r"\}")):
            run(**{"model": str(models / "int8"), **changed})
    with pytest.raises(AlbertkitError, match="the inputs differ by"):
        write_lines(tmp_path / "b.txt", ["more"])
        run_bulk("embed", [str(file), str(tmp_path / "b.txt")], str(out), engine=in_process, model=str(models / "int8"))
    write_lines(file, texts(11))
    with pytest.raises(AlbertkitError, match="a.txt has changed"):
        run(model=str(models / "int8"))


def test_errors_come_before_the_work(models, tmp_path):
    file = write_lines(tmp_path / "a.txt", texts(10))
    run = partial(run_bulk, "embed", [str(file)], engine=in_process, model=str(models / "int8"))
    with pytest.raises(AlbertkitError, match="cannot be written"):
        run(str(file / "inside"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(AlbertkitError, match=r"contains 'letter.txt' but no _manifest.json"):
        run(str(tmp_path / "full"))
    with pytest.raises(AlbertkitError, match="dim=900 is not"):
        run(str(tmp_path / "out"), task_options={"dim": 900})
    with pytest.raises(AlbertkitError, match="classify is not available"):
        run_bulk("classify", [str(file)], str(tmp_path / "out"), engine=in_process, model=str(models / "int8"))
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_an_error_and_the_run_resumes(models, tmp_path):
    """Files may not grow beyond 20 kB: one sentence, no half file under a good name, and the same command goes on."""
    file, out = write_lines(tmp_path / "a.txt", texts(2000)), tmp_path / "out"
    line = commands(models / "int8", out, file, engine="local", workers=1, part_rows=1000)
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (20_000, 20_000))
    done = subprocess.run(line, env=ENVIRONMENT, capture_output=True, text=True, preexec_fn=limit, timeout=60)
    assert done.returncode == 2 and done.stdout == ""
    assert "writing" in done.stderr and "rerun the command" in done.stderr and len(done.stderr.splitlines()) == 1
    assert sorted(path.name for path in out.iterdir()) == [".lock", "_checksums", "_manifest.json", "_parts.npy"]
    again = run_bulk(
        "embed",
        [str(file)],
        str(out),
        model=str(models / "int8"),
        engine=in_process,
        part_rows=1000,
        task_options={"long_texts": "split"},
    )
    assert again.done_parts == 2


def test_bad_rows_are_errors_or_have_no_result(models, tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a cat"}\n{"text": null}\n\n{"text": "a dog"}\n{"body": 1}\n')
    run = partial(run_bulk, "embed", [str(file)], engine=in_process, model=str(models / "int8"))
    with pytest.raises(AlbertkitError, match=r"row 1 of .*a.jsonl contains no text. Correct it, or .*--skip-bad"):
        run(str(tmp_path / "strict"))
    done = run(str(tmp_path / "skip"), skip_bad=True)
    assert (done.rows, done.bad_rows) == (4, 2)
    expected = Albert(models / "int8", threads=1).embed(["a cat", "a dog"])
    with np.load(tmp_path / "skip" / "part-000000.npz", allow_pickle=False) as part:
        assert part["row"].tolist() == [0, 1, 2, 3]
        assert part["is_missing"].tolist() == [False, True, False, True]
        assert np.array_equal(part["vector"][[0, 2]], expected) and not part["vector"][[1, 3]].any()


def test_one_run_at_a_time(models, tmp_path):
    file, out = write_lines(tmp_path / "a.txt", texts(10)), tmp_path / "out"
    run = partial(run_bulk, "embed", [str(file)], str(out), model=str(models / "int8"), part_rows=5, engine=in_process)

    def intrude(what: str, done: int, total: int) -> None:
        if what == "parts" and done == 5:
            with pytest.raises(AlbertkitError, match="out is in use: process .* is writing to it"):
                run()

    assert run(progress=intrude).done_parts == 2
    assert run().done_parts == 0


def test_options_belong_to_an_engine(tmp_path):
    line = [sys.executable, "-m", "albertkit", "embed", "text", "-o", str(tmp_path / "out.npy")]
    done = subprocess.run([*line, "--workers=2"], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 2 and "Add --engine" in done.stderr
    done = subprocess.run([*line, "--engine=local", "-f", "a.txt"], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 2 and "Pass one of them" in done.stderr


def test_ray_actors_without_room_delay_nothing(ray, models, tmp_path):
    """Ray has two cores; actors that wait for a third keep nobody waiting."""
    file, out = write_lines(tmp_path / "a.txt", texts(40)), tmp_path / "out"
    run = partial(run_bulk, "embed", [str(file)], model=str(models / "int8"), engine=engines.run_ray, part_rows=10)
    assert run(str(out), workers=4).done_parts == 4
    (tmp_path / "b.jsonl").write_text('{"body": 1}\n')
    with pytest.raises(AlbertkitError, match="row 0 of .*b.jsonl has no field 'text'"):
        run_bulk(
            "embed",
            [str(tmp_path / "b.jsonl")],
            str(tmp_path / "bad"),
            model=str(models / "int8"),
            engine=engines.run_ray,
        )
