"""Shared by all tests: tiny models built in memory, and where real things may lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from albertkit.config import AlbertConfig

os.environ.setdefault("HF_HUB_OFFLINE", "1")


def keep_to_a_share() -> None:
    """Under pytest-xdist, leave each worker its own processors, before anything counts them: threads of two workers on the same ones wait for each other."""
    worker, count = os.environ.get("PYTEST_XDIST_WORKER", ""), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if worker.startswith("gw") and hasattr(os, "sched_setaffinity"):
        there = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, there[int(worker[2:]) % count :: count] or there)


keep_to_a_share()
ROOT = Path(__file__).parent.parent
CHECKPOINTS = Path(os.environ.get("ALBERTKIT_CHECKPOINTS", ROOT / ".cache" / "checkpoints"))
SHARED = Path(os.environ.get("ALBERTKIT_SHARED", ROOT.parent / "shared"))
SPIECE = ROOT / "src" / "albertkit" / "models" / "small" / "spiece.model"


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
