"""Words' values, attention and layers: against hand-made examples, the runtime, and each other."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albertkit.albert import Albert
from albertkit.artifact import ArtifactMetadata
from albertkit.config import Options
from albertkit.errors import AlbertkitError
from albertkit.explain import Explainer
from albertkit.explain.activations import rollout
from albertkit.explain.attribution import InputVariants, log_odds
from albertkit.explain.explain_input import ExplainInput, ExplainSettings, merge_words, tokenize_input
from tests.explain.conftest import explain
from tests.serve.conftest import make
from tests.train.conftest import TOPICS

TEXT = "Angela Merkel visited Paris, and ate three croissants."
ASKED: dict[str, dict] = {
    "words": {"text": "the [MASK] of the story is a [MASK]"},
    "pairs": {"text": TEXT, "pair": "She was hungry."},
    "topics": {"text": TEXT},
    "stars": {"text": TEXT},
    "names": {"text": TEXT},
    "reader": {"text": TEXT, "question": "Who ate it?"},
    "atis": {"text": TEXT},
}
VECTORS: dict[str, dict] = {"embed": {"text": TEXT}, "similar": {"text": TEXT, "pair": "someone went to France"}}
CASES = [*ASKED.items(), *(("words", asked) for asked in VECTORS.values())]
NAMES = [*ASKED, *VECTORS]


def letters(alphabet: str, most: int) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(alphabet), max_size=most).map("".join)


# Attention -------------------------------------------------------------------------------------------------------


def test_rollout_by_hand():
    """Two layers, two heads, two tokens: the mean of heads, half of it beside half of the token itself, one after the
    other.
    """
    first = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])  # mean: all 0.5
    second = np.array([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.6, 0.4]]])  # mean: [1, 0], [0.8, 0.2]
    mixed_first = np.array([[0.75, 0.25], [0.25, 0.75]])
    mixed_second = np.array([[1.0, 0.0], [0.4, 0.6]])
    assert rollout(np.stack([first, second])) == pytest.approx(mixed_second @ mixed_first)
    assert rollout(np.stack([first, second])) == pytest.approx(np.array([[0.75, 0.25], [0.45, 0.55]]))


@settings(max_examples=30)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_rows_of_a_rollout_sum_to_one(layers, heads, tokens, seed):
    shares = np.random.default_rng(seed).dirichlet(np.ones(tokens), (layers, heads, tokens))
    rolled = rollout(shares)
    assert rolled.sum(axis=-1) == pytest.approx(np.ones(tokens)) and (rolled >= 0).all()


def test_words_that_share_a_token_are_one():
    assert merge_words([(0, 2), (2, 5), (6, 8)], [("text", 0, 3), ("text", 3, 5), ("text", 5, 8)]) == [(0, 5), (6, 8)]


@pytest.mark.slow
@settings(max_examples=40)
@given(text=letters("abc xyz'.,-北京é\n1[]", 40), pair=st.none() | letters("ab 中", 9))
def test_every_token_of_a_text_belongs_to_a_word_that_holds_it(explainers, text, pair):
    try:
        subject = tokenize_input(explainers["pairs"].albert, ExplainInput(text, pair))
    except AlbertkitError as error:
        assert "no word" in str(error)
        return
    (row,) = subject.rows
    for owner, place in zip(row.owner.tolist(), row.places, strict=True):
        if place is not None and place[2] > place[1] and subject.parts[place[0]][place[1] : place[2]].strip():
            word = subject.words[owner]
            assert owner >= 0 and word.part == place[0] and word.start < place[2] and word.end > place[1]
    assert set(row.owner.tolist()) - {-1} == set(range(len(subject.words)))
    for word in subject.words:
        assert word.text == subject.parts[word.part][word.start : word.end] and word.text.strip() == word.text


# Values of words -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hide", ["mask", "drop", "pad"])
@pytest.mark.parametrize(("model", "asked"), CASES, ids=NAMES)
def test_occlusion_equals_each_variant_alone(explainers, model, asked, hide):
    explainer = explainers[model]
    ready = explainer.prepare(
        ExplainInput(asked["text"], asked.get("pair"), asked.get("question")),
        ExplainSettings(),
    )
    found = explainer.attribute(ready, "occlusion", ExplainSettings(hide=hide))
    variants = InputVariants(explainer.albert, ready.input, ready.target, hide)
    words = len(ready.input.words)
    whole = variants.values(np.ones((1, words), bool))[0]
    alone = [whole - variants.values(np.arange(words)[None] != word)[0] for word in range(words)]
    assert found.values == pytest.approx(alone, abs=1e-4)
    assert np.abs(found.values).max() > 1e-4


def test_a_hidden_word_is_the_text_with_a_mask_in_its_place(learnt):
    """From outside: the same numbers as classifying the texts by hand."""
    albert = learnt.albert
    found = explain(learnt, "red cat dog oak blue", methods="occlusion", target="animal")

    def odds(text: str) -> float:
        encoding = albert.tokenizer.encode(text, recognize_mask=True)
        from albertkit.runtime.predict import task_scores
        from albertkit.tasks.task import Feature

        (row,) = task_scores(albert, [Feature(encoding.ids, encoding.segments, 0)])
        return log_odds(row.astype(float) / albert.task.temperature, albert.task.labels.index("animal"))

    words = ["red", "cat", "dog", "oak", "blue"]
    assert [word.text for word in found.words] == words
    for place, value in enumerate(found.attribution("occlusion")):
        masked = " ".join("[MASK]" if i == place else word for i, word in enumerate(words))
        assert value == pytest.approx(odds(" ".join(words)) - odds(masked), abs=1e-4)
    dropped = explain(learnt, "red cat dog oak blue", methods="occlusion", target="animal", hide="drop")
    assert dropped.attribution("occlusion")[1] == pytest.approx(
        odds(" ".join(words)) - odds("red dog oak blue"), abs=1e-4
    )
    assert found.probability == pytest.approx(albert.classify(" ".join(words)).probabilities["animal"], abs=1e-6)


@pytest.mark.parametrize("method", ["occlusion", "gradients"])
def test_what_was_learnt_is_found(learnt, method):
    """Animals speak for `animal`, trees against it, and colours matter less."""
    text = "cat red cow oak pig green fig hen blue"
    found = explain(learnt, text, methods=method, target="animal")
    values = dict(zip(text.split(), found.attribution(method).tolist(), strict=True))
    beasts, trees, colours = (
        [v for word, v in values.items() if word in ring] for ring in (TOPICS[1], TOPICS[2], TOPICS[0])
    )
    assert np.mean(beasts) > 2 * np.mean(np.abs(colours)) and np.mean(trees) < 0 < min(beasts), values


@pytest.mark.parametrize("hide", ["mask", "pad"])
@pytest.mark.parametrize(("model", "asked"), CASES, ids=NAMES)
def test_gradients_are_complete(explainers, model, asked, hide):
    """The values add up to f(text) - f(baseline), and both are what the engine says."""
    explainer = explainers[model]
    found = explain(explainer, **asked, methods=["gradients", "occlusion"], hide=hide, steps=96)
    gradients, occluded = found.attributions
    gap = gradients.full - gradients.empty
    assert gradients.values.sum() == pytest.approx(gap, abs=0.02 * max(1, abs(gap)))
    assert (gradients.full, gradients.empty) == pytest.approx((occluded.full, occluded.empty), abs=2e-3)
    assert found.value == pytest.approx(gradients.full, abs=2e-3)


def test_gradients_of_slots_and_of_frozen_heads(explainers, tmp_path):
    frozen = make(
        tmp_path / "frozen",
        ArtifactMetadata(task="classify", labels=("no", "yes"), details={"reads": "vector"}),
        {"classify": 2},
    )
    for explainer, at in ((explainers["atis"], "Paris"), (Explainer(Albert(frozen, threads=1)), None)):
        gradients, occluded = explain(explainer, TEXT, at=at, methods=["gradients", "occlusion"], steps=96).attributions
        assert (gradients.full, gradients.empty) == pytest.approx((occluded.full, occluded.empty), abs=2e-3)
        assert gradients.values.sum() == pytest.approx(gradients.full - gradients.empty, abs=0.02)


def test_a_classifier_that_reads_the_mean(tmp_path):
    """Without a pooler, gradients go through the mean."""
    meta = ArtifactMetadata(task="classify", labels=("no", "yes"))
    folder = make(tmp_path / "mean", meta, {"classify": 2}, options=Options(classifier="mean"))
    explainer = Explainer(Albert(folder, threads=1))
    gradients, occluded = explain(explainer, TEXT, methods=["gradients", "occlusion"], steps=96).attributions
    assert (gradients.full, gradients.empty) == pytest.approx((occluded.full, occluded.empty), abs=2e-3)


def test_a_word_is_chosen_as_texts_are_read(explainers):
    lower = explain(explainers["words"], "a [MASK] b", target="paris")
    assert explain(explainers["words"], "a [MASK] b", target="Paris").value == lower.value


def test_ends_words_masks_and_labels_are_chosen(explainers):
    reader, names, words = (explainers[name] for name in ("reader", "names", "words"))
    asked = ASKED["reader"]
    both, start, end = (explain(reader, **asked, at=at) for at in (None, "start", "end"))
    assert both.value == pytest.approx(start.value + end.value, abs=1e-5)
    assert both.probability == pytest.approx(start.probability * end.probability, abs=1e-6)
    tagged = explain(names, TEXT, at="Paris", target="B-LOC")
    assert tagged.target == "B-LOC at 'Paris'" and explain(names, TEXT, at=4, target="B-LOC").value == tagged.value
    second = explain(words, ASKED["words"]["text"], at=2)
    best = words.albert.fill_mask(ASKED["words"]["text"], 1)[1][0]
    assert second.probability == pytest.approx(best.score, rel=1e-3) and repr(best.word) in second.target
    assert [word.text for word in second.words] == ["the", "of", "the", "story", "is", "a"]
    named = explain(words, ASKED["words"]["text"], target="house")
    assert named.target == "'house' at mask 1"


# Layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "asked"), CASES, ids=NAMES)
def test_every_depth_is_what_the_runtime_says(explainers, model, asked):
    explainer = explainers[model]
    albert, text = explainer.albert, asked["text"]
    call = {
        "fill": lambda depth: albert.fill_mask(text, 3, depth=depth),
        "classify": lambda depth: albert.classify(text, asked.get("pair"), depth=depth),
        "tag": lambda depth: albert.tag(text, depth=depth),
        "intent": lambda depth: albert.understand(text, depth=depth),
        "answer": lambda depth: albert.answer(asked["question"], text, depth=depth),
        "similar": lambda depth: pytest.approx(albert.similarity(text, asked["pair"], depth=depth), abs=1e-5),
        "embed": lambda depth: None,
    }
    found = explain(explainer, **asked)
    assert [layer.depth for layer in found.layers] == [1, 2, 3]
    for layer in found.layers:
        said = call[found.kind](layer.depth)
        assert flat(layer.prediction) == pytest.approx(flat(said), abs=1e-5), (layer, said)
    assert flat(found.prediction) == flat(found.layers[-1].prediction) and found.layers[-1].matches_full_depth
    assert found.value == found.layers[-1].value and (found.stable_depth or 1) <= 3
    shallow = explain(explainer, **asked, depth=2)
    assert len(shallow.layers) == 2 and shallow.early_exit is None
    if found.early_exit is not None:
        assert found.early_exit.exit_depths == [1, 2] and set(found.uncertainty) <= {1, 2, 3} and 3 in found.uncertainty


def flat(value) -> list:
    """Numbers and words of a result, to compare."""
    if value is None or isinstance(value, float | str | int):
        return [value if not isinstance(value, float) else round(value, 5)]
    if hasattr(value, "__dataclass_fields__"):
        value = [getattr(value, name) for name in value.__dataclass_fields__]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [hash(one) if isinstance(one, str) else one for part in value for one in flat(part)]
    return [value]


def test_attention_equals_that_of_the_numpy_encoder(explainers):
    explainer = explainers["pairs"]
    found = explain(explainer, **ASKED["pairs"])
    encoding = explainer.albert.tokenizer.encode(TEXT, "She was hungry.")
    seen = explainer.encoder.run(encoding.ids, encoding.segments).attention
    (one,) = found.maps
    assert np.array_equal(one.attention, seen) and one.rollout == pytest.approx(rollout(seen))


# Python API and errors ------------------------------------------------------------------------------------------------


def test_albert_explains_like_the_explainer(topics):
    one = explain(Explainer(Albert(topics)), "cat dog oak")
    two = Albert(topics).explain("cat dog oak", methods=("occlusion",))
    assert one.to_dict() == two.to_dict()


def test_the_built_in_model_for_words_fills_masks_for_the_other():
    assert explain(Explainer(Albert("small")), "the capital of france is [MASK].", depth=2).kind == "fill"


@pytest.mark.parametrize(
    ("model", "asked", "why"),
    [
        ("pairs", {"text": "a " * 100}, "has at most 64"),
        ("names", {"text": "a " * 100}, "maximum of 64 tokens"),
        ("reader", {"text": "a " * 100, "question": "who?"}, "longer than the model"),
        ("words", {"text": "a " * 100}, "has at most 64"),
        ("pairs", {"text": "a " * 600_000}, "1,200,000 characters"),
        ("pairs", {"text": "a", "pair": "a " * 600_000}, "1,200,000 characters"),
        ("words", {"text": "[MASK]" + "a " * 600_000}, "1,200,006 characters"),
        ("pairs", {"text": ""}, "has no word"),
        ("reader", {"text": "a b"}, "needs a question"),
        ("exam", {"text": "a b"}, "a model for 'choose' cannot be explained"),
        ("names", {"text": "a b", "pair": "c"}, "is not used"),
        ("pairs", {"text": "a b", "target": "yess"}, "did you mean 'yes'"),
        ("pairs", {"text": "a b", "at": 1}, "at='1' is not used"),
        ("names", {"text": "a b", "at": "9"}, "from 1 to 2"),
        ("reader", {"text": "a b", "question": "who?", "at": "middle"}, "choose start or end"),
        ("reader", {"text": "a b", "question": "who?", "target": "b"}, "omit it"),
        ("words", {"text": "a [MASK] b", "at": "2"}, "from 1 to 1"),
        ("words", {"text": "a [MASK] b", "target": "qqqqqqqq"}, "not a single token"),
        ("stars", {"text": "a b", "target": "3"}, "omit it"),
        ("pairs", {"text": "a b", "methods": "gradient"}, "did you mean 'gradients'"),
        ("pairs", {"text": "a b", "hide": "gone"}, "choose one of mask, drop, pad"),
        ("pairs", {"text": "a b", "hide": "drop", "methods": "gradients"}, "choose mask or pad"),
        ("pairs", {"text": "a b", "steps": 2, "methods": "gradients"}, "Choose 8 to 1024"),
        ("pairs", {"text": "a b", "depth": 0}, "depth is 0"),
    ],
)
def test_errors_say_what_to_do(explainers, model, asked, why):
    with pytest.raises(AlbertkitError, match=why):
        explain(explainers[model], **asked)


def test_a_missing_extra_is_named(topics, monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    monkeypatch.setitem(sys.modules, "captum", None)
    with pytest.raises(AlbertkitError, match=r"pip install 'albertkit\[explain\]'"):
        explain(Explainer(Albert(topics)), "cat oak", methods="gradients")


def test_changed_files_are_refused(topics, folders):
    explainer = Explainer(Albert(topics))
    explainer.albert.source = folders["pairs"]
    with pytest.raises(AlbertkitError, match="Open it again"):
        explain(explainer, "cat oak")
