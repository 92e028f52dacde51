"""The tokenizer against its references: sentencepiece, transformers, and hand-checked answers."""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import random
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from albertkit.errors import AlbertkitError
from albertkit.tokenizer import Tokenizer, unigram
from albertkit.tokenizer.spiece_file import parse_spiece, select_spiece_tokens
from tests.conftest import SPIECE
from tests.tokenizer.make_expected_tokens import HERE, preprocess, reference

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("ALBERTKIT_SHARED", ROOT.parent / "shared"))
CHECKPOINTS = ROOT / ".cache" / "checkpoints"
ENGLISH = [
    "The quick brown fox jumps over the lazy dog.",
    "In 2010, the city had 1,234,567 inhabitants (3.5% more than in 2009).",
    "“Don't,” she said – it costs £5, or €6.",
    "Crème brûlée at the café, naïve coöperation.",
]
SMALL = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "我",
    "爱",
    "un",
    "##aff",
    "##able",
    ",",
    "!",
    "hello",
    "cafe",
    "[",
    "]",
]


@pytest.fixture(scope="module")
def tok() -> Tokenizer:
    return Tokenizer.from_spiece(SPIECE)


@pytest.fixture(scope="module")
def sp():
    return pytest.importorskip("sentencepiece").SentencePieceProcessor(model_file=str(SPIECE))


def small(folder: Path, tokens: list[str] = SMALL, end: str = "\n") -> Path:
    (folder / "vocab.txt").write_bytes(end.join([*tokens, ""]).encode())
    return folder


def is_tie(tok: Tokenizer, ours: list[int], theirs: list[int]) -> bool:
    scores = tok.vocabulary.scores
    return abs(sum(scores[i] for i in ours) - sum(scores[i] for i in theirs)) < 1e-3


# --- unigram: equality with the original


def test_hand_checked(tok):
    assert tok.encode("this is a test", add_specials=False).ids == [48, 25, 21, 1289]
    assert tok.tokens(tok.encode("2010, x5,").ids) == ["[CLS]", "▁2010", ",", "▁x", "5", ",", "[SEP]"]
    assert (tok.pad_id, tok.unk_id, tok.cls_id, tok.sep_id, tok.mask_id) == (0, 1, 2, 3, 4)
    assert (tok.kind, tok.vocab_size, tok.lower) == ("unigram", 30000, True)


def test_texts_may_come_from_arrays_and_generators(tok):
    texts, pairs = ["this is a test", "two"], ["a pair", "more"]
    wanted = [encoding.ids for encoding in tok.encode_batch(texts, pairs)]
    assert [e.ids for e in tok.encode_batch(np.array(texts), np.array(pairs))] == wanted
    assert [e.ids for e in tok.encode_batch(iter(texts), iter(pairs))] == wanted


def test_golden_file(tok):
    rows = [json.loads(line) for line in (HERE / "expected_tokens.jsonl").read_text().splitlines()]
    assert len(rows) > 250
    for row in rows:
        assert tok.encode(row["text"], add_specials=False).ids == row["ids"], row["text"]
    assert tok.ids_batch([row["text"] for row in rows]) == [row["ids"] for row in rows]


def test_code_points_of_the_first_planes(tok, sp):
    """No code point differs. (All 1,112,064 were compared once; here every one below U+3100 and a sample.)"""
    draw = random.Random(0)
    points = [
        *range(0x3100),
        *draw.sample(range(0x3100, 0xD800), 2000),
        *draw.sample(range(0xE000, 0x110000), 3000),
    ]
    texts = [form.format(chr(p)) for p in points for form in ("a{}b", "{}", "Σ{} x")]
    different = [t for t, ids in zip(texts, tok.ids_batch(texts), strict=True) if ids != reference(sp, t)]
    assert different == []


odd = st.sampled_from("Σσςİıßﬁ½²①▁ \u200b\u200d\u0301\u0307\ufe0f각각কো\u09c7\u09be😀\x00\x1c\u3000，,.1259(–£'`\"-")
mixed = st.text(
    st.one_of(odd, st.characters(blacklist_categories=("Cs",)), st.sampled_from("abeSTW ,0123")), max_size=60
)


