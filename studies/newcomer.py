"""A newcomer's path from README.md alone, timed: clone, first vector, first classifier, a served model that answers.

    python studies/newcomer.py                    # in a temporary folder, with environments of its own; needs a package
    index
    python studies/newcomer.py --python .venv     # with an environment that has everything: setting up is left out (a
    rehearsal; nothing is kept)
    python studies/newcomer.py --whole            # then the same classifier without --freeze, with torch, as README
    says below its commands
    python studies/newcomer.py --list             # the commands that would be typed

The commands are the bash blocks under README's headings in `STAGES`, typed into one shell, in order; there is no second
copy of them here. Only the clone is ours, since README begins in one. A line that starts with `albertkit serve` runs
beside the others, as in another terminal, and its stage goes on when it answers. Out: seconds for each line and stage,
and studies/results/newcomer.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "studies" / "results" / "newcomer.json"
STAGES = {
    "first vector": "### The first vector",
    "first classifier": "### A classifier of your own",
    "served model": "### A server",
}
PATIENCE = 60.0  # seconds until a server must answer
LIMIT = 1800.0  # seconds for one line
DONE = "--newcomer-done--"
SET_UP = ("make ", ". ", "pip install")  # left out of a rehearsal
TAIL = 4000


def section(text: str, heading: str) -> str:
    """What stands under a heading."""
    return re.split(r"^#{2,3} ", text.split(f"\n{heading}\n", 1)[1], maxsplit=1, flags=re.M)[0]


def commands(text: str, heading: str) -> list[str]:
    """The lines of the bash blocks under a heading of README, without comments."""
    below = section(text, heading)
    lines = [line for block in re.findall(r"^```bash\n(.*?)^```", below, re.S | re.M) for line in block.splitlines()]
    found = [re.sub(r"\s+#.*$", "", line).strip() for line in lines]
    return [line for line in found if line and not line.startswith("#")]


def path(readme: Path) -> dict[str, list[str]]:
    """The commands of every stage."""
    text = readme.read_text(encoding="utf-8")
    for heading in STAGES.values():
        if f"\n{heading}\n" not in text:
            raise SystemExit(f"{readme.name} has no heading {heading!r}; put it back, or name the new one in STAGES")
    found = {stage: commands(text, heading) for stage, heading in STAGES.items()}
    if empty := [stage for stage, lines in found.items() if not lines]:
        raise SystemExit(f"{readme.name} has no command under {STAGES[empty[0]]!r}")
    return found


def whole(readme: Path, lines: list[str]) -> list[str]:
    """The classifier's commands for the whole model: what README's text says to install, and the same without
    `--freeze`.
    """
    found = re.findall(
        r"`(pip install [^`]+)`", section(readme.read_text(encoding="utf-8"), STAGES["first classifier"])
    )
    return [
        *found,
        *(re.sub(r"-o (\S+)", r"-o \1-whole", x.replace(" --freeze", "")) for x in lines if "--freeze" in x),
    ]


class Shell:
    """One bash that keeps its folder and variables from line to line."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            ["bash", "--norc"], cwd=folder, env=environment, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def line(self, line: str) -> str:
        """Type a line, and wait for it; what it printed."""
        clock = threading.Timer(LIMIT, self.close)
        clock.start()
        try:
            printed = self._answer(line)
        finally:
            clock.cancel()
        if line.startswith("curl ") and '"error"' in printed:
            raise SystemExit(f"$ {line}\n{printed[-TAIL:]}")
        return printed

    def _answer(self, line: str) -> str:
        self.say(f"{line}\necho {DONE} $?")
        printed = ""
        for text in self.process.stdout or ():
            if DONE in text:
                before, _, code = text.rpartition(DONE)
                printed += before
                if int(code):
                    raise SystemExit(f"$ {line}\n{printed[-TAIL:]}\nended with {int(code)}")
                return printed
            printed += text
        raise SystemExit(f"$ {line}\n{printed[-TAIL:]}\nthe shell is gone, or it took over {LIMIT:g} s")

    def serve(self, line: str, port: int) -> str:
        """Start a server beside the others, and wait until it answers."""
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                raise SystemExit(f"something else answers on port {port} already; stop it, and begin again")
        self.say(f"{line} > served.log 2>&1 &")
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                    return str(answer.read().decode())
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise SystemExit(f"$ {line}\n{self.line('cat served.log')[-TAIL:]}\ndid not answer within {PATIENCE:g} s")

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """End the shell and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(10)


def walk(stages: dict[str, list[str]], shell: Shell) -> dict[str, Any]:
    """Type everything; seconds of each line and stage, and the last thing each stage printed."""
    found: dict[str, Any] = {}
    for stage, lines in stages.items():
        taken, printed = [], ""
        for line in lines:
            began = time.perf_counter()
            serving = line.startswith("albertkit serve")
            printed = shell.serve(line, port_of(lines)) if serving else shell.line(line)
            taken.append({"line": line, "seconds": round(time.perf_counter() - began, 2)})
            print(f"{taken[-1]['seconds']:8.1f} s  {line}", flush=True)
        seconds = round(sum(one["seconds"] for one in taken), 2)
        found[stage] = {"seconds": seconds, "lines": taken, "printed": printed.strip()[-400:]}
        print(
            f"{seconds:8.1f} s  == {stage}: {printed.strip().splitlines()[-1] if printed.strip() else ''}", flush=True
        )
    return found


def port_of(lines: list[str]) -> int:
    """The port that a stage's commands ask."""
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", "\n".join(lines))
    return int(found.group(1)) if found else 8080


