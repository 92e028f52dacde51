"""Early exit: what a text says does not depend on who leaves beside it, and what is promised on held-out texts holds."""

from __future__ import annotations

import dataclasses
import json
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from albertkit.albert import Albert
from albertkit.artifact import Artifact, ArtifactMetadata, read_artifact, write_artifact
from albertkit.compress.prune import PruneSettings, prune
from albertkit.errors import AlbertkitError
from albertkit.input_warnings import UntrainedDepthWarning
from albertkit.interop.onnx_export import ExportSettings, export
from albertkit.model import AlbertModel
from albertkit.model.albert_model import build_head
from albertkit.runtime import early_exit as exits
from albertkit.runtime.calibration import MIN_TEXTS, calibrate, fit_calibration, fit_line, lower_bound
from albertkit.runtime.early_exit import (
    EarlyExitRunner,
    ExitCalibration,
    ExitRule,
    parse_early_exit,
    read_depths,
    risk_limits,
)
from albertkit.runtime.predict import predict, read_heads, task_features
from albertkit.tasks.confidence import UncertaintyEstimator, cosines
from albertkit.tasks.examples import ChoiceExample, QuestionExample, TaggedExample, TextExample, split_words
from albertkit.tokenizer import Tokenizer
from tests.conftest import tiny
from tests.train.conftest import TOPICS, VOCAB

LAYERS = 5
WORDS = [word for topic in TOPICS[:3] for word in topic]
LABELS = {
    "classify": ("a", "b", "c"),
    "tag": ("O", "B-x", "I-x"),
    "intent": ("O", "B-x", "I-x"),
    "match": (),
    "answer": (),
    "choose": (),
    "embed": (),
}
DETAILS = {
    "intent": {"intents": ["go", "stay"]},
    "classify": {"kind": "single"},
    "answer": {"stride": 4, "threshold": None},
}


def sentence(rng: np.random.Generator, most: int = 12) -> str:
    return " ".join(rng.choice(WORDS, int(rng.integers(1, most))))


