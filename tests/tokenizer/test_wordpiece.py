"""WordPiece tokens, offsets and decoded texts are those of the `tokenizers` library; so is the tokenizer.json."""

from __future__ import annotations

import dataclasses
import json
import lzma
import os
import pickle
import subprocess
import sys
import unicodedata
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as RustTokenizer

from albertkit import builtin
from albertkit.errors import AlbertkitError
from albertkit.tokenizer import Tokenizer
from albertkit.tokenizer.normalizer import MAX_CACHED_CHARACTERS
from albertkit.tokenizer.tokenizer_json import to_json
from albertkit.tokenizer.vocabulary import SPECIALS, Vocabulary, symbols_vocabulary, wordpiece_vocabulary
from albertkit.tokenizer.wordpiece import MAX_WORD_CHARACTERS, CharacterRules, WordPiece, join_tokens
from tests.conftest import ROOT, real

RULES = [(True, True), (True, False), (False, False), (False, True)]  # lower, strip_accents
LETTERS = "abcdefnu0193éüñßςσΣµıİ我爱北京ｶﾞ가각अिा्ＡAÉ①$+,.!-'"
SHARED = Path(os.environ.get("ALBERTKIT_SHARED", ROOT.parent / "shared")) / "corpus"


def vocabulary(lower: bool = True, strip_accents: bool = True) -> Vocabulary:
    names = [
        *SPECIALS["wordpiece"],
        *LETTERS,
        *(f"##{c}" for c in LETTERS),
        "un",
        "##aff",
        "##able",
        "ab",
        "##ab",
        "abba",
    ]
    return wordpiece_vocabulary(list(dict.fromkeys(names)), "test", lower, strip_accents)


@cache
def library(lower: bool, strip_accents: bool) -> RustTokenizer:
    """The same tokenizer, put together in the library's own terms."""
    return bert_of(vocabulary(lower, strip_accents))


def bert_of(made: Vocabulary) -> RustTokenizer:
    rust = RustTokenizer(models.WordPiece(made.ids, unk_token="[UNK]", max_input_chars_per_word=100))
    rust.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=made.strip_accents, lowercase=made.lower
    )
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece(cleanup=True)
    return rust


@cache
def differing_characters(lower: bool, strip_accents: bool) -> frozenset[str]:
    """The characters that the library treats otherwise, found by trying each of them."""
    rust, rules = library(lower, strip_accents), CharacterRules(lower, strip_accents)

    def words(text: str) -> list[str]:
        return [word for word, _ in rust.pre_tokenizer.pre_tokenize_str(rust.normalizer.normalize_str(text))]

    characters = [chr(c) for c in range(0x20000) if not 0xD800 <= c < 0xE000]
    return frozenset(c for c in characters if words(f"a{c}a") != rules.normalize(f"a{c}a")[0].split())


@pytest.mark.parametrize("rules", RULES)
def test_characters_of_old_unicode_are_treated_as_in_the_library(rules):
    """Unicode 3.2 is older than the tables of both; two of its characters have changed their category since."""
    differing = differing_characters(*rules)
    old = {c for c in differing if unicodedata.ucd_3_2_0.category(c) != "Cn"}
    assert old <= set("\u166d\u1734\u1885\u1886") and len(differing) < 1200


def texts(lower: bool, strip_accents: bool) -> st.SearchStrategy[str]:
    known = st.characters(exclude_categories=("Cs", "Cn")).filter(
        lambda c: c not in differing_characters(lower, strip_accents)
    )
    usual = st.sampled_from(LETTERS + LETTERS + "ab un \t\u0301\u0327\u200d\ufffd\0\u3000")
    return st.lists(st.text(st.one_of(usual, usual, known), max_size=30), max_size=4)


@pytest.mark.parametrize("rules", RULES)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_tokens_and_offsets_of_any_text_equal_those_of_the_library(rules, data):
    model, rust = WordPiece(vocabulary(*rules)), library(*rules)
    given_texts = data.draw(texts(*rules))
    found = model.spans(given_texts)
    assert model.ids(given_texts) == [spans.ids for spans in found]
    for text, spans in zip(given_texts, found, strict=True):
        expected = rust.encode(text, add_special_tokens=False)
        assert spans.ids == expected.ids
        kept_accent = any(unicodedata.combining(x) for x in model.normalize(text)[0])
        if not kept_accent or not rules[1]:  # the library shifts an accent that no letter precedes
            assert spans.offsets == expected.offsets


