"""What `distill` refuses or tells: other teachers, corpora and labels, pairs, weights, folders that are taken; and
teachers that read little.
"""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from albertkit.albert import Albert
from albertkit.artifact import read_artifact, write_artifact
from albertkit.cli.console import log
from albertkit.cli.entry_point import app
from albertkit.cli.finetune_commands import parse_teacher
from albertkit.errors import AlbertkitError
from albertkit.tasks import load_task
from albertkit.tasks.readers.labelled_files import ReadOptions
from albertkit.tokenizer import Tokenizer
from albertkit.train import finetune as tune
from albertkit.train import teachers
from albertkit.train.distill import CorpusDistillation, DistillJob, distill, new_student, teacher_vectors
from albertkit.train.distill_data import DistillData, DistillSettings, VectorDistillSettings, read_teacher_data
from albertkit.train.teachers import TeacherMixture, max_positions, teacher_identity
from albertkit.train.train_settings import FinetuneSettings, TrainSettings
from tests.conftest import tiny
from tests.train.conftest import VOCAB
from tests.train.test_distill_task import bert, model_of, quick
from tests.train.test_finetune import texts

CPU = torch.device("cpu")
TUNED = FinetuneSettings(epochs=1, max_length=40, batch_size=16, device="cpu")


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n")
    return Tokenizer.from_vocab(path)


@pytest.fixture(scope="module")
def classifier(words, tmp_path_factory):
    start, out = model_of(words), tmp_path_factory.mktemp("tuned")
    return tune.finetune_examples("classify", texts(32), (), out, start, TUNED).model


@pytest.fixture(scope="module")
def paired(words, tmp_path_factory):
    examples = [dataclasses.replace(e, pair="cat dog") for e in texts(32)]
    return tune.finetune_examples(
        "classify", examples, (), tmp_path_factory.mktemp("pairs"), model_of(words), TUNED
    ).model


def one(folder) -> TeacherMixture:
    return TeacherMixture((folder,), (1.0,))


def changed(folder, target):
    """The same model with other weights."""
    artifact = read_artifact(folder)
    weights = {name: 1.5 * array for name, array in artifact.weights.items()}
    return write_artifact(dataclasses.replace(artifact, weights=weights), target)


# Another teacher, another corpus ---------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["logits", "vectors", "hidden"])
def test_another_teacher_does_not_resume_in_the_same_folder(words, classifier, tmp_path, what):
    student, examples = new_student(tiny(), words, 1), texts(40, 5)
    data = DistillData(load_task(read_artifact(classifier).metadata), examples, ())
    if what != "logits":
        data = DistillData(None, [e.text for e in examples], ())

    def start(teacher: TeacherMixture, steps: int, resume: bool = True):
        work = DistillJob(teacher, student, data, DistillSettings(**{what: 1.0}), quick(steps), 40)
        return distill(work, tmp_path / "out", resume=resume)

    start(one(classifier), 2, resume=False)
    before = (tmp_path / "out" / "settings.json").read_text()
    for other in (one(changed(classifier, tmp_path / "other")), TeacherMixture((classifier,), (2.0,))):
        with pytest.raises(AlbertkitError, match="another initial model or teacher"):
            start(other, 9)
    assert (tmp_path / "out" / "settings.json").read_text() == before  # a refused start leaves no trace
    assert start(one(classifier), 3).state.step == 3


def test_teacher_identity_depends_on_layers(classifier, tmp_path):
    whole = read_artifact(classifier)
    config = whole.config.replace(num_hidden_layers=whole.config.num_hidden_layers - 1)
    cut = write_artifact(dataclasses.replace(whole, config=config), tmp_path / "cut")
    same = write_artifact(whole, tmp_path / "same")
    assert teacher_identity(classifier) == teacher_identity(same) != teacher_identity(cut)


