"""Words with labels: CoNLL columns, folders of three files, CLUENER, tokens in JSONL, and the schemes of labels."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albertkit.errors import AlbertkitError
from albertkit.tasks.examples import Span, TaggedExample
from albertkit.tasks.readers import ReadOptions, read_examples
from albertkit.tasks.readers.tagged_files import join_words, spans_of

CONLL = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
French JJ I-NP B-MISC
lambs NNS I-NP O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER
"""


def put(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode())
    return path


def named(data):
    return [[(e.text[s.start : s.end], s.label) for s in e.spans] for e in data.examples]


def test_conll(tmp_path):
    path = put(tmp_path / "eng.train", CONLL)
    data = read_examples("tag", path)
    assert data.examples == [
        TaggedExample(
            "EU rejects German French lambs",
            ((0, 2), (3, 10), (11, 17), (18, 24), (25, 30)),
            (Span(0, 2, "ORG"), Span(11, 17, "MISC"), Span(18, 24, "MISC")),
            None,
            f"{path}:3",
        ),
        TaggedExample("Peter Blackburn", ((0, 5), (6, 15)), (Span(0, 15, "PER"),), None, f"{path}:9"),
    ]


def test_tabs_comments_and_spaces_as_words(tmp_path):
    rows = "# id 17\nNew\tB-LOC\nYork\tI-LOC\n\u3000\tO\n#\tO\n\n#\tO\nrocks\tO\r\n\r\n"
    data = read_examples("tag", put(tmp_path / "a.tsv", rows))
    assert [e.text for e in data.examples] == ["New York \u3000 #", "# rocks"]
    assert named(data) == [[("New York", "LOC")], []]
    assert read_examples("tag", put(tmp_path / "b", "[ O\nsic O\n] O\n")).examples[0].text == "[ sic ]"


def test_columns_by_number(tmp_path):
    data = read_examples(
        "tag", put(tmp_path / "a.conll", "1 He PRP\n2 ran VBD\n"), ReadOptions(text_column=2, label_column=3)
    )
    assert data.examples[0].text == "He ran" and named(data) == [[("He", "PRP"), ("ran", "VBD")]]
    with pytest.raises(AlbertkitError, match=r"columns 1 to 3 and no 'word'.*--text-column"):
        read_examples("tag", tmp_path / "a.conll", ReadOptions(text_column="word"))


def test_folder_of_intents(tmp_path):
    put(tmp_path / "train" / "seq.in", "fly to new york \nplay jazz\n")
    put(tmp_path / "train" / "seq.out", "O O B-city I-city \nO B-genre\n")
    put(tmp_path / "train" / "label", "flight\nmusic\n\n")
    data = read_examples("intent", tmp_path, ReadOptions(split="train"))
    assert named(data) == [[("new york", "city")], [("jazz", "genre")]]
    assert [(e.text, e.intent) for e in data.examples] == [("fly to new york", "flight"), ("play jazz", "music")]
    assert data.examples[1].where == f"{tmp_path / 'train' / 'seq.in'}:2"
    assert read_examples("tag", tmp_path / "train").examples == data.examples
    with pytest.raises(AlbertkitError, match="is a folder with train. Name one"):
        read_examples("intent", tmp_path)


CLUENER = [
    {"text": "浙商银行 叶老桂", "label": {"name": {"叶老桂": [[5, 7]]}, "company": {"浙商银行": [[0, 3]]}}},
    {"text": "没有", "label": {}},
]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("name", ["train.json", "train.txt"])
def test_cluener(tmp_path, indent, name):
    path = put(tmp_path / name, "\n".join(json.dumps(r, ensure_ascii=False, indent=indent) for r in CLUENER) + "\n")
    data = read_examples("tag", path)
    first = data.examples[0]
    assert first.spans == (Span(0, 4, "company"), Span(5, 8, "name"))
    assert first.words == ((0, 1), (1, 2), (2, 3), (3, 4), (5, 6), (6, 7), (7, 8)) and first.where == f"{path}:1"
    assert data.examples[1].spans == ()