def test_kept_accents_are_put_in_order_and_the_library_agrees():
    """U+302E and U+1D165 are accents that take space, so they are kept; the second has the lower class."""
    model, rust = WordPiece(vocabulary()), library(True, True)
    for text in ("a\u302e\U0001d165b", "a\U0001d165\u302eb", "\u302e\u0301\U0001d165", "a\u302e \U0001d165"):
        ours = model.normalize(text)[0].split()
        assert ours == rust.normalizer.normalize_str(text).split()
    assert model.normalize("a\u302e\U0001d165")[0] == "a\U0001d165\u302e"


def test_offsets_cover_the_letters_a_token_came_from():
    tokenizer = Tokenizer(vocabulary())
    made = tokenizer.encode("Un\u0301affable我ABBAé", add_specials=False)
    assert tokenizer.tokens(made.ids) == ["un", "##aff", "##able", "我", "abba", "##e"]
    assert made.offsets == [(0, 2), (3, 6), (6, 10), (10, 11), (11, 15), (15, 16)]


@pytest.mark.parametrize("size", [MAX_WORD_CHARACTERS, MAX_WORD_CHARACTERS + 1])
def test_a_word_beyond_100_characters_is_one_unknown_token(size):
    spans = WordPiece(vocabulary()).spans(["b" * size])[0]
    assert len(spans.ids) == (size if size <= MAX_WORD_CHARACTERS else 1)
    assert (spans.offsets[0][0], spans.offsets[-1][1]) == (0, size)


@given(
    st.lists(st.sampled_from([*vocabulary().tokens, "do", "not", "'s", "n't", "'", "'m", "##'s", "do not"]), max_size=8)
)
@settings(max_examples=300, deadline=None)
def test_decoded_text_equals_that_of_the_library(tokens):
    assert join_tokens(tokens) == (library(True, True).decoder.decode(tokens) if tokens else "")


def test_rules_of_many_characters_are_not_all_kept():
    rules = CharacterRules(True, True)
    text = "".join(chr(c) for c in range(0x20000) if not 0xD800 <= c < 0xE000)
    first = rules.normalize(text)
    assert len(rules) <= MAX_CACHED_CHARACTERS and rules.normalize(text) == first


def test_a_pickled_model_has_the_same_tokens():
    model = WordPiece(vocabulary())
    text = "Unaffable Éa我, a\u302e\U0001d165b"
    before = model.spans([text])
    assert pickle.loads(pickle.dumps(model)).spans([text]) == before == WordPiece(vocabulary()).spans([text])


def check_real_text(tokenizer: Tokenizer, lines: list[str]) -> None:
    rust = bert_of(tokenizer.vocabulary)
    expected = rust.encode_batch(lines, add_special_tokens=False)
    made = tokenizer.encode_batch(lines, add_specials=False)
    assert [(e.ids, e.offsets) for e in expected] == [(m.ids, m.offsets) for m in made]
    assert tokenizer.ids_batch(lines) == [e.ids for e in expected]


