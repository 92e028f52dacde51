"""Learning from a teacher: the losses equal plain restatements, students learn from each kind, and a killed one goes
on.
"""

from __future__ import annotations

import dataclasses
import json

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given

from albertkit.albert import Albert
from albertkit.artifact import Artifact, ArtifactMetadata, read_artifact, write_artifact
from albertkit.cli.entry_point import app
from albertkit.config import preset
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch
from albertkit.runtime.predict import predict
from albertkit.tasks import load_task
from albertkit.tokenizer import Tokenizer
from albertkit.train import finetune as tune
from albertkit.train import loop, teachers
from albertkit.train.distill import (
    DistillJob,
    distill,
    new_student,
    teacher_scores,
    teacher_vectors,
)
from albertkit.train.distill_data import DistillData, DistillSettings
from albertkit.train.distill_task import (
    PROJECTION,
    DistillTask,
    TeacherOutputs,
    hidden_loss,
    layer_map,
    vector_loss,
)
from albertkit.train.distributed import ProcessGroup
from albertkit.train.teachers import AlbertTeacher, TeacherMixture
from albertkit.train.train_settings import FinetuneSettings, TrainSettings
from albertkit.weights import encoder_shapes, size
from tests.conftest import tiny
from tests.train.conftest import VOCAB
from tests.train.test_finetune import choices, questions, tagged, texts

BATCH = Batch.of([[2, 8, 9, 10, 3], [2, 11, 12, 13, 3], [2, 7, 3]])


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n")
    return Tokenizer.from_vocab(path)


def model_of(words: Tokenizer, seed: int = 0, task: str = "embed", **changes) -> Artifact:
    torch.manual_seed(seed)
    shape = {"vocab_size": len(VOCAB), "initializer_range": 0.15, "max_position_embeddings": 64, **changes}
    config = tiny(**shape)
    return Artifact(config, AlbertModel(config).weights(), words, ArtifactMetadata(task=task))


@pytest.fixture(scope="module")
def teacher(words, tmp_path_factory):
    return write_artifact(model_of(words), tmp_path_factory.mktemp("teacher") / "model")


def quick(steps: int, **more) -> TrainSettings:
    plain = {
        "batch_size": 16,
        "learning_rate": 3e-3,
        "evaluations": 2,
        "device": "cpu",
        "tensorboard": False,
        "compile": "no",
    }
    return TrainSettings(steps=steps, **{**plain, **more})


def job(folder, student, data, settings: DistillSettings, training: TrainSettings, max_length=128) -> DistillJob:
    return DistillJob(TeacherMixture((folder,), (1.0,)), student, data, settings, training, max_length)


# Losses ----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 24), st.integers(1, 24))
def test_layers_are_mapped_evenly(student, teacher):
    found = layer_map(student, teacher)
    assert found[0] == 0 and found[-1] == teacher and len(found) == student + 1 and found == sorted(found)
    assert all(abs(place - i * teacher / student) <= 0.5 for i, place in enumerate(found))
    assert layer_map(12, 12) == list(range(13)) and layer_map(3, 12) == [0, 4, 8, 12]


def plain_kl(theirs: np.ndarray, mine: np.ndarray) -> float:
    return float((theirs * (np.log(theirs) - np.log(mine))).sum(-1).mean())


def softmax(scores: np.ndarray) -> np.ndarray:
    grown = np.exp(scores - scores.max(-1, keepdims=True))
    return grown / grown.sum(-1, keepdims=True)


def test_hidden_loss_by_hand():
    torch.manual_seed(0)
    mine = [torch.randn(13, 4) for _ in range(3)]  # two layers
    theirs = [torch.randn(13, 6) for _ in range(5)]  # four
    turn = torch.randn(6, 4)
    wanted = np.mean(
        [
            np.square((m @ turn.T).numpy() - t.numpy()).mean() / np.square(t.numpy()).mean()
            for m, t in zip(mine, theirs[::2], strict=True)
        ]
    )
    found = hidden_loss(mine, theirs, lambda x: x @ turn.T)
    assert float(found) == pytest.approx(float(wanted), rel=1e-5)
    assert float(hidden_loss(mine, mine, lambda x: x)) == 0