@settings(max_examples=400)
@given(text=mixed)
def test_any_text_equals_sentencepiece(tok, sp, text):
    ours, theirs = tok.encode(text, add_specials=False).ids, reference(sp, text)
    assert ours == theirs or is_tie(tok, ours, theirs)


@settings(max_examples=300)
@given(text=mixed)
def test_offsets_point_at_the_surface(tok, text):
    made = tok.encode(text)
    starts = [a for (a, _), s in zip(made.offsets, made.specials, strict=True) if not s]
    assert starts == sorted(starts)
    for (a, b), i in zip(made.offsets, made.ids, strict=True):
        assert 0 <= a <= b <= len(text)
        piece = tok.vocabulary.tokens[i].replace("▁", "")
        if i not in (1, 2, 3) and piece and "▁" not in text:
            covered, _ = tok.model.normalize(text[a:b])
            assert piece in covered.replace(" ", "") or "ς" in covered or "σ" in covered or "Σ" in text


@settings(max_examples=200)
@given(texts=st.lists(mixed, max_size=5))
def test_remembered_words_change_nothing(tok, texts):
    """`ids_batch` goes word by word and remembers, `encode` cuts whole texts."""
    whole = [tok.encode(text, add_specials=False).ids for text in texts]
    assert tok.ids_batch(texts) == whole
    assert tok.ids_batch(texts) == whole


def test_words_are_forgotten(tok, monkeypatch):
    monkeypatch.setattr(unigram, "MAX_CACHED_BYTES", 10)
    monkeypatch.setattr(unigram, "TEXTS_PER_STEP", 1)
    fresh = Tokenizer.from_spiece(SPIECE)
    assert fresh.ids_batch(ENGLISH * 3) == tok.ids_batch(ENGLISH * 3)
    assert len(fresh.model._cache) < 20
    assert fresh.ids_batch(["", " ", "\u200b", "▁"]) == [[], [], [], []]


def test_threads_share_a_tokenizer(tok, monkeypatch):
    monkeypatch.setattr(unigram, "MAX_CACHED_BYTES", 2000)
    fresh = Tokenizer.from_spiece(SPIECE)
    batches = [[f"{line} {i % 7}" for line in ENGLISH] for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(fresh.ids_batch, batches)) == [tok.ids_batch(batch) for batch in batches]


def test_offsets_of_plain_text_are_exact(tok):
    text = "In 2010,  (Crème)\t1,234,567, cafe\u0301s!"
    made = tok.encode(text, add_specials=False)
    for token, (a, b) in zip(tok.tokens(made.ids), made.offsets, strict=True):
        assert preprocess(text[a:b]) == token.replace("▁", ""), token


def test_real_english(tok, sp):
    file = SHARED / "corpus" / "enwiki-00.txt.xz"
    if not file.exists():
        pytest.skip("no shared corpus here")
    with lzma.open(file, "rt", encoding="utf-8") as lines:
        texts = [line for line, _ in zip((li.rstrip("\n") for li in lines), range(2000), strict=False)]
    for text, ids in zip(texts, tok.ids_batch(texts), strict=True):
        theirs = reference(sp, text)
        assert ids == theirs or is_tie(tok, ids, theirs)


def test_case_and_accents_can_be_kept(sp):
    kept = Tokenizer.from_spiece(SPIECE, lower=False, keep_accents=True)
    for text in ["Crème Brûlée", "e\u0301a\u0302\u0301", "가각", "ΟΔΟΣ"]:
        assert kept.encode(text, add_specials=False).ids == sp.encode(text)


# --- special tokens, pairs, lengths


def test_special_strings_are_ordinary_text(tok):
    ids = tok.encode("[MASK] [SEP] [CLS] <pad> <unk>", add_specials=False).ids
    assert not {tok.mask_id, tok.sep_id, tok.cls_id, tok.pad_id} & set(ids)
    text = "the [MASK] is [SEP] red[MASK]."
    made = tok.encode(text, recognize_mask=True)
    assert made.ids.count(tok.mask_id) == 2
    assert made.ids.count(tok.sep_id) == 1
    assert tok.tokens(made.ids)[-3:] == ["[MASK]", ".", "[SEP]"]
    assert [text[a:b] for (a, b), i in zip(made.offsets, made.ids, strict=True) if i == 4] == ["[MASK]"] * 2


