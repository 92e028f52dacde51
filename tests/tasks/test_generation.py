"""Generation: what is read, who sees whom, what is measured, and that a small model learns to write."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from albertkit.albert import Albert
from albertkit.artifact import Artifact
from albertkit.cli.entry_point import app
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel
from albertkit.model.albert_model import build_head
from albertkit.runtime.predict import predict
from albertkit.tasks.examples import RewriteExample
from albertkit.tasks.generation import (
    GeneratedText,
    GenerateTask,
    first_words,
    text_quality,
)
from albertkit.tasks.readers import ReadOptions, read_examples
from albertkit.tokenizer import Tokenizer
from albertkit.train import finetune as tune
from albertkit.train.finetune_task import pack_features
from albertkit.train.train_settings import FinetuneSettings
from tests.conftest import tiny
from tests.train.conftest import TOPICS, VOCAB

COLOURS, ANIMALS, TREES = TOPICS[:3]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n")
    return Tokenizer.from_vocab(path)


@pytest.fixture(scope="module")
def start(tokenizer) -> Artifact:
    torch.manual_seed(0)
    config = tiny(vocab_size=len(VOCAB), initializer_range=0.1, max_position_embeddings=48, num_hidden_layers=2)
    return Artifact(config, AlbertModel(config, {"mlm": build_head("mlm", config)}).weights(), tokenizer)


# Reading -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'source,target\n"A long, long text.",Short.\nOther text,Other\n'),
        ("a.tsv", "id\tdocument\tsummary\n1\tA long, long text.\tShort.\n2\tOther text\tOther\n"),
        ("a.tsv", "A long, long text.\tShort.\nOther text\tOther\n"),
        (
            "a.jsonl",
            '{"target": "Short.", "source": "A long, long text."}\n{"source": "Other text", "target": "Other"}\n',
        ),
        ("a.json", '[{"input": "A long, long text.", "output": "Short."}, {"input": "Other text", "output": "Other"}]'),
    ],
)
def test_files_as_they_come(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    found = read_examples("generate", tmp_path / name).examples
    assert [(e.source, e.target) for e in found] == [("A long, long text.", "Short."), ("Other text", "Other")]
    assert found[0].where.startswith(str(tmp_path / name))


def test_columns_by_name_and_what_is_wrong(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b,c\nx,one,two\ny,three,\n")
    with pytest.raises(AlbertkitError, match="the source and the target.*--text-column, --label-column"):
        read_examples("generate", path)
    named = ReadOptions(text_column="b", label_column="c")
    with pytest.raises(AlbertkitError, match="line 3: the target is empty"):
        read_examples("generate", path, named)
    found = read_examples("generate", path, ReadOptions(text_column="b", label_column="c", skip_bad=True))
    assert [(e.source, e.target) for e in found.examples] == [("one", "two")]
    with pytest.raises(AlbertkitError, match="has two roles"):
        read_examples("generate", path, ReadOptions(text_column="b", label_column="b"))


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"article": ["long"], "highlights": ["short"]}), tmp_path / "a.parquet")
    assert read_examples("generate", tmp_path / "a.parquet").examples[0].target == "short"


# Who sees whom -------------------------------------------------------------------------------------------------------

texts = st.lists(st.sampled_from([*COLOURS, *ANIMALS]), min_size=1, max_size=12).map(" ".join)


@settings(max_examples=40)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=3), st.integers(1, 8))
def test_masks_see_the_source_and_what_was_written_before(tokenizer, pairs, most):
    task = GenerateTask(target_length=most)
    features = task.features([RewriteExample(a, b) for a, b in pairs], tokenizer, 20)
    batch = pack_features(features)
    assert batch.attention_mask is not None
    for number, (feature, (_, target)) in enumerate(zip(features, pairs, strict=True)):
        size = len(feature.ids)
        right = [*tokenizer.ids_batch([target])[0], tokenizer.sep_id][:most]
        count, begin = len(right), size - 2 * len(right)
        assert begin <= 20 - most - 1 and feature.ids[begin : begin + count] == right
        assert [t for t in feature.target if t != -100] == right
        seen = batch.attention_mask[number, :size, :size].numpy()
        for i in range(size):
            mine = feature.positions[i] if i >= begin else -1
            if i < begin:
                wanted = set(range(begin))
            elif i < begin + count:
                wanted = set(range(i + 1))
            else:
                wanted = {*range(mine), i}
            assert set(np.flatnonzero(seen[i]).tolist()) == wanted
        assert feature.positions[begin + count :] == feature.positions[begin : begin + count]
        assert max(feature.positions) < 20


def test_no_room_for_a_source(tokenizer):
    with pytest.raises(AlbertkitError, match="smaller --target-length"):
        GenerateTask(target_length=30).features([RewriteExample("red", "cat")], tokenizer, 32)


# Measuring -----------------------------------------------------------------------------------------------------------


def test_quality_beside_a_copy():
    examples = [
        RewriteExample("The cat sat on the mat today", "the cat sat down on it"),
        RewriteExample("A dog ran", "a dog ran far away home"),
    ]
    task = GenerateTask.from_examples(examples)
    assert task.target_words == 6
    perfect = task.measure([GeneratedText(e.target, 0.0, True) for e in examples], examples)
    assert perfect["bleu"] == pytest.approx(1) and perfect["rouge_l"] == pytest.approx(1)
    assert 0 < perfect["copy_rouge_l"] < 1 and perfect["length_ratio"] == 1
    copied = task.measure([GeneratedText(first_words(e.source, 6), 0.0, True) for e in examples], examples)
    assert copied["rouge_l"] == copied["copy_rouge_l"] and copied["bleu"] == copied["copy_bleu"]


def test_rouge_by_hand_and_in_chinese():
    # longest common run in order: the cat on mat = 4 of 5 and 4 of 6 words
    assert text_quality(["the cat on a mat"], ["The cat sat on the mat."])["rouge_l"] == pytest.approx(8 / 11)
    assert text_quality(["今天天气很好"], ["今天天气好"])["rouge_l"] == pytest.approx(10 / 11)
    assert text_quality(["今天天气很好啊"], ["今天天气很好啊"])["bleu"] == pytest.approx(1)
    assert text_quality(["", "a b"], ["x", "c d"])["rouge_l"] == 0


# Learning ------------------------------------------------------------------------------------------------------------


def rewrites(count: int, seed: int) -> list[RewriteExample]:
    """The colour and the animal of a source, in the other order, `one` between them, and an end."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        colour, animal = str(rng.choice(COLOURS)), str(rng.choice(ANIMALS))
        trees = rng.choice(TREES, int(rng.integers(1, 4))).tolist()
        made.append(RewriteExample(" ".join([colour, *trees[:1], animal, *trees[1:]]), f"{animal} one {colour}"))
    return made


