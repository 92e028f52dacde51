"""A head and a loss of one's own, trained by the one loop: it learns, it resumes to the bit, and what is missing is
said.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from albertkit.albert import Albert
from albertkit.artifact import Artifact, read_artifact
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, pool
from albertkit.tasks.classify import ClassifyTask
from albertkit.tasks.examples import TextExample
from albertkit.tasks.task import Feature, Task
from albertkit.tokenizer import Tokenizer
from albertkit.train.finetune_task import FinetuneTask
from albertkit.train.loop import TrainingRun, train
from albertkit.train.train_settings import TrainSettings
from tests.conftest import tiny
from tests.train.conftest import TOPICS, VOCAB


class Counting(nn.Module):
    """How many animals more than trees a text names, as a tensor without a name."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner, self.drop, self.outer = nn.Linear(size, 16), nn.Dropout(0.1), nn.Linear(16, 1)

    def forward(self, encoded):
        return self.outer(self.drop(torch.tanh(self.inner(pool(encoded, "mean")))))


class Count(Task):
    """No dataclass: only what the base class asks for, a module and a loss."""

    heads = ("count",)

    def module(self, name, config):
        return Counting(config.hidden_size)

    def loss(self, out, targets):
        return F.huber_loss(out.heads["count"].float()[:, 0], torch.tensor(targets))

    def features(self, examples, tokenizer, max_length):
        found = tokenizer.encode_batch([e.text for e in examples], max_length=max_length)
        return [Feature(e.ids, e.segments, i, examples[i].label) for i, e in enumerate(found)]

    def results(self, scores, features, examples):
        return [float(row[0]) for row in scores]

    def measure(self, results, examples):
        return {"rmse": float(np.sqrt(np.mean([(r - e.label) ** 2 for r, e in zip(results, examples, strict=True)])))}


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Artifact:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n")
    torch.manual_seed(0)
    config = tiny(vocab_size=len(VOCAB), initializer_range=0.1, hidden_dropout_prob=0.1)
    return Artifact(config, AlbertModel(config).weights(), Tokenizer.from_vocab(path))


def texts(count: int, seed: int = 0) -> list[TextExample]:
    rng = np.random.default_rng(seed)
    made = []
    for animals in rng.integers(0, 6, count).tolist():
        words = [*rng.choice(TOPICS[1], animals), *rng.choice(TOPICS[2], 5 - animals)]
        made.append(TextExample(" ".join(words), label=float(2 * animals - 5)))
    return made


def run(start: Artifact, out, count: int = 80, **given):
    """Epochs of ten batches, with a checkpoint after each."""
    quick = {
        "batch_size": 8,
        "save_steps": 10,
        "keep_checkpoints": 9,
        "evaluations": 3,
        "learning_rate": 6e-3,
        "device": "cpu",
    }
    settings = TrainSettings(**{"steps": 30, **quick, "tensorboard": False, **given})
    return train(FinetuneTask(Count(), start, texts(count), texts(40, 9), settings), settings, out, resume=True)


def test_it_learns_and_opens_again(start, tmp_path):
    done = run(start, tmp_path, 160, steps=100, batch_size=16, save_steps=100)
    spread = float(np.std([e.label for e in texts(40, 9)]))
    assert done.metrics["rmse"] < spread / 4
    made = read_artifact(tmp_path / "model")
    assert made.metadata.task == "embed" and made.metadata.history[-1]["task"] == "count"
    with pytest.raises(AlbertkitError, match="a custom head 'count'"):
        AlbertModel.from_artifact(made)
    model = AlbertModel.from_artifact(made, heads={"count": Counting(made.config.hidden_size)})
    assert torch.equal(model.heads["count"].inner.weight, torch.from_numpy(made.weights["heads.count.inner.weight"]))
    assert Albert(tmp_path / "model").embed("cat dog").shape == (made.config.hidden_size,)


class Died(Exception):
    """The process was killed."""


def die_at(patch, step: int) -> None:
    """Let the loop die before it makes an update."""
    honest = TrainingRun.step

    def doomed(self, progress):
        if self.state.step == step:
            raise Died
        honest(self, progress)

    patch.setattr(TrainingRun, "step", doomed)


def test_a_killed_training_gives_the_same_bits(start, tmp_path, monkeypatch):
    run(start, tmp_path / "straight")
    for step in (4, 17, 26):
        with monkeypatch.context() as patch:
            die_at(patch, step)
            with pytest.raises(Died):
                run(start, tmp_path / "killed")
    run(start, tmp_path / "killed")
    there = sorted(path.name for path in (tmp_path / "killed" / "checkpoints").iterdir())
    assert there == [f"step-{step:08d}" for step in (0, 10, 20, 30)]
    for name in (*(f"checkpoints/{step}/model" for step in there), "model"):
        one, other = (read_artifact(tmp_path / side / name).weights for side in ("straight", "killed"))
        assert one.keys() == other.keys() and all((one[n] == other[n]).all() for n in one), name


def test_other_examples_do_not_go_on(start, tmp_path):
    run(start, tmp_path, steps=10)
    with pytest.raises(AlbertkitError, match="other examples"):
        run(start, tmp_path, 72, steps=20)


@pytest.mark.parametrize("missing", ["module", "loss"])
def test_what_a_task_must_bring_is_said(start, missing):
    half = type("Half", (), {name: given for name, given in vars(Count).items() if name not in (missing, "__dict__")})
    with pytest.raises(AlbertkitError, match=r"the head 'count' is not built in: .* module\(name, config\).* loss"):
        FinetuneTask(half(), start, texts(8), [], TrainSettings(steps=1, device="cpu"))


@dataclass(frozen=True)
class Focal(ClassifyTask):
    """A built-in head with a loss of one's own: what is known already weighs less."""

    power: float = 2.0

    def loss(self, out, targets):
        each = F.cross_entropy(out.heads["classify"].logits.float(), torch.tensor(targets), reduction="none")
        return ((1 - torch.exp(-each)) ** self.power * each).mean()


def test_a_loss_alone_makes_a_classifier_for_every_verb(start, tmp_path, monkeypatch):
    settings = TrainSettings(
        steps=60, batch_size=16, learning_rate=5e-3, evaluations=1, device="cpu", tensorboard=False
    )
    named = [TextExample(e.text, label="many" if e.label > 0 else "few") for e in texts(160)]
    work = FinetuneTask(Focal.from_examples(named), start, named, named[:60], settings)
    asked, honest = [], Focal.loss
    monkeypatch.setattr(Focal, "loss", lambda self, *given: asked.append(given) or honest(self, *given))
    done = train(work, settings, tmp_path)
    assert len(asked) == 60 and done.metrics["accuracy"] > 0.9
    assert Albert(tmp_path / "model").classify("cat dog cow hen pig").label == "many"