def test_spaces_made_by_normalisation_after_a_mask(tok):
    made = tok.encode("[MASK]x¨<pad>", recognize_mask=True, add_specials=False)
    assert tok.tokens(made.ids)[:2] == ["[MASK]", "x"]
    assert tok.pad_id not in made.ids
    assert made.offsets[-1][1] == len("[MASK]x¨<pad>")


def test_pair(tok):
    made = tok.encode("a test", "is this")
    assert made.ids == [2, 21, 1289, 3, 25, 48, 3]
    assert made.segments == [0, 0, 0, 0, 1, 1, 1]
    assert made.specials == [True, False, False, True, False, False, True]
    assert made.offsets == [(0, 0), (0, 1), (2, 6), (0, 0), (0, 2), (3, 7), (0, 0)]
    assert tok.encode("a test", "").segments == [0, 0, 0, 0, 1]


def test_the_longer_text_is_truncated_first(tok):
    for a in range(1, 9):
        for b in range(1, 9):
            x, y = a, b
            while x + y > 7:
                x, y = (x - 1, y) if x > y else (x, y - 1)
            made = tok.encode("a " * a, "a " * b, max_length=10)
            assert (made.segments.count(0) - 2, made.segments.count(1) - 1) == (x, y)
    assert tok.encode("a b c d", max_length=4).ids == [2, *tok.encode("a b", add_specials=False).ids, 3]
    for bad in (2, 0, -1, "8"):
        with pytest.raises(AlbertkitError, match="Pass at least 3"):
            tok.encode("a b c", max_length=bad)


def test_batch_equals_one_by_one(tok):
    assert tok.encode_batch(ENGLISH, ENGLISH[::-1]) == [
        tok.encode(a, b) for a, b in zip(ENGLISH, ENGLISH[::-1], strict=True)
    ]
    assert tok.encode_batch([]) == []
    with pytest.raises(AlbertkitError, match="4 texts but 1 pairs"):
        tok.encode_batch(ENGLISH, ["x"])


def test_bad_texts(tok):
    for bad, match in ((b"x", "decode"), (None, "NoneType"), (3, "int")):
        with pytest.raises(AlbertkitError, match=match):
            tok.encode(bad)
    with pytest.raises(AlbertkitError, match="pass a list of texts"):
        tok.encode_batch("one text")
    assert tok.encode("a\ud800b") == tok.encode("a\ufffdb")
    assert tok.encode("").ids == [2, 3]
    assert tok.encode("a\0b").ids == [2, 21, 1, 220, 3]


def test_unknown_text_is_noticed(tok):
    assert tok.encode("我爱北京天安门").unknown_fraction == 1
    assert tok.encode(ENGLISH[0]).unknown_fraction == 0.0
    assert tok.encode("").unknown_fraction == 0.0


def test_decode(tok):
    made = tok.encode("this is a (small) test, no. 5", "really")
    assert tok.decode(made.ids) == "this is a (small) test, no. 5 really"
    assert tok.decode(made.ids, skip_specials=False).startswith("[CLS] this")
    assert tok.id_of("▁test") == 1289
    assert tok.id_of("nothing like it") is None
    with pytest.raises(AlbertkitError, match="30000"):
        tok.decode([30000])


# --- WordPiece and symbols


def test_small_wordpiece_equals_bert(tmp_path):
    tok = Tokenizer.load(small(tmp_path, end="\r\n"))
    made = tok.encode("Unaffable我爱, Café!", "[MASK]")
    assert tok.tokens(made.ids) == [
        *("[CLS]", "un", "##aff", "##able", "我", "爱", ",", "cafe", "!", "[SEP]"),
        *("[", "[UNK]", "]", "[SEP]"),
    ]
    assert made.offsets[1:5] == [(0, 2), (2, 5), (5, 9), (9, 10)]
    assert tok.decode(made.ids[:8]) == "unaffable 我爱, cafe"
    assert tok.encode("a" * 101, add_specials=False).ids == [tok.unk_id]
    bert = pytest.importorskip("transformers").BertTokenizer.from_pretrained(tmp_path)
    for text in ["Unaffable我爱, Café!", "x\u200by hello!!", "\t我 ÀÉ\ufffd"]:
        assert tok.encode(text).ids == bert(text)["input_ids"]