@pytest.fixture(scope="module")
def trained(start, tmp_path_factory):
    out = tmp_path_factory.mktemp("writing")
    torch.set_num_threads(1)
    options = FinetuneSettings(
        epochs=16, batch_size=16, learning_rate=4e-3, max_length=24, target_length=6, label_smoothing=0.05, device="cpu"
    )
    done = tune.finetune_examples("generate", rewrites(400, 0), rewrites(60, 1), out, start, options)
    return out, done


@pytest.mark.slow
def test_a_small_model_learns_to_write(trained):
    out, done = trained
    assert done.metrics["word_accuracy"] > 0.95 and done.runs[0]["collapsed"] == 0
    albert, test = Albert(out, threads=1), rewrites(50, 2)
    for style in ({}, {"beams": 3}):
        found = albert.generate([e.source for e in test], **style)
        assert np.mean([w.text == e.target for w, e in zip(found, test, strict=True)]) > 0.9
        assert all(w.finished for w in found)
    metrics = albert.task.measure(predict(albert, test, "generate"), test)
    assert metrics["rouge_l"] > 0.9 > 0.6 > metrics["copy_rouge_l"]
    assert albert.task.target_length == 6 and albert.task.target_words == 3
    with pytest.raises(AlbertkitError, match="early_exit is not available"):
        predict(albert, test, "generate", early_exit="entropy:0.1")


def test_evaluate_shows_the_copy_too(trained, tmp_path):
    out, _ = trained
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps({"source": e.source, "target": e.target}) + "\n" for e in rewrites(20, 3)))
    for bits in ([], ["--bits", "8"]):
        run = CliRunner().invoke(app, ["evaluate", "-m", str(out), str(path), "--json", *bits])
        assert run.exit_code == 0, run.output
        found = json.loads(run.stdout)
        assert found["rouge_l"] > 0.85 and {"bleu", "copy_bleu", "copy_rouge_l"} <= set(found)


def test_a_start_must_be_able_to_write(start, tmp_path):
    bare = Artifact(start.config, {n: w for n, w in start.weights.items() if "mlm" not in n}, start.tokenizer)
    with pytest.raises(AlbertkitError, match="masked-language-model head"):
        tune.finetune_examples(
            "generate", rewrites(8, 0), [], tmp_path / "a", bare, FinetuneSettings(max_length=24, target_length=6)
        )
    with pytest.raises(AlbertkitError, match="Omit --elastic"):
        options = FinetuneSettings(max_length=24, target_length=6, elastic=True)
        tune.finetune_examples("generate", rewrites(8, 0), [], tmp_path / "b", start, options)


def test_the_masked_word_head_is_kept_as_learnt(start):
    from albertkit.train.finetune_task import build_task_model

    model = build_task_model(start, GenerateTask())
    np.testing.assert_array_equal(model.weights()["heads.mlm.dense.weight"], start.weights["heads.mlm.dense.weight"])
