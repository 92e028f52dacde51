"""A folder is replaced in one step, or recovered; a locked folder names its holder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from albertkit import folder_replace
from albertkit.artifact import read_artifact, write_artifact
from albertkit.errors import AlbertkitError
from albertkit.file_io import new_folder
from albertkit.folder_replace import lock_folder, recover_folder
from tests.conftest import ROOT, tiny


def write(folder, text, **options):
    with new_folder(folder, **options) as scratch:
        (scratch / "albertkit.json").write_text(text)
        (scratch / "content").write_text(text)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs renameat2")
def test_a_reader_never_misses_a_folder_that_is_replaced(tmp_path):
    target, over, missed = tmp_path / "m", threading.Event(), []
    write(target, "first")

    def read():
        while not over.is_set():
            if not (target / "content").exists():
                missed.append(1)

    thread = threading.Thread(target=read)
    thread.start()
    for turn in range(200):
        write(target, str(turn), overwrite=True)
    over.set()
    thread.join()
    assert not missed and (target / "content").read_text() == "199"
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


KILLED = """
import os, signal, sys
from pathlib import Path
from albertkit import folder_replace
from tests.test_folder_replace import write
folder_replace.exchange = lambda one, other: False
names = []
def hook(event, arguments):
    if event == "os.rename":
        names.append(1)
        if len(names) == 2:
            os.kill(os.getpid(), signal.SIGKILL)  # between the two renames
sys.addaudithook(hook)
write(Path(sys.argv[1]), "new", overwrite=True)
"""


@pytest.fixture
def crashed(tmp_path):
    """A folder whose replacement was killed between two renames, on a system that cannot exchange names."""
    target = tmp_path / "m"
    write(target, "old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(target)], cwd=ROOT, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not target.exists()
    for old in tmp_path.glob(".m.*.old"):
        os.utime(old, (1, 1))
    return target


def test_opening_recovers_a_folder_after_a_crash(crashed):
    recover_folder(crashed)
    assert (crashed / "content").read_text() == "old"
    assert not list(crashed.parent.glob(".m.*.old"))


def test_writing_recovers_a_folder_after_a_crash(crashed):
    with pytest.raises(AlbertkitError, match="exists and is not empty"):
        write(crashed, "newer")
    write(crashed, "newer", overwrite=True)
    assert (crashed / "content").read_text() == "newer"


def test_a_model_opens_after_a_crash(tmp_path, monkeypatch):
    from tests.test_albert import make

    write_artifact(make(tiny(vocab_size=3000), heads=()), tmp_path / "m")
    old = tmp_path / ".m.x.old"
    old.mkdir()
    (tmp_path / "m").rename(old / "m")
    monkeypatch.setattr(folder_replace, "CRASH_SECONDS", 0)
    assert read_artifact(tmp_path / "m").config.vocab_size == 3000


def test_a_replacement_that_runs_is_not_undone(tmp_path):
    """The moment between the two renames of another process."""
    target, old = tmp_path / "m", tmp_path / ".m.x.old"
    write(target, "old")
    write(tmp_path / "new", "new")
    old.mkdir()
    target.rename(old / "m")
    waiting = threading.Thread(target=recover_folder, args=(target,))
    waiting.start()
    (tmp_path / "new").rename(target)
    waiting.join()
    assert (target / "content").read_text() == "new" and (old / "m" / "content").read_text() == "old"


def test_a_folder_without_leftovers_is_left_alone(tmp_path):
    recover_folder(tmp_path / "nothing")
    assert not list(tmp_path.iterdir())


HOLDER = """
import sys, time
from pathlib import Path
from albertkit.folder_replace import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
def test_a_locked_folder_names_its_holder_until_that_ends(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as holder:
        assert holder.stdout.readline() == b"locked\n"
        message = rf"in use: process {holder.pid} on .* Wait for it, or stop it"
        with pytest.raises(AlbertkitError, match=message), lock_folder(tmp_path):
            pass
        holder.kill()
        holder.wait()
    with lock_folder(tmp_path):
        assert str(os.getpid()) in (tmp_path / ".lock").read_text()
