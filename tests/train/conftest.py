"""A small corpus with something to learn, in the folder format of `shards.py`, and a model that fits it."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from albertkit.config import AlbertConfig
from albertkit.data.shards import Shards
from albertkit.file_io import digest
from albertkit.tokenizer import Tokenizer
from albertkit.train import loop
from albertkit.train.pretrain import PretrainSettings, PretrainTask
from albertkit.train.train_settings import TrainSettings
from tests.conftest import draw_nothing, tiny

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
TOPICS = [
    ["red", "green", "blue", "white", "black", "grey", "pink", "brown"],
    ["cat", "dog", "cow", "hen", "pig", "fox", "owl", "bee"],
    ["oak", "elm", "ash", "fir", "yew", "bay", "fig", "palm"],
    ["iron", "gold", "zinc", "lead", "tin", "##ned", "##ner", "##ning"],  # words of more than one token
]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *NUMBERS, *(word for topic in TOPICS for word in topic)]


def sentence(number: int, topic: int, rng: np.random.Generator) -> list[str]:
    """`three dog cow hen pig .`: its number in the document, then neighbours of a ring of eight words."""
    ring = TOPICS[topic]
    at = int(rng.integers(0, 5 if topic == 3 else 8))
    return [NUMBERS[number], *(ring[(at + i) % 8] for i in range(int(rng.integers(3, 6)))), "."]


def documents(count: int, seed: int) -> list[list[list[str]]]:
    """Documents of four to twelve numbered sentences about one topic."""
    rng = np.random.default_rng(seed)
    made = []
    for topic in rng.integers(0, 4, count).tolist():
        made.append([sentence(n, topic, rng) for n in range(int(rng.integers(4, 13)))])
    return made


def write_shards(
    folder: Path, train: int = 600, held: int = 60, parts: int = 2, symbols: Tokenizer | None = None
) -> Path:
    """A corpus folder as `shards.py` describes it; written here by hand, so that the description is tested as well."""
    (folder / "tokenizer").mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    tokenizer = symbols or Tokenizer.from_vocab(folder / "vocab.txt")
    (folder / "vocab.txt").unlink()
    tokenizer.save(folder / "tokenizer")
    splits: dict[str, list[dict[str, Any]]] = {"train": [], "held-out": []}
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    for split, number, documents_of in [
        *(("train", n, documents(train // parts, seed=n)) for n in range(parts)),
        *([("held-out", 0, documents(held, seed=99))] if held else []),
    ]:
        name = f"{split}-{number:05d}"
        words = [word for document in documents_of for line in document for word in line]
        ids = np.array([VOCAB.index(word) for word in words], np.uint16)
        starts = np.array([not word.startswith("##") for word in words])
        arrays = {
            "tokens": ids | np.where(starts, np.uint16(0x8000), np.uint16(0)),
            "sentences": np.cumsum([len(line) for document in documents_of for line in document]).astype(np.uint32),
            "documents": np.cumsum([len(document) for document in documents_of]).astype(np.uint32),
        }
        for part, array in arrays.items():
            np.save(folder / f"{name}.{part}.npy", array)
        files = {f"{name}.{part}.npy": digest(folder / f"{name}.{part}.npy") for part in arrays}
        splits[split].append({"name": name, **{part: len(a) for part, a in arrays.items()}, "files": files})
        if split == "train":
            counts += np.bincount(ids, minlength=len(counts))
    np.save(folder / "unigrams.npy", counts)
    manifest = {
        "format": 1,
        "vocabulary": tokenizer.vocab_size,
        "dtype": "uint16",
        "tokenizer": digest(folder / "tokenizer" / "tokenizer.json"),
        "splits": splits,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@dataclass(frozen=True)
class Bench:
    """What the tests of the loop work with."""

    shards: Path
    config: AlbertConfig

    def work(self, settings: TrainSettings, goals: PretrainSettings | None = None, **more: Any) -> PretrainTask:
        goals = goals or PretrainSettings(lengths="16", eval_rows=64)
        return PretrainTask(self.shards, more.pop("config", self.config), settings, goals, **more)

    def train(
        self,
        out: Path,
        goals: PretrainSettings | None = None,
        resume: bool = False,
        log=lambda text: None,
        **given: Any,
    ):
        """A short training on one thread; the defaults of the tests beneath what is given."""
        quick = {"batch_size": 8, "evaluations": 2, "log_every": 5, "tensorboard": False, "device": "cpu"}
        settings = TrainSettings(**{**quick, **given})
        return loop.train(self.work(settings, goals), settings, out, resume=resume, log=log)


@pytest.fixture(scope="session")
def shards(tmp_path_factory) -> Path:
    return write_shards(tmp_path_factory.mktemp("corpus") / "shards")


@pytest.fixture(scope="session")
def corpus(shards) -> Shards:
    return Shards.open(shards, verify=True)


@pytest.fixture
def bench(shards) -> Bench:
    return Bench(shards, tiny(num_hidden_layers=2, max_position_embeddings=40))


@pytest.fixture(autouse=True)
def one_thread():
    """Small matrices are slower on two threads, and sums keep their order on one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """Pictures are empty files: drawing takes longer than the trainings here."""
    if importlib.util.find_spec("matplotlib"):  # machines with a GPU may lack it
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", draw_nothing)
