"""Shared by all tests: tiny models built in memory, and where real things may lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from albertkit.config import AlbertConfig

os.environ.setdefault("HF_HUB_OFFLINE", "1")
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