def test_stored_vectors_of_other_teachers_or_corpus_are_an_error(words, tmp_path):
    for number in (1, 2):
        write_artifact(model_of(words, number), tmp_path / str(number) / "model")
        (tmp_path / f"corpus{number}").mkdir()
        (tmp_path / f"corpus{number}" / "manifest.json").write_text(json.dumps({"number": number}))
    mine, other = one(tmp_path / "1" / "model"), one(tmp_path / "2" / "model")  # folders of one name
    corpus, place = tmp_path / "corpus1", tmp_path / "texts"

    def check_targets(teachers: TeacherMixture, shards) -> None:
        CorpusDistillation(teachers, shards, TrainSettings(steps=1), VectorDistillSettings()).check_targets(place)

    check_targets(other, corpus)  # killed before the vectors were there
    check_targets(mine, corpus)
    np.save(place / "targets.npy", np.ones(1))
    check_targets(mine, corpus)
    for who in (other, TeacherMixture(mine.folders, (2.0,))):
        with pytest.raises(AlbertkitError, match="vectors of other teachers, with other weights, or of another corpus"):
            check_targets(who, corpus)
    with pytest.raises(AlbertkitError, match="or of another corpus. Choose another --output, or remove"):
        check_targets(mine, tmp_path / "corpus2")


# Data and arguments ----------------------------------------------------------------------------------------------


def test_labels_unknown_to_the_teacher_are_logged(classifier, tmp_path, capsys):
    meta, lesson = read_artifact(classifier).metadata, DistillSettings(logits=1.0, labels=0.5)
    rows = [(e.text, "stone" if n < 5 else e.label) for n, e in enumerate(texts(40))]
    for name, own in (("some", rows), ("none", [(text, label.upper()) for text, label in rows])):
        lines = [f"{text}\t{label}" for text, label in own]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    read_teacher_data(classifier, meta, (tmp_path / "some.tsv", None), lesson, ReadOptions(), log)
    said = capsys.readouterr().err
    assert "note: 5 labels of 40 unknown to the model, which cannot be learnt" in said and "'stone'" in said
    with pytest.raises(AlbertkitError, match="has none of the labels"):
        read_teacher_data(classifier, meta, (tmp_path / "none.tsv", None), lesson, ReadOptions(), log)


def test_teacher_of_pairs_rejects_single_lines(classifier, paired, tmp_path):
    meta, lesson = read_artifact(paired).metadata, DistillSettings(logits=1.0)
    assert meta.details["pairs"] is True and read_artifact(classifier).metadata.details["pairs"] is False
    assert Albert(paired).classify(["cat"], ["dog"])[0].label in meta.labels and Albert(paired).task == load_task(meta)
    (tmp_path / "lines.txt").write_text("\n".join(e.text for e in texts(20)))
    with pytest.raises(
        AlbertkitError, match=r"for pairs of texts, and .*lines.txt contains single lines. Pass a table"
    ):
        read_teacher_data(paired, meta, (tmp_path / "lines.txt", None), lesson, ReadOptions(), log)
    older = dataclasses.replace(meta, details={k: v for k, v in meta.details.items() if k != "pairs"})
    for known in (older, read_artifact(classifier).metadata):
        _, found = read_teacher_data(paired, known, (tmp_path / "lines.txt", None), lesson, ReadOptions(), log)
        assert len(found.train) == 20


@pytest.mark.parametrize("weight", ["nan", "-1", "0", "inf", "1e9"])
def test_teacher_weights_are_above_zero(weight):
    assert parse_teacher("gte:1.5")[1] == 1.5 and parse_teacher("gte")[1] == 1.0
    with pytest.raises(AlbertkitError, match="the weight must be above 0"):
        parse_teacher(f"gte:{weight}")


def test_output_cannot_be_a_finished_model(classifier, tmp_path):
    model = shutil.copytree(classifier, tmp_path / "model")
    (tmp_path / "lines.txt").write_text("\n".join(e.text for e in texts(20)))
    given = ["distill", str(model), str(tmp_path / "lines.txt"), "--shape", "mini", "-o", str(model), "--steps", "1"]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 1 and "contains README.md and no training run" in str(done.exception)
    assert {path.name for path in model.iterdir()} == {path.name for path in classifier.iterdir()}


# Foreign teachers ------------------------------------------------------------------------------------------------


