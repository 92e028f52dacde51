"""Shared by all tests: tiny models built in memory, and where real things may lie."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings

from albertkit.config import AlbertConfig
from albertkit.file_io import add_checksum
from albertkit.tokenizer import Tokenizer
from albertkit.tokenizer.spiece_file import parse_spiece, select_spiece_tokens

os.environ.setdefault("HF_HUB_OFFLINE", "1")
settings.register_profile("patient", deadline=None)  # an example may take any time on a busy machine
settings.load_profile("patient")


def keep_to_a_share() -> None:
    """Under pytest-xdist, leave each worker its own processors, before anything counts them: threads of two workers on
    the same ones wait for each other.
    """
    worker, count = os.environ.get("PYTEST_XDIST_WORKER", ""), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if worker.startswith("gw") and hasattr(os, "sched_setaffinity"):
        there = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, there[int(worker[2:]) % count :: count] or there)


keep_to_a_share()
ROOT = Path(__file__).parent.parent
CHECKPOINTS = Path(os.environ.get("ALBERTKIT_CHECKPOINTS", ROOT / ".cache" / "checkpoints"))
SHARED = Path(os.environ.get("ALBERTKIT_SHARED", ROOT.parent / "shared"))
SPIECE = ROOT / "src" / "albertkit" / "models" / "small" / "spiece.model"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say which tests were skipped, one line for each reason."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    reasons = Counter(found[2].removeprefix("Skipped: ") for found in skipped if isinstance(found, tuple))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count} skipped: {reason}")


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_disks() -> Iterator[None]:
    """Files of tests need not survive a power cut."""
    with patch("os.fsync", lambda handle: None):
        yield


def draw_nothing(figure: Any, target: Any, **options: Any) -> None:
    """Stands in for `Figure.savefig`: pictures take longer than the trainings of tests."""
    target.write(b"") if hasattr(target, "write") else Path(target).write_bytes(b"")


def program(path: str) -> Any:
    """A program of bench/, docs/ or studies/, such as "bench/search", as a module."""
    spec = importlib.util.spec_from_file_location(path.rpartition("/")[2], ROOT / f"{path}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    neighbours = str((ROOT / path).parent)  # found as if it were run
    if neighbours not in sys.path:
        sys.path.append(neighbours)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module


def change_metadata(folder: Path, **changes: Any) -> None:
    """Change keys of a folder's albertkit.json, with a checksum that fits."""
    data = json.loads((folder / "albertkit.json").read_text())
    data.pop("checksum", None)
    (folder / "albertkit.json").write_text(json.dumps(add_checksum({**data, **changes})))


@functools.cache
def english() -> Tokenizer:
    """A tokenizer of 3,000 tokens: all characters and the most frequent tokens of the built-in English one, whose
    30,000 take ten times as long to read and to write.
    """
    data = SPIECE.read_bytes()
    texts = [text.decode() for text in parse_spiece(data, 30_000).texts]
    kept = sorted(range(len(texts)), key=lambda i: len(texts[i]) > 1)[:3000]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "spiece.model")
        path.write_bytes(select_spiece_tokens(data, set(kept)))
        return Tokenizer.from_spiece(path)


def tiny(**changes) -> AlbertConfig:
    """A model that runs in a millisecond."""
    shape = {
        "vocab_size": 97,
        "embedding_size": 16,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 40,
        "classifier_dropout_prob": 0.0,
    }
    return AlbertConfig(**{**shape, **changes})


def real(name: str) -> Path:
    """A real checkpoint, or a skip that says how to get it."""
    path = CHECKPOINTS / name
    if not path.exists():
        pytest.skip(f"{name} is not here; run  make checkpoints")
    return path
