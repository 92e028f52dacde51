"""A newcomer's walk through README.md alone, timed: clone, first vector, own classifier, explained, served.

    python bench/newcomer.py                    # in a temporary clone with its own environment; needs a package index
    python bench/newcomer.py --python .venv     # with an existing environment: a rehearsal that records nothing
    python bench/newcomer.py --list             # the commands, without running them

The commands are the bash blocks of README, typed into one shell in order; there is no second copy of them here. Only the
clone is ours, since README starts in one. `albertkit serve` runs in the background and must answer before the next
command. Out: a table of stages and seconds, bench/results/newcomer.json, and the sentence in docs/guides/install.md.
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
RESULT = ROOT / "bench" / "results" / "newcomer.json"
STAGES = {  # a stage is reached when the first command that starts so has ended
    "first vector": "albertkit embed",
    "own classifier": "albertkit classify",
    "explained": "albertkit explain",
    "served": "curl",
}
SENTENCES = {  # guide → its sentence about this walk
    "docs/guides/install.md": "From a clone to the first vector it takes {first vector:.0f} s, to your own classifier {own classifier:.0f} s, to a served model {served:.0f} s, on {threads} cores of an {processor} (`bench/newcomer.py`, {date}).",
    "docs/zh/guides/install.md": "从克隆开始，到第一个向量用时 {first vector:.0f} 秒，到自己的分类器 {own classifier:.0f} 秒，到部署好的模型 {served:.0f} 秒（{processor}，{threads} 核，`bench/newcomer.py`，{date}）。",
}  # fmt: skip
MARKS = re.compile(r"(<!-- newcomer: begin -->\n).*?(<!-- newcomer: end -->)", re.S)
PATIENCE = 60.0  # seconds until a server must answer
LIMIT = 1800.0  # seconds for one line
DONE = "--newcomer-done--"
SET_UP = ("make ", ". ", "pip install")  # left out of a rehearsal
TAIL = 4000


def stages_of(readme: Path) -> dict[str, list[str]]:
    """The commands of README's bash blocks, without comments, up to the end of each stage."""
    blocks = re.findall(r"^```bash\n(.*?)^```", readme.read_text(encoding="utf-8"), re.S | re.M)
    lines = [re.sub(r"\s+#.*$", "", line).strip() for block in blocks for line in block.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    results: dict[str, list[str]] = {}
    for stage, start in STAGES.items():
        ends = [at for at, line in enumerate(lines) if line.startswith(start)]
        if not ends:
            raise SystemExit(
                f"README has no command {start!r} after stage {list(results)[-1:]}. Add it, or change STAGES."
            )
        results[stage], lines = lines[: ends[0] + 1], lines[ends[0] + 1 :]
    return results


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
    results: dict[str, Any] = {}
    for stage, lines in stages.items():
        lines_of_stage, printed = [], ""
        for line in lines:
            began = time.perf_counter()
            serving = line.startswith("albertkit serve")
            printed = shell.serve(line, port_of(lines)) if serving else shell.line(line)
            lines_of_stage.append({"line": line, "seconds": round(time.perf_counter() - began, 2)})
            print(f"{lines_of_stage[-1]['seconds']:8.1f} s  {line}", flush=True)
        seconds = round(sum(one["seconds"] for one in lines_of_stage), 2)
        results[stage] = {"seconds": seconds, "lines": lines_of_stage, "printed": printed.strip()[-400:]}
        print(
            f"{seconds:8.1f} s  == {stage}: {printed.strip().splitlines()[-1] if printed.strip() else ''}", flush=True
        )
    return results


def port_of(lines: list[str]) -> int:
    """The port that a stage's commands ask."""
    results = re.search(r"http://127\.0\.0\.1:(\d+)/", "\n".join(lines))
    return int(results.group(1)) if results else 8080


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
    variables = {
        name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")
    }
    before = os.environ["PATH"].split(os.pathsep)
    environment_folder = str(Path(sys.prefix) / "bin") if sys.prefix != sys.base_prefix else None
    folders = [folder for folder in before if folder != environment_folder]
    if rehearsed is not None:
        folders.insert(0, str(rehearsed.resolve() / "bin"))
    return {**variables, "PATH": os.pathsep.join(folders)}


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
    parser.add_argument("--list", action="store_true", help="print the commands without running them")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    if args.list:
        for stage, lines in stages_of(ROOT / "README.md").items():
            print(f"{stage}:", *lines, sep="\n  ")
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "albertkit"
        cloned = clone(folder)
        print(f"{cloned['seconds']:8.1f} s  == clone: {cloned['megabytes']} MB", flush=True)
        if args.python or args.uncommitted:
            overlay(folder)
        stages = stages_of(folder / "README.md")
        if args.python:
            stages = {stage: [x for x in lines if not x.startswith(SET_UP)] for stage, lines in stages.items()}
        shell = Shell(folder, environment(args.python))
        try:
            results = {"clone": cloned, **walk(stages, shell)}
        finally:
            shell.close()
        if args.python:
            return
        versions = facts(folder / ".venv" / "bin" / "python")
    keep(args.out, results, versions)


def keep(out: Path, results: dict[str, Any], versions: dict[str, str]) -> None:
    """The record: when each stage was reached, counted from the clone."""
    sys.path.insert(0, str(ROOT / "bench"))
    from inference import machine

    reached, total = {}, 0.0
    for stage, facts in results.items():
        total += facts["seconds"]
        reached[stage] = round(total, 1)
    facts = machine(os.cpu_count() or 1)
    record = {"machine": facts, "versions": versions, "reached_seconds": reached, "stages": results}
    waiting = out.with_suffix(".part")
    waiting.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    waiting.replace(out)
    print(f"\n{'stage':16}{'seconds':>9}{'since start':>13}")
    for stage, seconds in reached.items():
        print(f"{stage:16}{results[stage]['seconds']:9.1f}{seconds:13.1f}")
    if out == RESULT:
        write_sentences(record)


def write_sentences(record: dict[str, Any]) -> None:
    """The sentence of the install guides, in both languages."""
    for name, sentence in SENTENCES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        said = sentence.format(**record["reached_seconds"], **record["machine"])
        (ROOT / name).write_text(MARKS.sub(lambda m, said=said: f"{m[1]}{said}\n{m[2]}", text), encoding="utf-8")


if __name__ == "__main__":
    main()