def test_cluener_spaces_at_the_ends_and_test_files(tmp_path):
    row = {"text": "在 北京 了", "label": {"address": {" 北京 ": [[1, 4]]}}}
    assert read_examples("tag", put(tmp_path / "a.json", json.dumps(row))).examples[0].spans == (Span(2, 4, "address"),)
    put(tmp_path / "test.json", '{"id": 0, "text": "四川"}\n{"id": 1, "text": "成都"}\n')
    put(tmp_path / "b.json", '{"text": "", "label": {}}')
    with pytest.raises(AlbertkitError, match="line 1: the text is empty"):
        read_examples("tag", tmp_path / "b.json")
    with pytest.raises(AlbertkitError, match="'label' is missing"):
        read_examples("tag", tmp_path / "test.json")


@pytest.mark.parametrize("field", ["labels", "tags"])
def test_tokens(tmp_path, field):
    rows = [{"tokens": ["New", "York", "!"], field: ["B-LOC", "I-LOC", "O"], "intent": "shout"}]
    path = put(tmp_path / "a.jsonl", json.dumps(rows[0]))
    assert named(read_examples("tag", path)) == [[("New York", "LOC")]]
    assert read_examples("intent", path).examples[0].intent == "shout"


# Schemes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "right"),
    [
        ("B-X I-X O B-X B-X", ["0-1 X", "3 X", "4 X"]),
        ("I-X I-X B-X I-Y O", ["0-1 X", "2 X", "3 Y"]),
        ("B-X I-X E-X S-Y S-Y", ["0-2 X", "3 Y", "4 Y"]),
        ("B-X M-X E-X S-X O", ["0-2 X", "3 X"]),
        ("B-X I-X L-X U-Y U-Y", ["0-2 X", "3 Y", "4 Y"]),
        ("B-X O I-X I-Y O", ["0 X", "2 X", "3 Y"]),
        ("O O", []),
    ],
)
def test_schemes_by_hand(labels, right):
    labels = labels.split()
    spans = spans_of(labels, [(i, i + 1) for i in range(len(labels))])
    found = [f"{s.start}{f'-{s.end - 1}' if s.end - s.start > 1 else ''} {s.label}" for s in spans]
    assert found == right


def test_bare_names(tmp_path):
    data = read_examples("tag", put(tmp_path / "a.txt", "New LOC\nYork LOC\nin O\nMay TIME\n"))
    assert named(data) == [[("New York", "LOC"), ("May", "TIME")]] and "one entity" in data.notes[0]


def test_bare_letters(tmp_path):
    row = {"tokens": ["Ann", "Lee", "sings"], "labels": ["B", "I", "O"]}
    for name, text in (("a.txt", "Ann B\nLee I\nsings O\n"), ("a.jsonl", json.dumps(row))):
        data = read_examples("tag", put(tmp_path / name, text))
        assert data.examples[0].spans == (Span(0, 7, "entity"),) and "letters without names" in data.notes[0]
    data = read_examples("tag", put(tmp_path / "b.txt", "a B\nb M\nc E\nd S\ne O\n"))
    assert named(data) == [[("a b c", "entity"), ("d", "entity")]]


def written(spans: list[tuple[int, int, str]], count: int, scheme: str) -> list[str]:
    """Labels of words from spans (first, last, name), restated from the definitions of the schemes."""
    labels = ["O"] * count
    end_before = {last: name for _, last, name in spans}
    for first, last, name in spans:
        for i in range(first, last + 1):
            letter = "B" if i == first else "I"
            if scheme == "IOB1" and i == first and end_before.get(first - 1) != name:
                letter = "I"
            if scheme in ("BIOES", "BILOU") and i == last:
                letter = {"BIOES": "ES", "BILOU": "LU"}[scheme][first == last]
            labels[i] = f"{letter}-{name}"
    return labels


@st.composite
def sentences(draw):
    words = draw(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=9))
    spans, place = [], 0
    while place < len(words):
        size = draw(st.integers(0, 3))
        if size and place + size <= len(words):
            spans.append((place, place + size - 1, draw(st.sampled_from(["X", "Y-Z", "B"]))))
        place += max(size, 1)
    return words, spans


@settings(max_examples=150)
@given(sentence=sentences(), scheme=st.sampled_from(["IOB1", "IOB2", "BIOES", "BILOU"]))
def test_spans_to_labels_and_back(sentence, scheme):
    words, spans = sentence
    text, places = join_words(words)
    assert text == " ".join(words) and [text[a:b] for a, b in places] == words
    right = tuple(Span(places[first][0], places[last][1], name) for first, last, name in spans)
    assert spans_of(written(spans, len(words), scheme), places) == right


# What is wrong -------------------------------------------------------------------------------------------------------