def clone(folder: Path) -> dict[str, Any]:
    """A fresh clone of this repository, and how long it took."""
    began = time.perf_counter()
    subprocess.run(["git", "clone", "-q", f"file://{ROOT}", str(folder)], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {"seconds": round(time.perf_counter() - began, 2), "megabytes": round(size / 1e6, 1), "commit": commit.stdout.strip()}  # fmt: skip


def overlay(folder: Path) -> None:
    """Bring what is not committed yet into a clone, for a rehearsal."""
    listed = ["git", "ls-files", "-z", "--modified", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in names:
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def environment(rehearsed: Path | None) -> dict[str, str]:
    """Without any environment of ours, so that only what README sets up is found; for a rehearsal, with that one."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")
    }
    before = os.environ["PATH"].split(os.pathsep)
    own = str(Path(sys.prefix) / "bin") if sys.prefix != sys.base_prefix else None
    folders = [folder for folder in before if folder != own]
    if rehearsed is not None:
        folders.insert(0, str(rehearsed.resolve() / "bin"))
    return {**kept, "PATH": os.pathsep.join(folders)}


def facts(python: Path) -> dict[str, str]:
    """Versions in an environment."""
    code = "import json, importlib.metadata as m; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    every: dict[str, str] = json.loads(done.stdout)
    named = ("albertkit", "numpy", "onnxruntime", "tokenizers", "scikit-learn", "starlette", "uvicorn", "torch", "pip")
    return {name: every[name] for name in named if name in every}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--python", type=Path, metavar="VENV", help="rehearse with this environment instead of a new one"
    )
    parser.add_argument("--uncommitted", action="store_true", help="bring what is not committed yet into the clone")
    parser.add_argument("--whole", action="store_true", help="at the end, fine-tune the whole model too (needs torch)")
    parser.add_argument("--list", action="store_true", help="say what would be typed")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    if args.list:
        for stage, lines in path(ROOT / "README.md").items():
            print(f"{stage}:", *lines, sep="\n  ")
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "albertkit"
        cloned = clone(folder)
        print(f"{cloned['seconds']:8.1f} s  == clone: {cloned['megabytes']} MB", flush=True)
        if args.python or args.uncommitted:
            overlay(folder)
        stages = path(folder / "README.md")
        if args.whole:
            stages["whole model"] = whole(folder / "README.md", stages["first classifier"])
        if args.python:
            stages = {stage: [x for x in lines if not x.startswith(SET_UP)] for stage, lines in stages.items()}
        shell = Shell(folder, environment(args.python))
        try:
            found = {"clone": cloned, **walk(stages, shell)}
        finally:
            shell.close()
        if args.python:
            return
        versions = facts(folder / ".venv" / "bin" / "python")
    keep(args.out, found, versions)


def keep(out: Path, found: dict[str, Any], versions: dict[str, str]) -> None:
    """The record: when each stage was reached, counted from the clone."""
    sys.path.insert(0, str(ROOT / "bench"))
    from inference import machine

    reached, total = {}, 0.0
    for stage, about in found.items():
        total += about["seconds"]
        reached[stage] = round(total, 1)
    whole = {"machine": machine(os.cpu_count() or 1), "versions": versions, "reached_seconds": reached, "stages": found}
    waiting = out.with_suffix(".part")
    waiting.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    waiting.replace(out)
    print("reached after:", ", ".join(f"{stage} {seconds:g} s" for stage, seconds in reached.items()))


if __name__ == "__main__":
    main()