@pytest.mark.parametrize("name", ["zh-tiny", "ko-base"])
def test_real_wordpiece_equals_bert(name):
    folder = CHECKPOINTS / name
    if not folder.exists():
        pytest.skip("no checkpoint here")
    transformers = pytest.importorskip("transformers")
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    tok = Tokenizer.load(folder, size)
    strip = tok.vocabulary.strip_accents
    assert strip == (name == "zh-tiny")
    tokens = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    vocab = {token: i for i, token in enumerate(tokens)} if len(tokens) == tok.vocab_size else dict(tok._ids)
    bert = transformers.BertTokenizer(vocab=vocab, do_lower_case=True, strip_accents=strip)
    texts = [
        "今天天气很好，我们去北京玩。",
        "ALBERT模型有11,683,584个参数！",
        "대한민국의 수도는 서울이다.",
        "café 3.14 ①",
        *ENGLISH,
    ]
    for text in texts:
        assert tok.encode(text).ids == bert(text)["input_ids"], text


def test_symbols(tmp_path):
    tok = Tokenizer.from_symbols(["$", ";", "a", "'", "ˈ", "", "b", "'"])
    made = tok.encode("ˈabX'")
    assert (made.ids, made.offsets) == ([0, 4, 2, 6, 7, 0], [(0, 0), (0, 1), (1, 2), (2, 3), (4, 5), (0, 0)])
    assert (tok.kind, tok.vocab_size, tok.pad_id, tok.cls_id, tok.unk_id) == ("phoneme", 8, 0, None, None)
    tok.save(tmp_path)
    again = Tokenizer.load(tmp_path, 8)
    assert again.encode("ˈabX'") == made
    assert again.fingerprint() == tok.fingerprint()
    assert tok.decode(made.ids) == "ˈab'"
    from tokenizers import Tokenizer as Rust

    assert Rust.from_file(str(tmp_path / "tokenizer.json")).encode("ˈabX'").ids == made.ids
    for bad in (["ab"], [], [""]):
        with pytest.raises(AlbertkitError):
            Tokenizer.from_symbols(bad)
    with pytest.raises(AlbertkitError, match="pairs"):
        tok.encode("a", "b")


# --- files


def test_save_and_load(tok, tmp_path):
    tok.save(tmp_path / "a")
    assert (tmp_path / "a" / "spiece.model").read_bytes() == SPIECE.read_bytes()
    again = Tokenizer.load(tmp_path / "a", 30000)
    (tmp_path / "a" / "spiece.model").unlink()
    alone = Tokenizer.load(tmp_path / "a")
    assert again.fingerprint() == tok.fingerprint() == alone.fingerprint()
    assert again.encode_batch(ENGLISH) == tok.encode_batch(ENGLISH) == alone.encode_batch(ENGLISH)
    assert alone.vocabulary.scores == tok.vocabulary.scores
    cased = Tokenizer.from_spiece(SPIECE, lower=False, keep_accents=True)
    assert cased.fingerprint() != tok.fingerprint()
    cased.save(tmp_path / "b")
    assert Tokenizer.load(tmp_path / "b").fingerprint() == cased.fingerprint()
    word = Tokenizer.load(small(tmp_path))
    word.save(tmp_path / "c")
    assert Tokenizer.load(tmp_path / "c").fingerprint() == word.fingerprint()
    assert (tmp_path / "c" / "vocab.txt").read_text(encoding="utf-8").split() == SMALL


