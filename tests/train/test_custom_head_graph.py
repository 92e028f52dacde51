"""A custom head from the loop to the runtime: it learns, resumes to the bit, predicts without torch as with it, and
what needs its Python class says so.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from albertkit.albert import Albert
from albertkit.artifact import Artifact, read_artifact, write_artifact
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel
from albertkit.runtime.predict import task_features, task_scores
from albertkit.runtime.runtime_model import is_full_depth_only
from albertkit.tasks import make_task
from albertkit.tasks.classify import ClassifyTask
from albertkit.tasks.tag import IntentTask, TagTask
from albertkit.tokenizer import Tokenizer
from albertkit.train.elastic import finetune_elastic
from albertkit.train.finetune import finetune, finetune_examples
from albertkit.train.finetune_task import FinetuneObjective, FinetuneTask, compute_scores, pack_features, predict_scores
from albertkit.train.loop import train
from albertkit.train.train_settings import ElasticSettings, FinetuneSettings, TrainSettings
from tests.conftest import tiny
from tests.custom_heads import AttentionHead, TokenHead
from tests.train.conftest import VOCAB
from tests.train.test_custom_head import Died, die_at
from tests.train.test_finetune import questions, tagged, texts

QUICK = {"batch_size": 16, "learning_rate": 3e-3, "device": "cpu", "restarts": 0}


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Artifact:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n")
    torch.manual_seed(0)
    config = tiny(vocab_size=len(VOCAB), initializer_range=0.1)
    return Artifact(config, AlbertModel(config).weights(), Tokenizer.from_vocab(path))


@pytest.fixture(scope="module")
def classifier(start, tmp_path_factory) -> Path:
    """A classifier with a custom head, trained through the public function."""
    torch.set_num_threads(1)  # as `one_thread`, which is too late for this fixture
    place = tmp_path_factory.mktemp("trained")
    write_artifact(start, place / "start")
    settings = FinetuneSettings(**QUICK, epochs=4)
    finetune(
        "classify", texts(160), texts(40, 9), output=place / "run", model=place / "start", settings=settings,
        head=AttentionHead,
    )  # fmt: skip
    return place / "run"


def torch_scores(folder: Path, head: str, module: torch.nn.Module, examples: list) -> tuple[list, list]:
    """Scores of the runtime and of torch."""
    albert = Albert(folder)
    features = task_features(albert, examples, albert.metadata.task)
    model = AlbertModel.from_artifact(folder, heads={head: module}).eval()
    expected = compute_scores(FinetuneObjective(model, albert.task), features, pack_features)
    return task_scores(albert, features), expected


def test_a_classifier_learns_and_predicts_without_torch_as_with_it(classifier):
    made = read_artifact(classifier / "model")
    assert made.metadata.metrics["dev"]["accuracy"] > 0.9 and list(made.head_graphs) == ["classify"]
    module = AttentionHead(made.config.hidden_size, 2)
    found, expected = torch_scores(classifier / "model", "classify", module, texts(40, 9))
    assert np.abs(np.stack(found) - np.stack(expected)).max() < 1e-5
    norms = [made.weights[f"heads.classify.module.{name}.weight"] for name in ("before", "after")]
    assert not np.allclose(*norms)  # equal before training


@dataclasses.dataclass(frozen=True)
class NeighbourTask(TagTask):
    """The built-in task with a custom head."""

    def module(self, name, config):
        return TokenHead(config.hidden_size, self.outputs(name))


def run(start: Artifact, out: Path, kind: type[TagTask] = NeighbourTask, **given):
    quick = {"batch_size": 16, "save_steps": 10, "learning_rate": 3e-3, "evaluations": 1, "device": "cpu"}
    settings = TrainSettings(**{"steps": 30, **quick, "tensorboard": False, **given})
    task = kind.from_examples(tagged(120))
    return train(FinetuneTask(task, start, tagged(120), tagged(40, 9), settings), settings, out, resume=True)


def test_a_tagger_resumes_to_the_bit_and_predicts_without_torch_as_with_it(start, tmp_path, monkeypatch):
    done = run(start, tmp_path / "straight")
    assert done.metrics["f1"] > 0.8
    with monkeypatch.context() as patch:
        die_at(patch, 17)
        with pytest.raises(Died):
            run(start, tmp_path / "killed")
    run(start, tmp_path / "killed")
    one, other = (read_artifact(tmp_path / side / "model") for side in ("straight", "killed"))
    assert one.head_graphs == other.head_graphs and all((one.weights[n] == other.weights[n]).all() for n in one.weights)
    module = TokenHead(one.config.hidden_size, len(one.metadata.labels))
    for found, expected in zip(*torch_scores(tmp_path / "straight" / "model", "tag", module, tagged(9)), strict=True):
        assert np.abs(found - expected).max() < 1e-5


@dataclasses.dataclass(frozen=True)
class OtherTask(TagTask):
    """Another head of the same class, but another size."""

    def module(self, name, config):
        made = TokenHead(config.hidden_size, self.outputs(name))
        made.mix = torch.nn.Conv1d(config.hidden_size, config.hidden_size, 1)
        return made


def test_a_run_with_another_head_is_not_resumed(start, tmp_path):
    run(start, tmp_path, steps=10)
    with pytest.raises(AlbertkitError, match="another loss"):
        run(start, tmp_path, OtherTask, steps=20)


@pytest.mark.parametrize("kind", ["multi", "regression", "answer"])
def test_other_kinds_of_labels_have_custom_heads_too(start, tmp_path, kind):
    name, examples = ("answer", questions(40)) if kind == "answer" else ("classify", texts(40, 0, kind))
    head = TokenHead if kind == "answer" else AttentionHead
    settings = FinetuneSettings(**QUICK, epochs=1)
    finetune_examples(name, examples, examples[:8], tmp_path, start, settings, head=head)
    made = read_artifact(tmp_path / "model")
    outputs = {"multi": len(made.metadata.labels), "regression": 1, "answer": 2}[kind]
    module = head(made.config.hidden_size, outputs)
    for found, expected in zip(*torch_scores(tmp_path / "model", name, module, examples[:8]), strict=True):
        assert np.abs(found - expected).max() < 1e-5


@dataclasses.dataclass(frozen=True)
class HalfCustomTask(IntentTask):
    """A custom head for the slots, and the built-in one for the intent."""

    def module(self, name, config):
        return TokenHead(config.hidden_size, self.outputs(name)) if name == "tag" else None


def test_one_of_two_heads_may_be_custom(start, tmp_path):
    examples = tagged(40)
    settings = TrainSettings(steps=3, batch_size=8, learning_rate=3e-3, device="cpu", tensorboard=False)
    train(FinetuneTask(HalfCustomTask.from_examples(examples), start, examples, [], settings), settings, tmp_path)
    albert = Albert(tmp_path / "model")
    assert list(albert.custom_heads) == ["tag"] and list(albert.heads) == ["classify"]
    assert albert.understand(examples[0].text).intent in albert.task.intents


def test_every_depth_of_a_custom_head_can_be_trained(start, tmp_path):
    settings = FinetuneSettings(**QUICK, epochs=2, elastic=True)
    finetune_examples("classify", texts(120), texts(40, 9), tmp_path, start, settings, head=AttentionHead)
    albert = Albert(tmp_path / "model")
    assert not is_full_depth_only(albert.metadata.history)
    assert albert.classify("cat dog", early_exit="entropy:0.5").depth in (1, 2, 3)


def test_a_new_fine_tuning_replaces_the_custom_head(classifier, tmp_path):
    settings = FinetuneSettings(**QUICK, epochs=1)
    finetune_examples("classify", texts(40), [], tmp_path, read_artifact(classifier / "model"), settings)
    assert not read_artifact(tmp_path / "model").head_graphs


def test_what_needs_the_class_of_the_head_says_so(classifier, tmp_path):
    folder = classifier / "model"
    with pytest.raises(AlbertkitError, match="custom head 'classify', whose Python class is not stored"):
        finetune_elastic(folder, texts(40), texts(8), tmp_path / "elastic", ElasticSettings(**QUICK))
    with pytest.raises(AlbertkitError, match="custom head 'classify', whose Python class is not stored"):
        predict_scores(read_artifact(folder), texts(8), "cpu")


def test_impossible_heads_are_errors_before_training(start, tmp_path):
    settings = FinetuneSettings(**QUICK, epochs=1)
    with pytest.raises(AlbertkitError, match="head is not available for intent: its heads are classify, tag"):
        finetune_examples("intent", tagged(20), [], tmp_path, start, settings, head=TokenHead)
    with pytest.raises(AlbertkitError, match=r"TokenHead cannot be stored: it returns .* \(texts, outputs\) is needed"):
        finetune_examples("classify", texts(20), [], tmp_path, start, settings, head=TokenHead)
    frozen = FinetuneSettings(freeze=True)
    with pytest.raises(AlbertkitError, match="head and freeze exclude each other"):
        finetune_examples("classify", texts(20), [], tmp_path, start, frozen, head=AttentionHead)


def test_a_checkpoint_with_a_custom_head_can_be_copied(classifier, tmp_path):
    shutil.copytree(classifier / "model", tmp_path / "copy")
    example = texts(1)[0].text
    assert Albert(tmp_path / "copy").classify(example) == Albert(classifier / "model").classify(example)


def test_with_head_keeps_the_fields_of_the_task():
    from albertkit.train.task_heads import with_head

    task = dataclasses.replace(make_task("classify", texts(20)), temperature=2.0)
    made = with_head(task, AttentionHead)
    assert isinstance(made, ClassifyTask) and dataclasses.asdict(made) == dataclasses.asdict(task)
    assert isinstance(dataclasses.replace(made, temperature=1.0).module("classify", tiny()), AttentionHead)
