"""Words, windows, labels to pieces and back, intents with slots."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from albertkit.errors import AlbertkitError
from albertkit.tasks.examples import Span, TaggedExample, split_words
from albertkit.tasks.tag import (
    Entity,
    IntentResult,
    IntentTask,
    TagTask,
    example_words,
    iob2_tags,
    label_tokens,
    word_windows,
)
from albertkit.tokenizer import Tokenizer
from tests.conftest import SPIECE

ENGLISH = Tokenizer.from_spiece(SPIECE)
KINDS = ("LOC", "ORG", "PER")
TASK = TagTask(("O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER"), overlap=6)


@pytest.fixture(scope="module")
def chinese(tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("zh") / "vocab.txt"
    known = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *"彭小军认为，国内银行台湾在客户",
        "rid",
        "##dick",
        "20",
        "##14",
    ]
    path.write_text("\n".join(known) + "\n", encoding="utf-8")
    return Tokenizer.from_vocab(path)


def split(text: str) -> list[str]:
    return [text[a:b] for a, b in split_words(text)]


def spaced(words: list[str], entities: dict[tuple[int, int], str] | None = None, **more) -> TaggedExample:
    """A text of words with spaces between; entities are {(first word, last word): kind}."""
    places, at = [], 0
    for word in words:
        places.append((at, at + len(word)))
        at += len(word) + 1
    spans = [Span(places[i][0], places[j][1], kind) for (i, j), kind in (entities or {}).items()]
    return TaggedExample(" ".join(words), tuple(places), tuple(spans), **more)


def oracle(task: TagTask, features, seed: int = 0) -> list[np.ndarray]:
    """Scores that say what the targets say, and noise where they say nothing."""
    rng = np.random.default_rng(seed)
    tables = []
    for feature in features:
        table = 20 * rng.normal(size=(len(feature.ids), len(task.labels)))
        for token, label in enumerate(feature.target):
            if label >= 0:
                table[token] = np.where(np.arange(len(task.labels)) == label, 9.0, 0.0)
        tables.append(table)
    return tables


def plain(spans) -> list[tuple[int, int, str]]:
    return sorted((s.start, s.end, s.label) for s in spans)


# Words ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("EU rejects German call.", ["EU", "rejects", "German", "call", "."]),
        ("Britain's George W. Bush, of the U.S.", ["Britain", "'s", "George", "W.", "Bush", ",", "of", "the", "U.S."]),
        ("isn't we’ve O'Brien", ["is", "n't", "we", "’ve", "O'Brien"]),
        ("all-rounder 1,000.5% at 10:30", ["all-rounder", "1,000.5", "%", "at", "10:30"]),
        ('("London")...', ["(", '"', "London", '"', ")", "..."]),
        ("London,Paris", ["London", ",", "Paris"]),
        ("彭小军2014年，Riddick发现", [*"彭小军", "2014", "年", "，", "Riddick", *"发现"]),
        ("日本のテスト", list("日本のテスト")),
        ("한국어 단어", ["한국어", "단어"]),
        ("e\u0301te\u0301 हिन्दी", ["e\u0301te\u0301", "हिन्दी"]),
        ("I ❤️ 👨\u200d👩\u200d👧 👍🏽!", ["I", "❤️", "👨\u200d👩\u200d👧", "👍🏽", "!"]),
        ("a\tb\x00c\u3000d", ["a", "b", "c", "d"]),
        ("\u0301", ["\u0301"]),
        ("", []),
        (" \n ", []),
    ],
)
def test_words_of(text, words):
    assert split(text) == words


@given(st.text(max_size=60))
def test_words_of_leaves_nothing_out(text):
    words = split_words(text)
    inside = {i for a, b in words for i in range(a, b)}
    assert all(a < b for a, b in words) and sum(b - a for a, b in words) == len(inside)
    assert sorted(words) == list(words)
    assert not any(text[i].isspace() for i in inside)
    assert all(not text[i].isprintable() or text[i].isspace() for i in range(len(text)) if i not in inside)


def test_tags_of():
    example = spaced(["New", "York", "beat", "Leeds", "Leeds"], {(0, 1): "ORG", (3, 3): "LOC", (4, 4): "LOC"})
    assert iob2_tags(example.words, example.spans) == ["B-ORG", "I-ORG", "O", "B-LOC", "B-LOC"]
    overlapping = [Span(0, 3, "LOC"), Span(0, 8, "ORG"), Span(4, 13, "PER")]
    assert iob2_tags(example.words, overlapping) == ["B-ORG", "I-ORG", "O", "O", "O"]


@pytest.mark.parametrize(
    "span", [Span(0, 2, "LOC"), Span(1, 3, "LOC"), Span(4, 3, "LOC"), Span(3, 4, "LOC"), Span(0, 99, "X")]
)
def test_entity_must_begin_and_end_with_words(span):
    example = spaced(["New", "York"])
    with pytest.raises(AlbertkitError, match=r"train.txt:7 has the entity .* not start and end at a word"):
        iob2_tags(example.words, [span], "train.txt:7")


@pytest.mark.parametrize("words", [((0, 0),), ((0, 3), (2, 5)), ((4, 5), (0, 3)), ((0, 99),), ((-1, 3),)])
def test_words_must_be_in_order(words):
    with pytest.raises(AlbertkitError, match=r"a.txt:1 has a word from"):
        example_words(TaggedExample("New York", words, where="a.txt:1"))


# Features ------------------------------------------------------------------------------------------------------------


def test_features_english():
    example = spaced(["Unbelievable", "Leicestershire", "won"], {(1, 1): "ORG"})
    (feature,) = TASK.features([example], ENGLISH, 64)
    tokens = ENGLISH.tokens(feature.ids)
    assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]" and feature.segments == [0] * len(tokens)
    firsts = [i for i, t in enumerate(feature.target) if t != -100]
    assert [tokens[i][0] for i in firsts] == ["▁", "▁", "▁"] and len(tokens) > 5
    assert [TASK.labels[feature.target[i]] for i in firsts] == ["O", "B-ORG", "O"]
    assert feature.target[0] == feature.target[-1] == -100 and feature.offsets[0] == feature.offsets[-1] == (0, 0)
    pieces = [example.text[a:b].lower() for a, b in feature.offsets[1:-1]]
    assert pieces == [t.replace("▁", "") for t in tokens[1:-1]]


def test_features_chinese(chinese):
    text = "彭小军在台湾，Riddick，2014"
    words = split_words(text)
    example = TaggedExample(text, words, (Span(0, 3, "PER"), Span(4, 6, "LOC"), Span(7, 14, "PER")))
    (feature,) = TASK.features([example], chinese, 64)
    assert chinese.tokens(feature.ids)[1:-1] == [*"彭小军在台湾，", "rid", "##dick", "，", "20", "##14"]
    named = ["" if t == -100 else TASK.labels[t] for t in feature.target]
    assert named == ["", "B-PER", "I-PER", "I-PER", "O", "B-LOC", "I-LOC", "O", "B-PER", "", "O", "O", "", ""]
    (found,) = TASK.results(oracle(TASK, [feature]), [feature], [example])
    assert [(s.text, s.label) for s in found.spans] == [("彭小军", "PER"), ("台湾", "LOC"), ("Riddick", "PER")]


def test_a_mark_behind_a_word_changes_no_piece():
    apart, together = (
        TASK.features([TaggedExample(t, split_words(t))], ENGLISH, 32)[0] for t in ("in London , now", "in London, now")
    )
    assert apart.ids == together.ids and apart.offsets != together.offsets


def test_no_target_where_nothing_is_known():
    assert TASK.features([TaggedExample("in London", ())], ENGLISH, 32)[0].target is None
    kind = spaced(["on", "Mars"], {(1, 1): "PLANET"})
    (feature,) = TASK.features([kind], ENGLISH, 32)
    assert [t for t in feature.target if t != -100] == [
        0
    ]  # "on" is O, and nothing is learnt from a kind that is unknown


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_only_special_tokens(text):
    (feature,) = TASK.features([TaggedExample(text, ())], ENGLISH, 32)
    assert feature.ids == [ENGLISH.cls_id, ENGLISH.sep_id]
    (found,) = TASK.results([np.zeros((2, 7))], [feature], [TaggedExample(text, ())])
    assert found.text == text and found.spans == ()


def test_words_without_pieces_have_one():
    text = "\u200b London \u0301 ok"
    example = TaggedExample(text, split_words(text), (Span(0, 1, "PER"), Span(2, 8, "LOC")))
    (feature,) = TASK.features([example], ENGLISH, 32)
    (found,) = TASK.results(oracle(TASK, [feature]), [feature], [example])
    assert [s.text for s in found.spans] == ["\u200b", "London"]


def test_a_word_longer_than_a_window():
    text = "x" + "qz" * 400 + " London"
    example = TaggedExample(text, split_words(text), (Span(0, 801, "PER"), Span(802, 808, "LOC")))
    features = TASK.features([example], ENGLISH, 16)
    assert all(len(f.ids) <= 16 for f in features)
    (found,) = TASK.results(oracle(TASK, features), features, [example])
    assert plain(found.spans) == plain(example.spans)


def test_too_short_a_window_is_an_error():
    with pytest.raises(AlbertkitError, match="max_length=2"):
        TASK.features([TaggedExample("a b", ())], ENGLISH, 2)


@given(st.lists(st.integers(1, 5), max_size=40), st.integers(10, 20), st.integers(0, 5))
def test_windows_hold_every_word(sizes, room, overlap):
    windows = word_windows(sizes, room, overlap)
    assert sorted({w for window in windows for w in window}) == list(range(len(sizes)))
    assert all(sum(sizes[w] for w in window) <= room for window in windows)
    for one, two in pairwise(windows):
        assert one.start < two.start <= one.stop < two.stop
        assert sum(sizes[w] for w in range(two.start, one.stop)) <= overlap


def test_the_window_with_most_context_reads_a_word():
    example = spaced([*"abcdefghijklmn"])
    features = TagTask(("O",), overlap=4).features([example], ENGLISH, 10)  # 8 words a window, 4 shared
    assert [[example.text[a] for a, b in f.offsets if b > a] for f in features] == [
        [*"abcdefgh"],
        [*"efghijkl"],
        [*"ijklmn"],
    ]
    read = label_tokens(features, example.words)
    assert [window for window, _ in read] == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert [features[w].offsets[t] for w, t in read] == list(example.words)
    counted = [sum(t != -100 for t in f.target) for f in features]
    assert counted == [6, 4, 4]  # each word is learnt from once, too


@settings(max_examples=60)
@given(
    st.lists(
        st.sampled_from(["London", "unbelievable", "x", ".", "naïve", "北", "👍🏽", "e\u0301", "\u200b", "U.S."]),
        max_size=20,
    )
)
def test_one_window_is_read_as_the_first_of_two_alike(words):
    """Which take different ways through the code."""
    example = spaced(words)
    (feature,) = TASK.features([example], ENGLISH, 200)
    assert label_tokens([feature], example.words) == label_tokens([feature, feature], example.words)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["London", "unbelievable", "x", ".", "naïve", "北", "👍🏽", "e\u0301", "\u200b", "U.S."]),
                       st.sampled_from(["", " ", "  "]), st.sampled_from(["O", "O", "B", "I"]), st.sampled_from(KINDS)), min_size=1, max_size=50),
    st.integers(3, 40), st.integers(0, 30),
)  # fmt: skip
def test_what_targets_say_comes_back(parts, max_length, overlap):
    """Scores made from targets give the entities, whatever the windows: also an entity across their borders."""
    text, words, spans, before = "", [], [], None
    for word, space, mark, kind in parts:
        words.append((len(text), len(text) + len(word)))
        if mark == "B" or (mark == "I" and before is None):
            spans.append(Span(*words[-1], kind))
        elif mark == "I":
            spans[-1] = Span(spans[-1].start, words[-1][1], spans[-1].label)
        before = None if mark == "O" else kind
        text += word + space
    task = TagTask(TASK.labels, overlap=overlap)
    examples = [
        TaggedExample(text, tuple(words), tuple(spans)),
        TaggedExample("in London", ((0, 2), (3, 9)), (Span(3, 9, "LOC"),)),
    ]
    features = task.features(examples, ENGLISH, max_length)
    assert all(len(f.ids) == len(f.segments) == len(f.target) == len(f.offsets) <= max_length for f in features)
    assert sum(t != -100 for f in features if f.example == 0 for t in f.target) == len(words)
    found = task.results(oracle(task, features), features, examples)
    assert [plain(f.spans) for f in found] == [plain(e.spans) for e in examples]
    for result in found:
        assert all(s.text == result.text[s.start : s.end] and 0.99 < s.score <= 1 for s in result.spans)


# Labels to entities --------------------------------------------------------------------------------------------------


def decode(task: TagTask, rows: list[dict[str, float]]):
    """Entities of one-letter words, from probabilities."""
    example = spaced([*"abcdefgh"[: len(rows)]])
    (feature,) = task.features([example], ENGLISH, 32)
    table = np.full((len(rows) + 2, len(task.labels)), -30.0)
    for i, row in enumerate(rows, 1):
        for label, chance in row.items():
            table[i, task.labels.index(label)] = np.log(chance)
    return task.results([table], [feature], [example])[0].spans


def test_score_is_the_mean_probability():
    (span,) = decode(TASK, [{"B-PER": 0.8, "O": 0.2}, {"I-PER": 0.6, "O": 0.4}, {"O": 1.0}])
    assert (span.text, span.start, span.end, span.label) == ("a b", 0, 3, "PER") and span.score == pytest.approx(0.7)


def test_only_valid_labels_come_out():
    # I-PER cannot begin: "B-PER I-PER" (0.3 · 0.6) is likelier than "O O" (0.5 · 0.2) and "B-LOC O" (0.2 · 0.2)
    spans = decode(TASK, [{"O": 0.5, "B-PER": 0.3, "B-LOC": 0.2}, {"I-PER": 0.6, "I-ORG": 0.2, "O": 0.2}])
    assert plain(spans) == [(0, 3, "PER")] and spans[0].score == pytest.approx(0.45)
    # a first word cannot go on with anything
    assert plain(decode(TASK, [{"I-PER": 0.9, "O": 0.1}])) == []
    # two entities of one kind side by side
    assert plain(decode(TASK, [{"B-PER": 1.0}, {"B-PER": 1.0}, {"I-PER": 1.0}])) == [(0, 1, "PER"), (2, 5, "PER")]
    # I-ORG after B-PER is not one
    assert plain(decode(TASK, [{"B-PER": 0.8, "B-ORG": 0.2}, {"I-ORG": 0.9, "O": 0.1}])) == [(0, 3, "ORG")]


def test_viterbi_is_the_best_valid_path():
    rng = np.random.default_rng(3)
    task = TagTask(("O", "B-X", "I-X", "B-Y", "I-Y"))
    for _ in range(60):
        logs = np.log(rng.dirichlet(np.full(5, 0.5), size=4))
        valid = [p for p in product(range(5), repeat=4)
                 if all(p[i] not in (2, 4) or (i and p[i - 1] in (p[i], p[i] - 1)) for i in range(4))]  # fmt: skip
        best = max(valid, key=lambda p: sum(logs[i, j] for i, j in enumerate(p)))
        assert tuple(task._best_path(logs.copy())) == best


def test_labels_of_other_models():
    spans = decode(
        TagTask(("O", "I-PER", "I-LOC")), [{"I-PER": 1.0}, {"I-PER": 1.0}, {"I-LOC": 1.0}]
    )  # IOB1: no B- at all
    assert plain(spans) == [(0, 3, "PER"), (4, 5, "LOC")]
    with pytest.raises(AlbertkitError, match="LABEL_0"):
        TagTask(("O", "LABEL_0"))
    with pytest.raises(AlbertkitError, match="not contain 'O'"):
        TagTask(("B-PER",))
    with pytest.raises(AlbertkitError, match="overlap=-1"):
        TagTask(("O",), overlap=-1)


def test_of():
    assert TagTask.from_examples([spaced(["a", "b"], {(0, 0): "PER", (1, 1): "LOC"})], overlap=3) == TagTask(
        ("O", "B-LOC", "I-LOC", "B-PER", "I-PER"), 3
    )
    with pytest.raises(AlbertkitError, match="none of the 1 examples contains an entity"):
        TagTask.from_examples([spaced(["a"])])


# Metrics -------------------------------------------------------------------------------------------------------------


def results_of(guesses):
    from albertkit.tasks.tag import TagResult

    return [TagResult(g.text, tuple(Entity("", s.start, s.end, s.label, 1.0) for s in g.spans)) for g in guesses]


def test_measure_by_hand():
    words = ["a", "b", "c", "d", "e"]
    right = [spaced(words, {(0, 1): "PER", (3, 3): "LOC"}), spaced(words, {(4, 4): "LOC"})]
    guess = [spaced(words, {(0, 1): "PER", (3, 4): "LOC"}), spaced(words, {(4, 4): "LOC", (0, 0): "ORG"})]
    found = TASK.measure(results_of(guess), right)
    assert next(iter(found)) == "f1"
    # 2 right of 4 given and of 3 there are
    assert found == pytest.approx(
        {"f1": 4 / 7, "precision": 0.5, "recall": 2 / 3, "f1_LOC": 0.5, "f1_ORG": 0, "f1_PER": 1}
    )
    assert TASK.measure(results_of(right), right)["f1"] == 1.0
    assert TASK.measure([], []) == TASK.measure(results_of([spaced(["a"])]), [spaced(["a"])])


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(*[st.dictionaries(st.integers(0, 5), st.sampled_from(KINDS), max_size=4)] * 2), min_size=1, max_size=5
    )
)
def test_measure_is_seqeval(drawn):
    from seqeval.metrics import f1_score, precision_score, recall_score

    words = [*"abcdef"]
    right, guess = (
        [spaced(words, {(i, min(i + len(kind) % 2, 5)): kind for i, kind in row[side].items()}) for row in drawn]
        for side in (0, 1)
    )
    tags = [[iob2_tags(e.words, e.spans) for e in side] for side in (right, guess)]
    found = TASK.measure(results_of(guess), right)
    if any(tag != "O" for side in tags for row in side for tag in row):
        for name, function in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
            assert found[name] == pytest.approx(function(*tags, zero_division=0))


# Intents and slots ---------------------------------------------------------------------------------------------------

FLIGHT = spaced(["fly", "to", "las", "vegas"], {(2, 3): "city"}, intent="flight")
FARE = spaced(["how", "much", "to", "boston"], {(3, 3): "city"}, intent="fare")


def test_intents_and_slots():
    task = IntentTask.from_examples([FLIGHT, FARE], overlap=2)
    assert task == IntentTask(("fare", "flight"), ("O", "B-city", "I-city"), 2)
    assert task.heads == ("classify", "tag") and [task.outputs(head) for head in task.heads] == [2, 3]
    features = task.features([FLIGHT, FARE], ENGLISH, 5)  # 3 tokens a window: not everything fits into one
    assert [f.example for f in features] == sorted(f.example for f in features) and len(features) > 2
    assert [f.target[0] for f in features if f.example == 0] == [1] * sum(f.example == 0 for f in features)
    slots = [type(f)(f.ids, f.segments, f.example, f.target[1], f.offsets) for f in features]
    scores = [
        (5.0 * np.eye(2)[f.target[0]], table) for f, table in zip(features, oracle(task.slots, slots), strict=True)
    ]
    found = task.results(scores, features, [FLIGHT, FARE])
    assert [f.intent for f in found] == ["flight", "fare"] and found[0].probability == pytest.approx(
        1 / (1 + np.exp(-5))
    )
    assert [[s.text for s in f.spans] for f in found] == [["las vegas"], ["boston"]]
    measured = task.measure(found, [FLIGHT, FARE])
    assert list(measured)[:3] == ["exact", "accuracy", "f1"] and set(measured.values()) == {1.0}


def test_intent_measure_by_hand():
    task = IntentTask.from_examples([FLIGHT, FARE])
    right = [Entity("", s.start, s.end, s.label, 1.0) for s in (*FLIGHT.spans, *FARE.spans)]
    found = [IntentResult("flight", 1.0, ()), IntentResult("flight", 1.0, (right[1],))]
    measured = task.measure(found, [FLIGHT, FARE])
    assert (measured["exact"], measured["accuracy"], measured["recall"]) == (0.0, 0.5, 0.5)
    assert task.measure([IntentResult("flight", 1.0, (right[0],)), found[1]], [FLIGHT, FARE])["exact"] == 0.5


def test_windows_vote_for_an_intent():
    task = IntentTask(("a", "b"), ("O",), overlap=0)
    example = spaced([*"abcdefghi"], intent="b")
    features = task.features([example], ENGLISH, 5)
    assert len(features) == 3
    tables = [np.zeros((len(f.ids), 1)) for f in features]
    classes = [np.log([0.9, 0.1]), np.log([0.3, 0.7]), np.log([0.0001, 0.9999])]
    (found,) = task.results(list(zip(classes, tables, strict=True)), features, [example])
    assert found.intent == "b" and found.probability == pytest.approx((0.1 + 0.7 + 0.9999) / 3)


def test_intent_without_an_intent():
    task = IntentTask(("a",), ("O",))
    assert task.features([TaggedExample("x y", ())], ENGLISH, 9)[0].target is None
    assert task.features([spaced(["x"], intent="new")], ENGLISH, 9)[0].target == (-100, [-100, 0, -100])


def test_the_words_of_a_text_in_use():
    text = "Mr. Smith, of London's Leeds."
    example = TaggedExample(text, ())
    (feature,) = TASK.features([example], ENGLISH, 64)
    table = np.zeros((len(feature.ids), 7))
    for window, token in [label_tokens([feature], split_words(text))[i] for i in (2, 5)]:
        assert window == 0
        table[token, TASK.labels.index("B-PER" if token < 5 else "B-LOC")] = 9
    (found,) = TASK.results([table], [feature], [example])
    assert [(s.text, s.label, text[s.start : s.end]) for s in found.spans] == [
        ("Smith", "PER", "Smith"),
        ("London", "LOC", "London"),
    ]


def test_no_torch():
    code = "import sys, albertkit.tasks.tag, albertkit.tasks.answer, albertkit.tasks.choose, albertkit.tasks.dialogue; "
    subprocess.run(
        [sys.executable, "-c", code + "assert not {'torch', 'seqeval', 'sklearn'} & set(sys.modules)"], check=True
    )


def test_seqeval_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "seqeval.metrics", None)
    with pytest.raises(AlbertkitError, match=r"measuring entities needs 'seqeval'.*albertkit\[train\]"):
        TASK.measure([], [])