@pytest.mark.parametrize("config", [None, {"model_type": "albert", "vocab_size": 30000}])
def test_transformers_opens_the_folder(tok, tmp_path, config):
    transformers = pytest.importorskip("transformers")
    tok.save(tmp_path)
    if config:
        (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ENGLISH:
        made = tok.encode(text, ENGLISH[0])
        other = theirs(text, ENGLISH[0])
        assert other["input_ids"] == made.ids
        assert other["token_type_ids"] == made.segments
    assert theirs.mask_token_id == 4
    assert theirs.pad_token_id == 0
    assert theirs.model_max_length == 512
    assert theirs("the [MASK] x")["input_ids"] == tok.encode("the [MASK] x", recognize_mask=True).ids


def test_mismatches_are_errors(tok, tmp_path):
    def fails(match: str, vocab_size: int | None = None) -> None:
        with pytest.raises(AlbertkitError, match=match):
            Tokenizer.load(tmp_path, vocab_size)

    fails("tokenizer.json, spiece.model or vocab.txt")
    spiece, vocab, whole = (tmp_path / name for name in ("spiece.model", "vocab.txt", "tokenizer.json"))
    spiece.write_bytes(SPIECE.read_bytes())
    fails("30000 tokens, but the model's vocab_size is 21128", 21128)
    fails("30000 tokens, but the model's vocab_size is 42000", 42000)
    assert Tokenizer.load(tmp_path, 30080).vocab_size == 30000
    small(tmp_path)
    fails("both")
    spiece.write_bytes(vocab.read_bytes())
    vocab.unlink()
    fails("not a SentencePiece model")
    spiece.write_bytes(b"")
    fails("no tokens")
    spiece.write_bytes(SPIECE.read_bytes() + bytes([0x12, 2, 3 << 3, 2]))
    fails("type 2")
    spiece.unlink()
    small(tmp_path, [t for t in SMALL if t != "[CLS]"])
    fails("lacks \\[CLS\\]")
    small(tmp_path, [*SMALL, "un"])
    fails("'un' twice")
    vocab.write_bytes(SPIECE.read_bytes())
    fails("vocab.txt")
    vocab.write_bytes(b"[PAD]\n\0")
    fails("binary")
    small(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": "no"}')
    fails("do_lower_case")
    (tmp_path / "tokenizer_config.json").write_text("[")
    fails("JSON")
    for key in ("do_basic_tokenize", "tokenize_chinese_chars"):
        (tmp_path / "tokenizer_config.json").write_text(f'{{"{key}": false}}')
        fails(f"{key} .* is False, and albertkit has only the rule of BERT")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert Tokenizer.load(tmp_path).encode("Hello", add_specials=False).ids == [1]
    (tmp_path / "tokenizer_config.json").unlink()
    for text, match in (
        ("{", "usable"),
        ("[" * 100000, "usable"),
        ('{"model": {"type": "BPE", "vocab": {}}}', "BPE"),
        ('{"model": {"type": "Unigram", "vocab": [["a", 1]]}}', "lacks"),
        ('{"model": {"type": "WordPiece", "vocab": {"a": -1}}}', "whole numbers"),
    ):
        whole.write_text(text)
        fails(match)
    tok.save(tmp_path)
    other = Tokenizer.train(ENGLISH * 20, "unigram", 60)
    whole.write_text(build_json(other))
    fails("different vocabularies")


def test_trusted_files_are_not_compared(tok, tmp_path):
    tok.save(tmp_path)
    (tmp_path / "spiece.model").write_bytes(b"kept as it is")
    with pytest.raises(AlbertkitError, match="not a SentencePiece model"):
        Tokenizer.load(tmp_path)
    trusted = Tokenizer.load(tmp_path, 30000, trusted=True)
    assert trusted.fingerprint() == tok.fingerprint()
    assert trusted.vocabulary.spiece == b"kept as it is"


def test_tokens_and_scores_of_a_spiece_model_equal_the_library(tok, sp):
    assert tok.vocabulary.tokens == [sp.id_to_piece(i) for i in range(30000)]
    assert tok.vocabulary.scores == [sp.get_score(i) for i in range(30000)]


def test_a_spiece_model_has_at_most_so_many_tokens():
    data = SPIECE.read_bytes()
    assert len(parse_spiece(data, 30_000).texts) == 30_000
    with pytest.raises(ValueError, match="more than 29999 tokens"):
        parse_spiece(data, 29_999)


def test_unused_fields_of_a_spiece_model_are_kept(tok, sp, tmp_path):
    kept = [*range(13), *range(100, 5000)]
    (tmp_path / "spiece.model").write_bytes(select_spiece_tokens(SPIECE.read_bytes(), set(kept)))
    small = Tokenizer.from_spiece(tmp_path / "spiece.model")
    assert small.vocabulary.tokens == [tok.vocabulary.tokens[i] for i in kept]
    assert small.vocabulary.charsmap == tok.vocabulary.charsmap
    theirs = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    assert theirs.vocab_size() == len(kept)


def test_a_damaged_table_is_noticed_when_it_is_needed(tok, tmp_path):
    """The table is walked at the first character that is not plain ASCII, whatever that character is."""
    data, table = SPIECE.read_bytes(), tok.vocabulary.charsmap
    texts = 4 + int.from_bytes(table[:4], "little")
    bad = table[:texts] + b"\xff" * (len(table) - texts - 1) + b"\0"
    (tmp_path / "s.model").write_bytes(data.replace(table, bad))
    damaged = Tokenizer.from_spiece(tmp_path / "s.model")
    assert damaged.encode(ENGLISH[0]) == tok.encode(ENGLISH[0])
    for _ in range(2):
        with pytest.raises(AlbertkitError, match="table is damaged"):
            damaged.encode("café")
    (tmp_path / "s.model").write_bytes(data.replace(table, table[:-1] + b"x"))
    with pytest.raises(AlbertkitError, match="cut off"):
        Tokenizer.from_spiece(tmp_path / "s.model")


def build_json(tok: Tokenizer) -> str:
    from albertkit.tokenizer.tokenizer_json import to_json

    return to_json(tok.vocabulary)


def test_damaged_files_only_raise_our_error(tmp_path):
    trained = Tokenizer.train(ENGLISH * 20, "unigram", 80)
    pieces = b"".join(
        b"\x0a" + bytes([len(body)]) + body
        for body in (
            b"\x0a" + bytes([len(t.encode())]) + t.encode() + b"\x15" + struct.pack("<f", s) + b"\x18" + bytes([sort])
            for t, s, sort in zip(
                trained.vocabulary.tokens, trained.vocabulary.scores, [3, 2, 3, 3, 3] + [1] * 80, strict=False
            )
        )
    )
    trained.save(tmp_path / "x")
    files = {
        "spiece.model": pieces,
        "vocab.txt": "\n".join(SMALL).encode(),
        "tokenizer.json": (tmp_path / "x" / "tokenizer.json").read_bytes(),
    }
    draw = random.Random(0)
    for name, good in files.items():
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (folder / name).write_bytes(good)
        Tokenizer.load(folder).encode("the city")
        for _ in range(250):
            bad = bytearray(good)
            for _ in range(draw.randint(0, 3)):
                bad[draw.randrange(len(bad))] = draw.randrange(256)
            (folder / name).write_bytes(bytes(bad[: draw.choice([len(bad), draw.randrange(len(bad))])]))
            with contextlib.suppress(AlbertkitError):
                Tokenizer.load(folder).encode("the Σ city, 2010,")
    original = SPIECE.read_bytes()
    for _ in range(12):
        bad = bytearray(original)
        for _ in range(20):
            bad[draw.randrange(len(bad))] = draw.randrange(256)
        (tmp_path / "s.model").write_bytes(bytes(bad))
        with contextlib.suppress(AlbertkitError):
            Tokenizer.from_spiece(tmp_path / "s.model").encode("the Σ ½ 각 city")


# --- training


@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_train(kind, tmp_path):
    draw = random.Random(1)
    words = " ".join(ENGLISH).split()
    lines = [" ".join(draw.choices(words, k=12)) for _ in range(400)]
    tok = Tokenizer.train(iter(lines), kind, 200)
    assert tok.tokens(range(5))[2:] == ["[CLS]", "[SEP]", "[MASK]"]
    assert (tok.pad_id, tok.unk_id) == (0, 1)
    assert 50 < tok.vocab_size <= 200
    assert tok.encode(lines[0]).unknown_fraction == 0
    assert tok.fingerprint() == Tokenizer.train(iter(lines), kind, 200).fingerprint()
    tok.save(tmp_path)
    assert not (tmp_path / "spiece.model").exists()
    again = Tokenizer.load(tmp_path, tok.vocab_size)
    assert again.encode_batch(lines) == tok.encode_batch(lines)
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(lines)["input_ids"] == [made.ids for made in tok.encode_batch(lines)]
    assert "the" in tok.decode(tok.encode("the city").ids)


def test_train_errors():
    for texts, kind, size in (
        ([], "unigram", 100),
        ("abc", "unigram", 100),
        (ENGLISH, "bpe", 100),
        (ENGLISH, "unigram", 3),
    ):
        with pytest.raises(AlbertkitError):
            Tokenizer.train(texts, kind, size)
    with pytest.raises(AlbertkitError, match="decode"):
        Tokenizer.train([b"x"], "unigram", 100)


# --- scripts without spaces

CHINESE = [
    "他使用Python3.11开发软件，版本2003年发布。",
    "我想退货，怎么办？请联系客服（电话：12345）！",
    "Hello, 世界！don't panic",
    "《红楼梦》是一部小说 ，共120回。",
]


@pytest.fixture(scope="module")
def chinese() -> Tokenizer:
    draw = random.Random(2)
    lines = ["".join(draw.choices(CHINESE, k=3)) for _ in range(300)]
    return Tokenizer.train(lines, "unigram", 150, split_scripts=True)


def test_only_letters_and_digits_begin_a_word_where_scripts_are_split(chinese):
    tokens = chinese.tokens(chinese.encode(CHINESE[0], add_specials=False).ids)
    starts = [i for i, token in enumerate(tokens) if token.startswith("▁")]
    assert "".join(tokens) == "他使用▁python3.▁11开发软件,版本▁2003年发布。"
    assert len(starts) == 3
    same = [chinese.encode(text, add_specials=False).ids for text in ("使用Python", "使用 python", " 使用  PYTHON ")]
    assert same[0] == same[1] == same[2]


def test_no_token_crosses_punctuation_where_scripts_are_split(chinese):
    for token in chinese.vocabulary.tokens[5:]:
        marks = [c for c in token if not c.isalnum() and c != "▁"]
        assert not marks or len(token) == 1


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("我你使用退货他是部小说《》，。！Pythonpanic 0123a①Ａ─▁"), max_size=30))
def test_split_scripts_equals_the_tokenizers_library(chinese, text):
    from tokenizers import Tokenizer as Rust

    from albertkit.tokenizer.tokenizer_json import to_json

    ids = chinese.encode(text, add_specials=False).ids
    assert chinese.ids_batch([text])[0] == ids
    if "▁" not in text:
        rust = Rust.from_str(to_json(chinese.vocabulary))
        assert rust.encode(text, add_special_tokens=False).ids == ids


def test_split_scripts_survives_saving_and_offsets_are_exact(chinese, tmp_path):
    chinese.save(tmp_path)
    again = Tokenizer.load(tmp_path, chinese.vocab_size)
    assert again.vocabulary == chinese.vocabulary
    assert again.fingerprint() == chinese.fingerprint()
    for text in CHINESE:
        found = again.encode(text, add_specials=False)
        for token, (start, end) in zip(again.tokens(found.ids), found.offsets, strict=True):
            if token not in ("▁", "<unk>"):
                surface = text[start:end].lower().translate({ord("，"): ",", ord("（"): "(", ord("）"): ")"})
                assert surface.translate({ord("！"): "!", ord("？"): "?", ord("："): ":"}) == token.strip("▁")


def test_a_mask_between_ideographs(chinese):
    ids = chinese.encode("我想[MASK]货", recognize_mask=True, add_specials=False).ids
    assert chinese.tokens(ids)[-2:] == ["[MASK]", "货"]


def test_split_scripts_is_for_unigram_alone():
    with pytest.raises(AlbertkitError, match="unigram"):
        Tokenizer.train(CHINESE, "wordpiece", 100, split_scripts=True)