def examples(task: str, count: int, seed: int = 0) -> list:
    rng = np.random.default_rng(seed)
    if task == "classify":
        return [TextExample(sentence(rng)) for _ in range(count)]
    if task == "match":
        return [TextExample(sentence(rng), sentence(rng)) for _ in range(count)]
    if task in ("tag", "intent"):
        texts = [sentence(rng, 40) for _ in range(count)]
        return [TaggedExample(text, split_words(text)) for text in texts]
    if task == "answer":
        return [QuestionExample(str(n), sentence(rng, 4), sentence(rng, 50)) for n in range(count)]
    return [
        ChoiceExample(sentence(rng), sentence(rng, 5), tuple(sentence(rng, 4) for _ in range(2 + n % 3)))
        for n in range(count)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model for a task with random weights, large enough to be sure of something."""
    place = tmp_path_factory.mktemp("models")
    (place / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    tokenizer = Tokenizer.from_vocab(place / "vocab.txt")
    config = tiny(vocab_size=len(VOCAB), num_hidden_layers=LAYERS, initializer_range=0.35, max_position_embeddings=32)

    def of(task: str):
        if not (place / task).exists():
            torch.manual_seed(3)
            heads = {"intent": ("classify", "tag"), "match": (), "embed": ()}.get(task, (task,))
            count = {"classify": 2 if task == "intent" else 3, "tag": 3}
            modules = {name: build_head(name, config, labels=count.get(name, 1)) for name in heads}
            details = {"max_length": 32, **DETAILS.get(task, {})}
            meta = ArtifactMetadata(task=task, labels=LABELS[task], details=details)
            write_artifact(Artifact(config, AlbertModel(config, modules).weights(), tokenizer, meta), place / task)
        return place / task

    return of


@pytest.fixture(scope="module")
def albert(folder):
    made: dict[str, Albert] = {}
    return lambda task: made.setdefault(task, Albert(folder(task), threads=1, token_budget=48))


def flat(result) -> dict:
    """A result's names and numbers without nesting."""
    out = {}

    def go(name, value):
        if isinstance(value, dict):
            [go(f"{name}.{k}", v) for k, v in value.items()]
        elif isinstance(value, list | tuple):
            [go(f"{name}.{i}", v) for i, v in enumerate(value)]
        elif isinstance(value, float):
            out[name] = value
        else:
            out[f"{name}={value}"] = 1

    go("", dataclasses.asdict(result))
    return out


TASKS = ("classify", "tag", "intent", "answer", "choose", "match")


@pytest.mark.parametrize("task", TASKS)
def test_an_exit_nobody_takes_is_the_plain_prediction(albert, task):
    model, given = albert(task), examples(task, 12)
    kind = "cosine:1" if task == "match" else "entropy:0"
    plain, found = predict(model, given, task), predict(model, given, task, early_exit=kind)
    assert [r.depth for r in found] == [LAYERS] * 12
    for a, b in zip(plain, found, strict=True):
        assert flat(a) == pytest.approx(flat(b), abs=1e-6)
    if task != "choose":  # whose choices are grouped otherwise, since they leave together; else to the bit
        assert list(map(repr, plain)) == list(map(repr, found))


@pytest.mark.parametrize("task", TASKS)
def test_an_exit_everybody_takes_is_that_depth(albert, task):
    model, given = albert(task), examples(task, 12)
    first = 2 if task == "match" else 1  # a vector has not moved before the second look
    found = predict(model, given, task, early_exit="cosine:0" if task == "match" else "entropy:1")
    if task != "match":  # every cosine of random vectors is above 0, or nearly
        assert [r.depth for r in found] == [first] * 12
        for a, b in zip(predict(model, given, task, depth=first), found, strict=True):
            assert flat(a) == pytest.approx(flat(b), abs=1e-6)
    else:
        assert min(r.depth for r in found) == first


def alone(model: Albert, task: str, rule: ExitRule, example) -> tuple[list, int]:
    """The scores of one example by itself, and the depth it leaves at, in the plainest way."""
    features = task_features(model, [example], task)
    judge = UncertaintyEstimator(model.task, features, [example])
    ids, segments = [f.ids for f in features], [f.segments for f in features]
    read = read_depths(model, ids, segments, [*rule.exit_depths, rule.depth], lambda h, n: read_heads(model, h, n))
    before = None
    for number, look in enumerate(rule.exit_depths):
        if judge.uncertainty([0], read[look], before)[0] <= rule.limits[number]:
            return read[look], look
        before = read[look]
    return read[rule.depth], rule.depth


def tied(scores: list) -> bool:
    """Whether the best two choices are so near that rounding, which differs from batch to batch, may turn them."""
    best = np.sort(np.concatenate([np.ravel(one) for one in scores]))[-2:]
    return bool(np.diff(best) < 1e-4)


@pytest.mark.parametrize("task", TASKS[:-1])
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_schedule_says_what_each_text_says_alone(albert, task, data):
    """Random exit_depths and limits, random texts: leaving and packing again change nothing for anybody."""
    model = albert(task)
    exit_depths = tuple(
        sorted(data.draw(st.sets(st.integers(1, LAYERS - 1), max_size=LAYERS - 1), label="exit_depths"))
    )
    limits = tuple(data.draw(st.floats(0.0, 1.0), label="limit") for _ in exit_depths)
    rule = ExitRule(LAYERS, exit_depths, limits)
    given_examples = examples(task, data.draw(st.integers(1, 25), label="texts"), data.draw(st.integers(0, 99)))
    features = task_features(model, given_examples, task)
    judge = UncertaintyEstimator(model.task, features, given_examples)
    walk = EarlyExitRunner(model, rule, lambda h, n: read_heads(model, h, n), judge)
    found = walk.run([f.ids for f in features], [f.segments for f in features])
    for unit, example in enumerate(given_examples):
        scores, depth = alone(model, task, rule, example)
        if task == "choose" and any(
            tied(alone(model, task, ExitRule(look), example)[0]) for look in (*exit_depths, LAYERS)
        ):
            continue
        assert found.depths[unit] == depth
        for place, one in zip(judge.units[unit], scores, strict=True):
            mine = found.outputs[place]
            pairs = zip(mine, one, strict=True) if isinstance(one, tuple) else ((mine, one),)
            for a, b in pairs:
                np.testing.assert_allclose(a, b, atol=1e-5)


def test_stretches_bound_what_is_held(albert, monkeypatch):
    monkeypatch.setattr(exits, "MAX_BATCHES", 1)
    model, given = albert("classify"), examples("classify", 40)
    small = predict(model, given, "classify", early_exit="entropy:0.5")
    monkeypatch.setattr(exits, "MAX_BATCHES", 100)
    large = predict(model, given, "classify", early_exit="entropy:0.5")
    assert [(r.label, r.depth) for r in small] == [(r.label, r.depth) for r in large]
    assert len({r.depth for r in small}) > 1


def test_fewer_layers_are_really_applied(albert, monkeypatch):
    """Tokens times layers, counted at the engine, are what the depths say (and padding)."""
    model, given = albert("classify"), examples("classify", 60)
    spent, before = [], model.engine.apply_layers
    monkeypatch.setattr(
        model.engine, "apply_layers", lambda h, n, a, b: spent.append(int(n.sum()) * (b - a)) or before(h, n, a, b)
    )
    found = predict(model, given, "classify", early_exit="entropy:0.6")
    wanted = [len(f.ids) * r.depth for f, r in zip(task_features(model, given, "classify"), found, strict=True)]
    assert sum(spent) == sum(wanted) < LAYERS * sum(len(f.ids) for f in task_features(model, given, "classify"))


def test_the_torch_engine_goes_step_by_step_too(folder):
    given = examples("tag", 10)
    ours = predict(Albert(folder("tag"), threads=1), given, "tag", early_exit="entropy:0.7")
    theirs = predict(Albert(folder("tag"), device="torch"), given, "tag", early_exit="entropy:0.7")
    assert [(r.spans and r.spans[0].label, r.depth) for r in ours] == [
        (r.spans and r.spans[0].label, r.depth) for r in theirs
    ]


# Doubts ----------------------------------------------------------------------------------------------------------


def test_doubts_by_hand(albert):
    task = albert("classify").task
    judge = UncertaintyEstimator(task, [_feature(0), _feature(1)], [None, None])
    uncertainty = judge.uncertainty([0, 1], [np.zeros(3), np.array([50.0, 0, 0])], None)
    assert uncertainty[0] == pytest.approx(1) and uncertainty[1] == pytest.approx(0, abs=1e-9)
    both = UncertaintyEstimator(albert("choose").task, [_feature(0), _feature(0)], [None])
    assert both.uncertainty([0], [np.array([1.0]), np.array([1.0])], None)[0] == pytest.approx(1)
    assert both.predictions([0], [np.array([1.0]), np.array([2.0])]) == [1]
    pair = UncertaintyEstimator(albert("match").task, [_feature(0), _feature(0)], [None])
    now, old = [np.array([1.0, 0]), np.array([1.0, 1])], [np.array([0.0, 1]), np.array([2.0, 2])]
    assert np.isinf(pair.uncertainty([0, 1], now, None)).all()
    np.testing.assert_allclose(pair.uncertainty([0, 1], now, old), [1, 0], atol=1e-12)


def _feature(example: int):
    from albertkit.tasks.task import Feature

    return Feature([1], [0], example)


def test_a_text_leaves_when_all_its_words_are_sure(albert):
    """Only tokens that read a word count, and the least sure one decides."""
    model = albert("tag")
    (example,) = [TaggedExample("cat oak red", split_words("cat oak red"))]
    features = task_features(model, [example], "tag")
    judge = UncertaintyEstimator(model.task, features, [example])
    scores = np.zeros((len(features[0].ids), 3))
    scores[1:-1, 0] = 50.0
    assert judge.uncertainty([0], [scores], None)[0] == pytest.approx(0, abs=1e-9)  # the special tokens do not matter
    scores[2] = 0
    assert judge.uncertainty([0], [scores], None)[0] == pytest.approx(1)


# Agreement -------------------------------------------------------------------------------------------------------


def test_the_lower_bound_is_clopper_and_pearson_s():
    from scipy.stats import beta

    for right, count in ((299, 299), (290, 300), (1, 10), (0, 5), (580, 581), (2000, 4000)):
        wanted = beta.ppf(0.05, right, count - right + 1) if right else 0.0
        assert lower_bound(right, count) == pytest.approx(wanted, abs=1e-9)


def made_up(rng: np.random.Generator, count: int, exit_depths: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Doubts, and whether texts agree, which is likelier with less doubt and deeper down."""
    uncertainty = rng.beta(0.7, 1.5, (count, exit_depths))
    chance = 1 / (1 + np.exp(-(1.5 * np.log(uncertainty + 1e-3) - 0.5 * np.arange(exit_depths) + 1)))
    return uncertainty, rng.random((count, exit_depths)) > chance


@pytest.mark.slow
def test_what_is_promised_holds_nineteen_times_in_twenty():
    rng = np.random.default_rng(0)
    fresh, right = made_up(rng, 40_000)
    broken, saved = 0, []
    for _ in range(80):
        found = fit_calibration(*made_up(rng, 600), range(1, 7), 7)
        limits = np.array(found.limits(0.9))
        leaves = np.concatenate([fresh <= limits, np.ones((len(fresh), 1), bool)], 1)
        at = leaves.argmax(1)
        agreed = np.concatenate([right, np.ones((len(right), 1), bool)], 1)[np.arange(len(at)), at].mean()
        broken += agreed < 0.9
        saved.append(7 / (1 + at).mean())
    assert broken <= 0.1 * 80  # 5 % are expected at most
    assert np.mean(saved) > 1.2


def test_the_more_is_promised_the_deeper_texts_go():
    found = fit_calibration(*made_up(np.random.default_rng(1), 3000), range(1, 7), 7)
    limits = [np.array(found.limits(share)) for share in (0.8, 0.9, 0.95)]
    assert (limits[0] >= limits[1]).all() and (limits[1] >= limits[2]).all()
    assert ExitCalibration.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    with pytest.raises(AlbertkitError, match=r"early_exit=0.9999 is not available.*at least 39,9"):
        found.limits(0.9999)


def test_lines_and_limits():
    uncertainty = np.array([0.01] * 50 + [0.5] * 50)
    a, b = fit_line(uncertainty, np.array([True] * 49 + [False] + [True] * 25 + [False] * 25))
    assert b > 0.5 and 1 / (1 + np.exp(-(a + b * np.log(0.5)))) == pytest.approx(0.5, abs=0.05)
    (limit,) = risk_limits([(a, b)], 0.1)
    assert 0.01 < limit < 0.5
    assert fit_line(np.array([np.inf, 0.5]), np.array([True, True])) is None
    assert risk_limits([None, (-9.0, 0.0), (9.0, 0.0)], 0.1) == (-1.0, np.inf, -1.0)
    assert fit_calibration(np.zeros((MIN_TEXTS - 1, 2)), np.ones((MIN_TEXTS - 1, 2), bool), (1, 2), 3) is None


@pytest.mark.parametrize(
    "damage", [{"exit_depths": "x"}, {"lines": [[1]]}, {"risks": [[0, 1, 2]]}, {"depth": None}, []]
)
def test_a_damaged_calibration_is_an_error(damage):
    found = fit_calibration(*made_up(np.random.default_rng(1), 300), range(1, 7), 7).to_dict()
    with pytest.raises(AlbertkitError, match="damaged"):
        ExitCalibration.from_dict({**found, **damage} if damage else damage)


@pytest.mark.parametrize("task", [*TASKS, "embed"])
def test_calibrating_a_model_writes_its_limits(folder, tmp_path, task):
    """Through the file, for every task; and agreement at the promised share on the very texts."""
    artifact = read_artifact(folder(task))
    write_artifact(artifact, tmp_path / "model")
    rng = np.random.default_rng(5)
    given = [sentence(rng, 60) for _ in range(200)] if task == "embed" else examples(task, 200, 5)
    found = calibrate(tmp_path / "model", given)
    assert (
        found.depth == LAYERS
        and found.exit_depths == tuple(range(1, LAYERS))
        and found.texts == (300 if task == "match" else 150)
    )
    model = Albert(tmp_path / "model", threads=1)
    assert model.metadata.details["early_exit"]["texts"] == found.texts
    if found.risk(0.5) is None:
        return
    if task == "embed":
        vectors, depths = model.embed_early_exit(given, early_exit=0.5)
        assert vectors.shape == (200, 32) and depths.shape == (200,) and depths.min() > 1
        assert np.mean(cosines(vectors, model.embed(given)) >= 0.95) >= 0.5
        return
    early, full = predict(model, given, task, early_exit="50%"), predict(model, given, task)
    assert all(1 <= r.depth <= LAYERS for r in early)
    if task in ("classify", "tag"):
        name = "label" if task == "classify" else "spans"
        says = [[getattr(r, name) for r in results] for results in (early, full)]
        if task == "tag":
            says = [[[(s.start, s.end, s.label) for s in spans] for spans in side] for side in says]
        assert np.mean([a == b for a, b in zip(*says, strict=True)]) >= 0.5


# Vectors ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_vectors_stop_when_they_stop_moving(albert):
    model, rng = albert("embed"), np.random.default_rng(0)
    texts = [sentence(rng, 70) for _ in range(30)]  # some of several pieces
    np.testing.assert_allclose(model.embed(texts, early_exit="cosine:1"), model.embed(texts), atol=1e-6)
    layers = {d: model.embed(texts, depth=d) for d in range(1, LAYERS + 1)}
    moved = [1 - cosines(layers[d], layers[d - 1]) for d in range(2, LAYERS)]
    limit = 1 - float(np.median(np.concatenate(moved)))
    vectors, depths = model.embed_early_exit(texts, early_exit=f"cosine:{limit}")
    assert len(set(depths.tolist())) > 1 and depths.min() >= 2
    for text, vector, depth in zip(range(30), vectors, depths, strict=True):
        np.testing.assert_allclose(vector, layers[depth][text], atol=1e-5)
        assert depth == LAYERS or moved[depth - 2][text] <= 1 - limit + 1e-6
        assert all(moved[d - 2][text] >= 1 - limit - 1e-6 for d in range(2, min(depth, LAYERS)))
    tops = model.embed_early_exit(texts, early_exit=f"cosine:{limit}", pooling="max")
    highest = {d: model.embed(texts, depth=d, pooling="max") for d in range(1, LAYERS + 1)}
    for text, depth in enumerate(
        tops[1].tolist()
    ):  # windows are joined by their highest numbers, also to see what moved
        assert depth == LAYERS or cosines(highest[depth][[text]], highest[depth - 1][[text]])[0] >= limit - 1e-6
    one = model.embed(texts[0], early_exit=f"cosine:{limit}")
    np.testing.assert_allclose(one, vectors[0], atol=1e-5)
    assert model.embed([], early_exit="cosine:0.9").shape == (0, 32)
    assert model.similarity(texts[0], texts[1], early_exit="cosine:1") == pytest.approx(
        model.similarity(texts[0], texts[1]), abs=1e-5
    )


def test_the_built_in_model_looks_where_it_was_distilled():
    model = Albert(threads=1)
    assert exits.available_exit_depths(model) == (3, 6, 9)
    with pytest.raises(AlbertkitError, match="depth=4 .* depths 3, 6, 9, 12"):
        model.embed("a cat", depth=4)
    vectors, depths = model.embed_early_exit(["a cat sat on the mat", "the dog stood there"], early_exit="cosine:0.9")
    assert set(depths.tolist()) <= {6, 9, 12} and vectors.shape == (2, model.dim)
    texts = [f"the {name} stood in the garden all day" for name in ("dog", "house", "old teacher", "car", "tree")]
    early, depths = model.embed_early_exit(texts, early_exit="99%")  # it ships with limits
    assert depths.mean() < 9 and (early * model.embed(texts)).sum(1).min() > 0.95


def test_depths_that_vectors_were_not_taught_at_are_refused(albert, folder, tmp_path):
    """Numbers that mean nothing are worse than an error; what looks inside on purpose still may."""
    artifact = read_artifact(folder("embed"))
    distilled = {"step": "distill", "settings": {"depths": "2,5"}}

    def opened(name, *steps, **details):
        meta = dataclasses.replace(artifact.metadata, history=steps, **details)
        return Albert(write_artifact(dataclasses.replace(artifact, metadata=meta), tmp_path / name), threads=1)

    model = opened("distilled", distilled, {"step": "quantize"})
    for refused in (
        lambda: model.embed("cat", depth=3),
        lambda: model.similarity("cat", "dog", depth=1),
        lambda: model.embed("cat", depth=4, early_exit="cosine:0.9"),
        lambda: model.embed_early_exit(["cat"], early_exit="cosine:0.9", depth=4),
        lambda: Albert(tmp_path / "distilled", depth=3).embed("cat"),
        lambda: export(tmp_path / "distilled", tmp_path / "m.onnx", ExportSettings(depth=3)),
    ):
        with pytest.raises(AlbertkitError, match="depths 2, 5"):
            refused()
    plain = albert("embed")
    for depth in (2, LAYERS):
        np.testing.assert_array_equal(model.embed("cat", depth=depth), plain.embed("cat", depth=depth))
    np.testing.assert_array_equal(model.embed("cat", layer=3), plain.embed("cat", depth=3))
    assert model.token_vectors("cat", depth=3).vectors.shape[1] == 32
    for name, later in (
        ("elastic", "elastic"),
        ("tuned", "finetune"),
        ("more", "pretrain"),
    ):  # which depths are good is another question then
        changed = opened(name, distilled, {"step": later})
        assert changed.embed("cat", depth=3).shape == (32,) and exits.available_exit_depths(changed) == (1, 2, 3, 4)
    with pytest.raises(AlbertkitError, match=r"depths 2, 5.*--train"):
        prune(tmp_path / "distilled", tmp_path / "cut", PruneSettings(layers=3))
    assert prune(tmp_path / "distilled", tmp_path / "cut", PruneSettings(layers=2)).layers == 2
    assert opened("own", distilled, depth=3).embed("cat").shape == (32,)  # its own depth is what it was made for


def test_heads_on_frozen_vectors_read_taught_depths_only(folder, tmp_path):
    artifact = read_artifact(folder("classify"))
    meta = dataclasses.replace(
        artifact.metadata, history=({"step": "distill", "settings": {"depths": "2,5"}}, {"step": "frozen classifier"}), details={**artifact.metadata.details, "reads": "vector"}
    )  # fmt: skip
    model = Albert(write_artifact(dataclasses.replace(artifact, metadata=meta), tmp_path / "m"), threads=1)
    assert model.classify("cat", depth=2).label in LABELS["classify"]
    for way in ({}, {"early_exit": "entropy:0.5"}):
        with pytest.raises(AlbertkitError, match="depths 2, 5"):
            model.classify("cat", depth=3, **way)


# What is said about `early_exit=`
# --------------------------------------------------------------------------------------


def test_what_exit_may_be():
    assert parse_early_exit(0.99) == parse_early_exit("99%") == parse_early_exit("0.99") == ("agreement", 0.99)
    assert parse_early_exit("entropy:0.1") == ("entropy", 0.1)
    for odd in ("much", "entropy:", "speed:3", True, "", ":", "99%%", "cosine:inf", "entropy:1e999", "nan"):
        with pytest.raises(AlbertkitError, match="write early_exit='99%'"):
            parse_early_exit(odd)
    for odd in (1.0, "100%", 0.3, 99, -0.5):
        with pytest.raises(AlbertkitError, match="from 50%"):
            parse_early_exit(odd)
    with pytest.raises(AlbertkitError, match="0 or above"):
        parse_early_exit("change:-1")
    for odd in ("entropy:-1", "entropy:1.1", "cosine:2", "cosine:-0.5", "cosine:200%"):
        with pytest.raises(AlbertkitError, match=f"early_exit is '{odd}'; .* is from 0 to 1. Pass"):
            parse_early_exit(odd)


def test_what_does_not_fit_is_said(albert, folder):
    with pytest.raises(AlbertkitError, match="albertkit calibrate MODEL DEV"):
        albert("classify").classify("cat", early_exit="99%")
    with pytest.raises(AlbertkitError, match="have no cosine: choose entropy:NUMBER"):
        albert("classify").classify("cat", early_exit="cosine:0.9")
    with pytest.raises(AlbertkitError, match="have no entropy: choose cosine:NUMBER"):
        albert("embed").embed("cat", early_exit="entropy:0.9")
    with pytest.raises(AlbertkitError, match="layer=1 and early_exit="):
        albert("embed").embed("cat", early_exit="cosine:0.9", layer=1)
    with pytest.raises(AlbertkitError, match="7 texts are too few"):
        calibrate(folder("classify"), examples("classify", 7))
    with pytest.raises(AlbertkitError, match="Pass depths from 1 to 4"):
        calibrate(folder("classify"), examples("classify", 7), exit_depths=(2, 9))
    assert albert("classify").classify("cat", depth=np.int64(2)) == albert("classify").classify("cat", depth=2)
    with pytest.raises(AlbertkitError, match="depth is True"):
        albert("classify").classify("cat", depth=True)


def test_a_depth_beside_an_exit(albert, folder, tmp_path):
    model, given = albert("classify"), examples("classify", 30)
    found = predict(model, given, "classify", depth=3, early_exit="entropy:0.5")
    assert max(r.depth for r in found) == 3
    deep = [i for i, r in enumerate(found) if r.depth == 3]
    plain = predict(model, given, "classify", depth=3)
    assert deep and all(flat(found[i]) == pytest.approx(flat(plain[i]), abs=1e-6) for i in deep)
    write_artifact(read_artifact(folder("classify")), tmp_path / "model")
    calibrate(tmp_path / "model", examples("classify", 100))
    with pytest.raises(AlbertkitError, match="calibrated for depth 5, but depth is 3"):
        Albert(tmp_path / "model").classify("cat", depth=3, early_exit=0.5)
    with pytest.raises(AlbertkitError, match=r"results \(classify\), not for its vectors. Choose cosine"):
        Albert(tmp_path / "model").embed("cat", early_exit=0.5)


def test_the_methods_take_depth_and_exit(albert):
    label = albert("classify").classify("cat dog", depth=2)
    assert (
        label.depth is None and label == predict(albert("classify"), [TextExample("cat dog")], "classify", depth=2)[0]
    )
    assert albert("classify").classify(["cat", "dog"], early_exit="entropy:1")[1].depth == 1
    assert albert("tag").tag("cat dog", early_exit="entropy:1").depth == 1
    assert albert("intent").understand("cat dog", early_exit="entropy:1").depth == 1
    assert albert("answer").answer("cat", "red cat oak", early_exit="entropy:1").depth == 1
    assert albert("choose").choose("cat", "red", ["oak", "elm"], depth=3, early_exit="entropy:0").depth == 3


def test_the_command_line(folder, tmp_path):
    from click.testing import CliRunner

    from albertkit.cli.entry_point import app

    run = CliRunner()
    write_artifact(read_artifact(folder("classify")), tmp_path / "model")
    rows = [f"{e.text}\t{'abc'[i % 3]}" for i, e in enumerate(examples("classify", 120))]
    (tmp_path / "dev.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    said = run.invoke(app, ["calibrate", str(tmp_path / "model"), str(tmp_path / "dev.tsv"), "--exit-depths", "1,2,4"])
    assert said.exit_code == 0 and "90 held-out texts, compared with depth 5" in said.stdout, said.output
    assert "--early-exit 99.5%  is not available" in said.stdout
    said = run.invoke(app, ["classify", "-m", str(tmp_path / "model"), "cat", "--early-exit", "entropy:1", "--json"])
    assert json.loads(said.stdout)["depth"] == 1
    assert said.stderr == "1.00 layers per text on average, 5.00 × fewer than 5\n"
    said = run.invoke(app, ["classify", "-m", str(tmp_path / "model"), "cat", "--depth", "2", "--json"])
    assert "depth" not in json.loads(said.stdout)
    said = run.invoke(
        app,
        ["evaluate", "-m", str(tmp_path / "model"), str(tmp_path / "dev.tsv"), "--early-exit", "entropy:1", "--json"],
    )
    found = json.loads(said.stdout.splitlines()[-1])
    assert found["mean_depth"] == 1 and found["speedup_in_layers"] == 5
    (tmp_path / "texts.txt").write_text("\n".join(sentence(np.random.default_rng(i)) for i in range(60)))
    write_artifact(read_artifact(folder("embed")), tmp_path / "vectors")
    said = run.invoke(app, ["calibrate", str(tmp_path / "vectors"), str(tmp_path / "texts.txt"), "--json"])
    assert json.loads(said.stdout)["texts"] == 45, said.output
    said = run.invoke(app, ["embed", "cat", "-m", str(tmp_path / "vectors"), "--early-exit", "cosine:0.5"])
    assert len(json.loads(said.stdout)["vector"]) == 32, said.output
    assert said.stderr == "2.00 layers per text on average, 2.50 × fewer than 5\n"
    said = run.invoke(app, ["embed", "cat", "-m", str(tmp_path / "vectors"), "--early-exit", "cosine:2"])
    assert str(said.exception) == "early_exit is 'cosine:2'; cosine is from 0 to 1. Pass such a number."
    run.invoke(
        app,
        ["embed", "cat", "-m", str(tmp_path / "vectors"), "-o", str(tmp_path / "v.npy"), "--early-exit", "cosine:0.5"],
    )
    assert np.load(tmp_path / "v.npy").shape == (1, 32)


def test_the_command_line_says_when_shallow_depths_were_not_taught(folder, tmp_path):
    from click.testing import CliRunner

    from albertkit.cli.entry_point import app

    artifact = read_artifact(folder("classify"))
    for name, told in (("finetune", True), ("elastic", False)):
        meta = dataclasses.replace(artifact.metadata, history=({"step": name}, {"step": "quantize"}))
        write_artifact(dataclasses.replace(artifact, metadata=meta), tmp_path / name)
        for way, shallow in (
            (["--depth", "2"], True),
            (["--early-exit", "entropy:0.1"], True),
            (["--depth", "5"], False),
            ([], False),
        ):
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                assert CliRunner().invoke(app, ["classify", "-m", str(tmp_path / name), "cat", *way]).exit_code == 0
            said = [w for w in found if issubclass(w.category, UntrainedDepthWarning)]
            assert len(said) == (told and shallow)


def test_elastic_says_how_vectors_learn_depths(folder, tmp_path):
    from click.testing import CliRunner

    from albertkit.cli.entry_point import app

    (tmp_path / "t.txt").write_text("cat\n")
    with pytest.raises(AlbertkitError, match="albertkit distill TEACHER"):
        CliRunner().invoke(
            app, ["elastic", str(folder("embed")), str(tmp_path / "t.txt"), "-o", str(tmp_path / "o")], catch_exceptions=False
        )  # fmt: skip


def test_the_built_in_models_are_not_changed():
    with pytest.raises(AlbertkitError, match="small is a built-in model, which cannot be changed. Copy"):
        calibrate("small", ["a text"] * 500)


def test_what_more_texts_would_help_with():
    few, many = (ExitCalibration(5, (1,), ((0.0, 1.0),), ((1e-4, 0.98, 2.0),), texts) for texts in (90, 5000))
    with pytest.raises(AlbertkitError, match=r"guarantee at most 0.98.*at least 400"):
        few.limits(0.99)
    with pytest.raises(AlbertkitError, match="some of these disagree"):
        many.limits(0.99)