def real_lines(name: str) -> list[str]:
    if not SHARED.exists():
        pytest.skip("no corpus here")
    with lzma.open(SHARED / f"{name}.txt.xz", "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line, _ in zip(file, range(400), strict=False)]


@pytest.mark.parametrize("name", ["enwiki-00", "zhwiki-00"])
def test_tokens_of_real_text_equal_those_of_the_library(name):
    lines = real_lines(name)
    check_real_text(Tokenizer.train(lines, "wordpiece", 4000), lines)


@pytest.mark.parametrize("name", ["zh-tiny", "ko-base"])
def test_tokens_of_real_checkpoints_equal_those_of_the_library(name):
    korean = ["대한민국의 수도는 서울이다.", "각가ᄀ 뷁, ①번", "Korean 한국어 café"]
    lines = [*korean, *real_lines("enwiki-00"), *real_lines("zhwiki-00")]
    check_real_text(Tokenizer.load(real(name)), lines)


# --- tokenizer.json


def vocabularies() -> dict[str, Vocabulary]:
    small = Tokenizer.load(builtin.MODELS / "small", trusted=True).vocabulary
    return {
        "small": small,
        "small-zh": Tokenizer.load(builtin.MODELS / "small-zh", trusted=True).vocabulary,
        "own-rules": dataclasses.replace(small, charsmap=b"", lower=False, strip_accents=False),
        "wordpiece": vocabulary(False, True),
        "phoneme": symbols_vocabulary(["$", "a", "", "ˈ", "-", "]", '"', "\n"], lower=True),
    }


@pytest.mark.parametrize("name", ["small", "small-zh", "own-rules", "wordpiece", "phoneme"])
def test_tokenizer_json_is_what_the_library_writes(name):
    text = to_json(vocabularies()[name])
    ours, theirs = json.loads(text), json.loads(RustTokenizer.from_str(text).to_str())
    if ours["model"]["type"] == "Unigram":  # the library reads a score with an error of one bit, and writes it exactly
        scored = [(token, score) for token, score in ours["model"]["vocab"]]
        model = RustTokenizer(models.Unigram(scored, ours["model"]["unk_id"], False)).to_str()
        assert json.loads(model)["model"] == ours["model"] and text.endswith(model[model.index('"model"') :])
        del ours["model"]["vocab"], theirs["model"]["vocab"]
    assert theirs == ours


def test_wordpiece_json_is_that_of_a_tokenizer_made_with_the_library():
    made = vocabulary()
    rust = bert_of(made)
    names = SPECIALS["wordpiece"]
    rust.add_special_tokens([AddedToken(n, special=True, normalized=False, lstrip=n == "[MASK]") for n in names])
    rust.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, made.ids[name]) for name in ("[CLS]", "[SEP]")],
    )
    assert json.loads(to_json(made)) == json.loads(rust.to_str())


@pytest.mark.parametrize(
    ("part", "key", "value", "reason"),
    [
        ("normalizer", "handle_chinese_chars", False, "its handle_chinese_chars is False"),
        ("normalizer", "clean_text", False, "its clean_text is False"),
        ("model", "max_input_chars_per_word", 200, "its max_input_chars_per_word is 200"),
        ("model", "unk_token", "[PAD]", "its unk_token is"),
        ("pre_tokenizer", "type", "Whitespace", r"needs a BertPreTokenizer, not \['Whitespace'\]"),
    ],
)
def test_rules_that_are_not_those_of_bert_are_errors(tmp_path, part, key, value, reason):
    """Else the ids would differ from the library's: "北京" would be two tokens instead of one."""
    data = json.loads(to_json(vocabulary()))
    data[part][key] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(AlbertkitError, match=f"not a usable tokenizer.json.*{reason}"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    "rules", [{"strip_accents": None}, {"lowercase": False}, {"lowercase": False, "strip_accents": None}]
)
def test_case_and_accents_may_be_those_of_any_bert(tmp_path, rules):
    data = json.loads(to_json(vocabulary()))
    data["normalizer"] |= rules
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    rust, text = RustTokenizer.from_str(json.dumps(data)), "Unaffable é 北京 Abba"
    assert Tokenizer.load(tmp_path).encode(text).ids == rust.encode(text).ids


# --- without the library

WITHOUT = "import sys; sys.modules['tokenizers'] = None\nfrom albertkit.tokenizer import Tokenizer\n"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_wordpiece_is_read_used_and_saved_without_the_library(tmp_path):
    made = Tokenizer(vocabulary())
    made.save(tmp_path / "a")
    code = (
        f"t = Tokenizer.load({str(tmp_path / 'a')!r}); t.save({str(tmp_path / 'b')!r})\n"
        "print(t.encode('Unaffable 我!').ids, t.decode(t.encode('un, 我').ids))"
    )
    assert run(code) == f"{made.encode('Unaffable 我!').ids} un, 我"
    for name in ("tokenizer.json", "vocab.txt"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_training_without_the_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        AlbertkitError, match=r"training a vocabulary needs 'tokenizers'.*pip install 'albertkit\[train\]'"
    ):
        Tokenizer.train(["a b c"], "wordpiece", 100)
