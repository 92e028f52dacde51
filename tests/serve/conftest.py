"""Tiny models of every task, a server as users start it, and clients on real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx2
import pytest
import torch

from albertkit.albert import Albert
from albertkit.artifact import Artifact, ArtifactMetadata, write_artifact
from albertkit.model import AlbertModel
from albertkit.model.albert_model import build_head
from tests.conftest import english, tiny
from tests.waiting import LIMIT, wait_until

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
MADE = {
    "words": (ArtifactMetadata(task="embed", prompts={"query": "query: ", "passage": "passage: "}), {"mlm": 0}),
    "pairs": (ArtifactMetadata(task="classify", labels=("no", "yes")), {"classify": 2}),
    "topics": (
        ArtifactMetadata(task="classify", labels=("art", "food", "sport"), details={"kind": "multi"}),
        {"classify": 3},
    ),
    "stars": (
        ArtifactMetadata(task="classify", details={"kind": "regression", "mean": 3.0, "std": 1.5}),
        {"classify": 1},
    ),
    "names": (ArtifactMetadata(task="tag", labels=TAGS), {"tag": 5}),
    "reader": (ArtifactMetadata(task="answer", details={"stride": 16}), {"answer": 0}),
    "exam": (ArtifactMetadata(task="choose"), {"choose": 0}),
    "atis": (
        ArtifactMetadata(task="intent", labels=TAGS, details={"intents": ["book", "ask"]}),
        {"classify": 2, "tag": 5},
    ),
    "author": (
        ArtifactMetadata(task="generate", details={"max_length": 40, "target_length": 6, "words": 3}),
        {"mlm": 0},
    ),
    "ranker": (ArtifactMetadata(task="classify", labels=("no", "yes"), details={"pairs": True}), {"classify": 2}),
    "grader": (
        ArtifactMetadata(task="classify", details={"kind": "regression", "mean": 3.0, "std": 1.5, "pairs": True}),
        {"classify": 1},
    ),
}


def make(folder: Path, meta: ArtifactMetadata, heads: dict[str, int], seed: int = 4, **shape) -> Path:
    """A model with lively random weights."""
    config = tiny(vocab_size=3000, max_position_embeddings=64, **shape)
    torch.manual_seed(seed)
    model = AlbertModel(config, {name: build_head(name, config, labels or 2) for name, labels in heads.items()})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(mean=1.0 if "norm.weight" in name else 0.0, std=0.15)
    artifact = Artifact(config, model.weights(), english(), meta)
    return write_artifact(artifact, folder, overwrite=True)


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("served")
    return {name: make(place / name, *about) for name, about in MADE.items()}


@pytest.fixture(scope="session")
def alberts(folders) -> dict[str, Albert]:
    return {name: Albert(folder, threads=1) for name, folder in folders.items()}


class Served:
    """A running `albertkit serve`."""

    def __init__(self, *arguments, env=None, wait=LIMIT) -> None:
        command = [sys.executable, "-m", "albertkit.cli.entry_point", "serve", "--port", "0", *map(str, arguments)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._out: queue.Queue[str] = queue.Queue()
        for pipe, keep in ((self.process.stdout, self._out.put), (self.process.stderr, self.lines.append)):
            threading.Thread(target=lambda pipe=pipe, keep=keep: [keep(line) for line in pipe], daemon=True).start()
        try:
            self.url = re.search(r"http\S+", self._out.get(timeout=wait)).group()
        except queue.Empty:
            self.stop()
            raise AssertionError("".join(self.lines)) from None
        self.port = int(self.url.rsplit(":", 1)[1])
        self.client = httpx2.Client(base_url=self.url, timeout=LIMIT)

    def post(self, path, json=None, **settings):
        return self.client.post(path, json=json, **settings)

    def get(self, path, **settings):
        return self.client.get(path, **settings)

    def events(self, name) -> list[dict]:
        """Logged events of a name."""
        return [e for e in map(json.loads, list(self.lines)) if e["event"] == name]

    def wait_for(self, name, count=1) -> list[dict]:
        """Wait until an event was logged."""
        wait_until(lambda: len(self.events(name)) >= count, lambda: f"no {name!r} in {''.join(self.lines)[-2000:]}")
        return self.events(name)

    def signal(self, number) -> None:
        self.process.send_signal(number)

    def stop(self) -> int:
        """End it, and everything it started."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        self.client.close()
        self.stop()


@pytest.fixture(scope="session")
def index(folders, alberts, tmp_path_factory) -> Path:
    from albertkit.search.index import Index, Record

    path = tmp_path_factory.mktemp("index") / "notes.idx"
    with Index.create(path, alberts["words"]) as made:
        made.add([Record(str(i), text, "notes", i) for i, text in enumerate(["a cat sat", "the dog ran", "one more"])])
    return path


@pytest.fixture(scope="session")
def server(folders, index):
    """All models in one process."""
    with Served(*(f"{name}={folder}" for name, folder in folders.items()), "--index", index, "--threads", 1) as made:
        yield made