def sentence_folder(words, folder, place="", pooling="mean", **more):
    """A tiny BERT as sentence-transformers writes it."""
    (folder / place).mkdir(parents=True, exist_ok=True)
    model = bert(words, folder / place)
    kinds = {place: "Transformer", "1_Pooling": "Pooling"}
    modules = [{"path": name, "type": f"sentence_transformers.models.{kind}"} for name, kind in kinds.items()]
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{name}": name.startswith(pooling) for name in ("cls_token", "max_tokens", "mean_tokens")}
    for path, told in {"modules.json": modules, "1_Pooling/config.json": modes, **more}.items():
        (folder / path).write_text(json.dumps(told))
    return model


def test_vectors_of_an_encoder_in_a_subfolder(words, tmp_path):
    for pooling in ("mean", "cls"):
        sentence_folder(words, tmp_path / pooling, "0_Transformer", pooling)
    assert teacher_identity(tmp_path / "mean") != teacher_identity(tmp_path / "cls")  # the same weights
    student = new_student(tiny(hidden_size=24, num_attention_heads=3), words, 1)
    data, settings = DistillData(None, ["cat dog"] * 20), DistillSettings(vectors=1.0)
    work = DistillJob(one(tmp_path / "mean"), student, data, settings, quick(1))
    found = teacher_vectors(work, tmp_path / "out")
    assert found.shape[0] == 20
    (tmp_path / "mean" / "0_Transformer" / "model.safetensors").unlink()
    with pytest.raises(AlbertkitError, match=r"has no model.safetensors. Pass an ALBERT model, or a folder with"):
        teacher_identity(tmp_path / "mean")


def test_transformers_teacher_truncates_to_its_positions(words, tmp_path):
    """64 positions: longer texts are cut."""
    model, long = bert(words, tmp_path), "cat dog cow " * 100
    speakers = teachers.TeacherEnsemble([tmp_path], CPU)
    with torch.no_grad():
        ids = torch.tensor([words.encode(long, max_length=64).ids])
        wanted = model(input_ids=ids).last_hidden_state[0].mean(0)
    assert ids.shape == (1, 64) and np.isfinite(speakers.encode([long, "cat"])).all()
    np.testing.assert_allclose(speakers.encode([long])[0], (wanted / wanted.norm()).numpy(), atol=2e-3)


@pytest.mark.parametrize("kind", ["Roberta", "MPNet", "Bert", "Electra", "DistilBert"])
def test_max_positions_of_transformers_models(kind):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{kind}Config")(vocab_size=20, hidden_size=16, embedding_size=16, dim=16, num_hidden_layers=1,
        n_layers=1, num_attention_heads=2, n_heads=2, intermediate_size=16, hidden_dim=16, max_position_embeddings=12)  # fmt: skip
    model = getattr(transformers, f"{kind}Model")(config).eval()
    longest = max_positions(model)
    assert longest == (10 if kind in ("Roberta", "MPNet") else 12)
    model(input_ids=torch.full((1, longest), 5))
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=torch.full((1, longest + 1), 5))


def test_sentence_transformers_teacher_uses_its_prompt_and_length(words, tmp_path):
    told = {"prompts": {"query": "red blue "}, "default_prompt_name": "query"}
    more = {"sentence_bert_config.json": {"max_seq_length": 8}, "config_sentence_transformers.json": told}
    model = sentence_folder(words, tmp_path / "a", **more)
    sentence_folder(words, tmp_path / "b")
    speakers = teachers.TeacherEnsemble([tmp_path / "a", tmp_path / "b"], CPU)
    assert teacher_identity(tmp_path / "a") != teacher_identity(tmp_path / "b")
    for text in ("cat dog", "cat dog cow hen pig fox owl bee oak elm"):
        with torch.no_grad():
            read = [words.encode(f"red blue {text}", max_length=8).ids, words.encode(text).ids]
            wanted = [model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in read]
        both = torch.cat([vector / vector.norm() for vector in wanted]).numpy()
        np.testing.assert_allclose(speakers.encode([text])[0], both, atol=2e-3)