def test_vector_loss_by_hand():
    mine, theirs = torch.tensor([[1.0, 0], [0, 1], [1, 1]]), torch.tensor([[1.0, 0], [1, 0], [0, 1]])
    unit = [x.numpy() / np.linalg.norm(x.numpy(), axis=1, keepdims=True) for x in (mine, theirs)]
    rows = []
    for x in unit:
        scores = 20 * x @ x.T
        np.fill_diagonal(scores, -1e4)
        rows.append(softmax(scores) + 1e-30)
    near = 2 * (1 - (unit[0] * unit[1]).sum(1).mean())
    assert float(vector_loss(mine, theirs)) == pytest.approx(near + plain_kl(rows[1], rows[0]), rel=1e-4)
    wide = torch.cat([theirs, torch.zeros(3, 2)], 1)  # of another width: similarities alone
    assert float(vector_loss(mine, wide)) == pytest.approx(plain_kl(rows[1], rows[0]), rel=1e-4)


def bert(words: Tokenizer, folder, **more):
    """A tiny random BERT with our vocabulary, as transformers writes it."""
    transformers = pytest.importorskip("transformers")
    from safetensors.torch import save_file

    torch.manual_seed(3)
    words.save(folder)
    config = transformers.BertConfig(
        vocab_size=len(VOCAB), hidden_size=48, num_hidden_layers=4, num_attention_heads=3, intermediate_size=32,
        max_position_embeddings=64, initializer_range=0.2, **more,
    )  # fmt: skip
    config.save_pretrained(folder)
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    save_file({k: v for k, v in model.state_dict().items() if v.is_floating_point()}, folder / "model.safetensors")
    return model


@pytest.mark.parametrize("pooling", ["cls", "max", "mean"])
@pytest.mark.parametrize("place", ["", "0_Transformer"])
def test_sentence_transformers_teacher_uses_its_pooling(words, tmp_path, pooling, place):
    (tmp_path / place).mkdir(exist_ok=True)
    model = bert(words, tmp_path / place)
    kinds = {place: "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": name, "type": f"sentence_transformers.models.{kind}"} for name, kind in kinds.items()]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{name}": name.startswith(pooling) for name in ("cls_token", "max_tokens", "mean_tokens")}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    lines = ["cat dog cat", "red", "oak elm red blue"]
    found = teachers.TeacherEnsemble([tmp_path], torch.device("cpu")).encode(lines)
    for row, text in zip(found, lines, strict=True):
        with torch.no_grad():
            (hidden,) = model(input_ids=torch.tensor([words.encode(text).ids])).last_hidden_state
        wanted = {"cls": hidden[0], "max": hidden.amax(0), "mean": hidden.mean(0)}[pooling]
        np.testing.assert_allclose(row, (wanted / wanted.norm()).numpy(), atol=1e-3)
    assert teachers.teacher_tokenizer(tmp_path).vocabulary.ids == words.vocabulary.ids
    (tmp_path / "modules.json").write_text(json.dumps([*modules, {"path": "3_Dense", "type": "models.Dense"}]))
    with pytest.raises(AlbertkitError, match="albertkit supports Transformer"):
        teachers.TeacherEnsemble([tmp_path], torch.device("cpu"))


# Learning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [{"hidden": 1.0}, {"vectors": 1.0}, {"hidden": 1.0, "vectors": 0.5}])
def test_narrow_student_learns_from_texts(words, teacher, tmp_path, what):
    lines, held = [e.text for e in texts(120, 5)], [e.text for e in texts(40, 6)]
    student = new_student(
        tiny(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, initializer_range=0.15), words, 1
    )
    data, settings, training = DistillData(None, lines, held), DistillSettings(**what), quick(40)
    outputs = TeacherOutputs(states=AlbertTeacher(read_artifact(teacher)))
    work = job(teacher, student, data, settings, training)
    if "vectors" in what:
        outputs = dataclasses.replace(outputs, vectors=teacher_vectors(work, tmp_path / "before"))
    before = DistillTask(data, student, training, settings, outputs).evaluate()["loss"]
    outcome = distill(work, tmp_path / "out")
    least = 0.95 if "vectors" in what else 0.8  # rows of similarities change slowly
    assert outcome.metrics["loss"] < least * before, (before, outcome.metrics)
    made = read_artifact(outcome.model)
    assert PROJECTION not in made.weights and Albert(outcome.model).embed("cat dog").shape == (24,)
    assert made.metadata.history[-1]["step"] == "distill" and set(made.metadata.history[-1]["distill"]) >= set(what)
    assert bool(list((tmp_path / "out" / "teacher").glob("vectors-*.npy"))) if "vectors" in what else True


