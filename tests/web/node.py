"""Node, for the tests of JavaScript: where it is, and a skip that says so where it is not."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
MIN_VERSION = 20


def find_node() -> str:
    """The path of Node, or a skip."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed, so the tests of JavaScript do not run; install Node.js 20 or newer")
    version = subprocess.run([node, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    if int(version.lstrip("v").partition(".")[0]) < MIN_VERSION:
        pytest.skip(f"node is {version}, so the tests of JavaScript do not run; install Node.js 20 or newer")
    return node


def run_node(*arguments: str | Path) -> str:
    """What Node prints."""
    ran = subprocess.run([find_node(), *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
    return ran.stdout


def call_tokenizer(folder: Path, data: Path, calls: list[list[Any]]) -> list[Any]:
    """The results of methods of the tokenizer in JavaScript, for calls [method, argument, …]."""
    (folder / "request.json").write_text(json.dumps({"data": str(data), "calls": calls}))
    run_node(HERE / "tokenize.mjs", folder / "request.json", folder / "result.json")
    results: list[Any] = json.loads((folder / "result.json").read_text())
    return results