def refused(path, text, task="tag", **options):
    with pytest.raises(AlbertkitError) as caught:
        read_examples(task, put(path, text), ReadOptions(**options))
    return str(caught.value)


def test_bad_columns(tmp_path):
    text = "a O\nb\n\nc O\n\nd B-X\ne ?\n"
    message = refused(tmp_path / "a.txt", text)
    assert "2 problems" in message and "line 2: 1 cell where the first line has 2" in message
    assert "line 6: the label '?' is neither O nor of the form B-PER" in message
    data = read_examples("tag", tmp_path / "a.txt", ReadOptions(skip_bad=True))
    assert [e.text for e in data.examples] == ["c"] and "2 bad rows skipped" in data.notes[-1]
    assert "needs two cells, a word and its label, but has 1" in refused(tmp_path / "b.txt", "a\nb\n")
    assert "line 1: there is no word" in refused(tmp_path / "d.txt", "1\t\tO\n", text_column=2)
    assert "Write words and labels as JSONL" in refused(tmp_path / "c.parquet", "PAR1")


def test_bad_folders(tmp_path):
    put(tmp_path / "a" / "seq.in", "a b\nc\n")
    with pytest.raises(AlbertkitError, match=r"seq\.out cannot be read: No such file"):
        read_examples("intent", tmp_path / "a")
    put(tmp_path / "a" / "seq.out", "O\nO\n")
    put(tmp_path / "a" / "label", "x\n")
    with pytest.raises(AlbertkitError, match=r"differ in lines \(seq\.in 2, seq\.out 2, label 1\)"):
        read_examples("intent", tmp_path / "a")
    put(tmp_path / "a" / "label", "x\ny\n")
    with pytest.raises(AlbertkitError, match="line 1: 2 words and 1 label; write one label per word"):
        read_examples("intent", tmp_path / "a")
    assert len(read_examples("intent", tmp_path / "a", ReadOptions(skip_bad=True)).examples) == 1
    (tmp_path / "a" / "seq.out").write_bytes(b"O O\n\xff\n")
    with pytest.raises(AlbertkitError, match=r"line 2: seq\.out: byte 1 is 0xff"):
        read_examples("intent", tmp_path / "a")
    data = read_examples("intent", tmp_path / "a", ReadOptions(skip_bad=True))
    assert [e.text for e in data.examples] == ["a b"] and "1 bad row" in data.notes[-1]


def test_overlapping_entities(tmp_path):
    row = {"text": "招商银行年报", "label": {"book": {"招商银行年报": [[0, 5]]}, "company": {"招商银行": [[0, 3]]}}}
    good = json.dumps({"text": "好", "label": {}})
    message = refused(tmp_path / "a.json", f"{json.dumps(row)}\n{good}")
    assert "line 1: the entities '招商银行' (company) and '招商银行年报' (book) overlap; keep one" in message
    assert len(read_examples("tag", tmp_path / "a.json", ReadOptions(skip_bad=True)).examples) == 1


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ({"name": {"叶": [[0, 0]]}}, "characters 0 to 0 are not '叶'"),
        ({"name": {"在": [[0, 9]]}}, "characters 0 to 9 are not '在'"),
        ({"name": {"在": [0, 0]}}, "'label' is missing or has another form"),
        ({"name": ["在"]}, "'label' is missing or has another form"),
        (["O"], "'label' is missing or has another form"),
        ({"name": {"在": [["0", "0"]]}}, "'label' is missing or has another form"),
    ],
)
def test_bad_cluener(tmp_path, label, message):
    assert message in refused(tmp_path / "a.json", json.dumps({"text": "在北京", "label": label}))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"words": ["a"]}, "needs a list of words in 'tokens', but has words"),
        ({"tokens": ["a", ""], "labels": ["O", "O"]}, "non-empty"),
        ({"tokens": ["a"]}, "needs a list of labels in 'labels', but has tokens"),
        ({"tokens": ["a"], "ner_tags": [3]}, "replace numbers with names"),
        ({"tokens": ["a"], "labels": ["O", "O"]}, "1 word and 2 labels"),
        ({"tokens": ["a"], "labels": ["O"], "intent": " "}, "the intent is empty"),
    ],
)
def test_bad_tokens(tmp_path, row, message):
    assert message in refused(tmp_path / "a.jsonl", json.dumps(row))


def test_tokens_without_intent(tmp_path):
    assert "the intent is missing" in refused(tmp_path / "a.jsonl", '{"tokens": ["a"], "labels": ["O"]}', "intent")