def test_logits_teach_more_than_few_labels(words, tmp_path):
    """A teacher that saw many labels; a student that sees few of them, or the teacher's scores on many texts."""
    options = FinetuneSettings(epochs=6, max_length=40, batch_size=16, learning_rate=3e-3, device="cpu")
    large = tune.finetune_examples(
        "classify", texts(200, 0), texts(40, 9), tmp_path / "large", model_of(words), options
    ).model
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    student = new_student(tiny(**shape, initializer_range=0.2), words, 1)
    options = dataclasses.replace(options, epochs=60, learning_rate=5e-3)
    few = tune.finetune_examples("classify", texts(12, 0), (), tmp_path / "few", student, options).model
    data = DistillData(load_task(read_artifact(large).metadata), texts(200, 0), texts(40, 9))
    given = quick(80, learning_rate=5e-3)
    outcome = distill(job(large, student, data, DistillSettings(logits=1.0), given, 40), tmp_path / "taught")
    fresh = texts(200, 11)

    def accuracy(folder):
        albert = Albert(folder)
        return albert.task.measure(predict(albert, fresh, "classify"), fresh)["accuracy"]

    assert accuracy(outcome.model) > accuracy(few) + 0.05, (accuracy(outcome.model), accuracy(few))
    assert Albert(outcome.model).classify("cat dog cow hen pig").label in ("animal", "tree")


@pytest.mark.parametrize(
    ("task", "examples"), [("tag", tagged), ("answer", questions), ("intent", tagged), ("choose", choices)]
)
def test_scores_equal_the_teachers(words, tmp_path, task, examples):
    """A student that is its teacher has nothing to learn: the loss of logits is 0."""
    options = FinetuneSettings(epochs=1, max_length=40, batch_size=16, device="cpu")
    model = tune.finetune_examples(task, examples(24), (), tmp_path / "tuned", model_of(words), options).model
    artifact = read_artifact(model)
    data = DistillData(load_task(artifact.metadata), examples(24), ())

    def scores(features):
        work = job(model, artifact, data, DistillSettings(logits=1.0), quick(1))
        return teacher_scores(work, features)

    work = DistillTask(data, artifact, quick(1), DistillSettings(logits=1.0), TeacherOutputs(logits=scores), 40)
    parts, _ = work.next_batch(0, 0.0, ProcessGroup(0, 1, torch.device("cpu")))
    work.objective.eval()
    assert work.objective(*parts[0])[0].item() == pytest.approx(0, abs=1e-5)


def test_parts_of_a_batch_are_weighted_by_texts(words, teacher):
    """16 texts as 6, 6 and 4: the gradient is that of the whole batch."""
    lines = [" ".join(["cat", "dog", "cow"])] * 8 + ["red green"] * 8
    gradients = []
    for micro in (None, 6):
        student = model_of(words, seed=1)
        outputs = TeacherOutputs(states=AlbertTeacher(read_artifact(teacher)))
        training = quick(1, micro_batch_size=micro)
        work = DistillTask(DistillData(None, lines), student, training, DistillSettings(hidden=1.0), outputs)
        parts, _ = work.next_batch(0, 0.0, ProcessGroup(0, 1, torch.device("cpu")))
        assert len(parts) == (1 if micro is None else 3) and sum(part[2] for part in parts) == 16
        # the loss is a mean over tokens, so give every part the same length to compare
        for part in parts:
            (work.objective(*part)[0] / len(parts)).backward()
        gradients.append(work.model.encoder.groups[0][0].ffn.up.weight.grad)
        shares = [part[-1] for part in parts]
        assert sum(shares) == pytest.approx(len(parts)) and [p[2] / 16 * len(parts) for p in parts] == pytest.approx(
            shares
        )
    assert torch.nn.functional.cosine_similarity(gradients[0].flatten(), gradients[1].flatten(), 0) > 0.98


def test_killed_student_resumes_to_the_same_weights(words, teacher, tmp_path, monkeypatch):
    """With a projection, which lives in checkpoints alone."""
    lines, held = [e.text for e in texts(60, 5)], [e.text for e in texts(20, 6)]
    student = new_student(tiny(hidden_size=24, num_hidden_layers=2, num_attention_heads=3), words, 1)
    settings, data = DistillSettings(hidden=1.0), DistillData(None, lines, held)
    work = job(teacher, student, data, settings, quick(12, save_steps=4))
    straight = distill(work, tmp_path / "straight")
    step = loop.TrainingRun.step

    def killed(self, progress):
        if self.state.step == 9:
            raise KeyboardInterrupt
        step(self, progress)

    monkeypatch.setattr(loop.TrainingRun, "step", killed)
    with pytest.raises(KeyboardInterrupt):
        distill(work, tmp_path / "killed")
    monkeypatch.setattr(loop.TrainingRun, "step", step)
    resumed = distill(work, tmp_path / "killed", resume=True)
    a, b = read_artifact(straight.model), read_artifact(resumed.model)
    for name, array in a.weights.items():
        np.testing.assert_array_equal(array, b.weights[name], err_msg=name)


def test_other_settings_do_not_resume_in_the_same_folder(words, teacher, tmp_path):
    student, data = new_student(tiny(), words, 1), DistillData(None, [e.text for e in texts(40, 5)], ())
    distill(job(teacher, student, data, DistillSettings(hidden=1.0), quick(2)), tmp_path / "out")
    other = job(teacher, student, data, DistillSettings(hidden=0.5), quick(4))
    with pytest.raises(AlbertkitError, match="another initial model or teacher"):
        distill(other, tmp_path / "out", resume=True)


@pytest.mark.parametrize("left", [0, 40, -1])
def test_damaged_teacher_file_is_an_error(words, teacher, tmp_path, left):
    data = DistillData(None, ["cat dog"] * 20)
    work = job(teacher, new_student(tiny(), words, 1), data, DistillSettings(vectors=1.0), quick(1))
    teacher_vectors(work, tmp_path)
    (file,) = (tmp_path / "teacher").iterdir()
    file.write_bytes(file.read_bytes()[:left])
    with pytest.raises(AlbertkitError, match="is damaged .*Delete it"):
        teacher_vectors(work, tmp_path)


def test_other_vocabularies_are_an_error(words, teacher, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCAB[:-2], "new", "words"]) + "\n")
    other = Tokenizer.from_vocab(tmp_path / "vocab.txt")
    student = new_student(tiny(), other, 1)
    data = DistillData(None, ["cat dog"] * 20, ())
    with pytest.raises(AlbertkitError, match="splits text differently from the student"):
        distill(job(teacher, student, data, DistillSettings(hidden=1.0), quick(1)), tmp_path / "out")
    two = TeacherMixture((teacher, teacher), (1.0, 1.0))
    with pytest.raises(AlbertkitError, match="only vectors can be distilled from several"):
        distill(DistillJob(two, student, data, DistillSettings(hidden=1.0), quick(1)), tmp_path / "out")
    with pytest.raises(AlbertkitError, match="need a task"):
        distill(job(teacher, student, data, DistillSettings(labels=1.0), quick(1)), tmp_path / "out")


def test_command_distills_from_bert_and_classifier(words, tmp_path):
    run = CliRunner()
    (tmp_path / "bert").mkdir()
    bert(words, tmp_path / "bert")
    (tmp_path / "lines.txt").write_text("\n".join(e.text for e in texts(60, 5)))
    (tmp_path / "shape.json").write_text(json.dumps(tiny(hidden_size=24, num_attention_heads=3).to_dict()))
    quickly = ["--steps", "4", "--batch-size", "8", "--device", "cpu", "--no-tensorboard"]
    base = [
        "distill",
        str(tmp_path / "bert"),
        str(tmp_path / "lines.txt"),
        "--shape",
        str(tmp_path / "shape.json"),
        *quickly,
    ]
    refused = run.invoke(app, [*base, "--what", "hidden", "-o", str(tmp_path / "a")])
    assert refused.exit_code == 1 and "only its vectors can be distilled" in str(refused.exception)
    two = [*base[:2], f"{tmp_path / 'bert'}:0.5", *base[2:]]
    both = [*two, "--what", "vectors", "-o", str(tmp_path / "b")]
    assert run.invoke(app, both).exit_code == 0 and read_artifact(tmp_path / "b").metadata.task == "embed"
    options = FinetuneSettings(epochs=1, max_length=40, batch_size=16, device="cpu")
    model = tune.finetune_examples("classify", texts(40, 0), (), tmp_path / "tuned", model_of(words), options).model
    base[1] = str(model)
    done = run.invoke(app, [*base, "--what", "logits,hidden:0.5", "-o", str(tmp_path / "c")])
    assert done.exit_code == 0, done.output
    assert read_artifact(tmp_path / "c").metadata.labels == read_artifact(model).metadata.labels
    for wrong, why in (
        ([*base, "--what", "logits", "--widths", "8", "-o", str(tmp_path / "d")], "and a corpus folder. Omit"),
        ([*base[:3], "-o", str(tmp_path / "d"), *quickly], "The student is either"),
        (["distill", str(tmp_path / "lines.txt"), "-o", str(tmp_path / "d")], "distill needs a teacher and data"),
        ([*base, "--model", str(model), "-o", str(tmp_path / "d")], "Pass one of them"),
    ):
        refused = run.invoke(app, wrong)
        assert refused.exit_code == 1 and why in str(refused.exception), refused.output


def test_a_student_of_two_million_parameters_is_a_preset():
    config = preset("mini")
    assert config.vocab_size == 30_000 and 1.8e6 < size(encoder_shapes(config)) < 2.1e6
