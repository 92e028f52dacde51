"""The tokenizer in JavaScript, run by Node, gives the ids and offsets of the one in Python."""

from __future__ import annotations

import itertools
import json
import lzma
import random
import re
from pathlib import Path

import pytest

from albertkit.builtin import resolve
from albertkit.errors import AlbertkitError
from albertkit.input_warnings import unknown_share
from albertkit.interop.web_tokenizer import tokenizer_data
from albertkit.tokenizer import Tokenizer
from tests.conftest import ROOT, SHARED
from tests.web.node import call_tokenizer

KINDS = ("english", "chinese", "wordpiece")
LINES = 5_000
FORMS = ("{}", "a{}b", "Σ{} x", "中{}。", "1{},")
ODD = "Σσςİıßﬁ½²①▁ \u200b\u200d\u0301\u0307\u0323\ufe0f각각কো\u09c7\u09be😀\x00\x1c\u3000，,.1259(–£'`\"-abeSTW中文ガ\U0001d401"


def repository_texts() -> list[str]:
    """The lines of the documentation, in both languages."""
    files = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
    return [line for file in files for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def real_texts() -> list[str]:
    """5,000 lines of English and Chinese: from ../shared where it is there, otherwise of the documentation."""
    lines: list[str] = []
    for name in ("enwiki-00", "zhwiki-00"):
        path = SHARED / "corpus" / f"{name}.txt.xz"
        if path.exists():
            with lzma.open(path, "rt", encoding="utf-8") as file:
                lines += itertools.islice((line.rstrip("\n")[:500] for line in file if line.strip()), LINES // 2)
    if not lines:
        own = repository_texts()
        lines = own + random.Random(0).choices([a + b for a, b in itertools.pairwise(own)], k=LINES - len(own))
    return lines[:LINES]


def code_point_texts() -> list[str]:
    """Every code point below U+3100, and a sample of the others, each in several places of a text."""
    draw = random.Random(0)
    points = [*range(0x3100), *draw.sample(range(0x3100, 0xD800), 1500), *draw.sample(range(0xE000, 0x110000), 1500)]
    points += [*range(0xFE00, 0x10000), *range(0x1D400, 0x1D7FF, 7), *range(0xAC00, 0xD7A4, 97)]
    return [form.format(chr(p)) for p in points for form in (FORMS[p % len(FORMS)], "{}")]


def odd_texts(count: int = 2000) -> list[str]:
    draw = random.Random(1)
    return ["".join(draw.choices(ODD, k=draw.randint(1, 24))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    texts = repository_texts()[::3]
    made = {name: Tokenizer.load(resolve(name)) for name in ("small", "small-zh")}
    return {
        "english": made["small"],
        "chinese": made["small-zh"],
        "wordpiece": Tokenizer.train(texts, "wordpiece", 3000),
    }


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tokenizers, tmp_path_factory):
    """A tokenizer, and a function that calls its twin in JavaScript."""
    tokenizer, folder = tokenizers[request.param], tmp_path_factory.mktemp(request.param)
    (folder / "data.json").write_text(json.dumps(tokenizer_data(tokenizer)), encoding="utf-8")
    return tokenizer, lambda calls: call_tokenizer(folder, folder / "data.json", calls)


def to_units(text: str, offsets: list[tuple[int, int]]) -> list[list[int]]:
    """Offsets in characters as offsets in UTF-16 code units."""
    units = [0, *itertools.accumulate(1 + (ord(c) > 0xFFFF) for c in text)]
    return [[units[a], units[b]] for a, b in offsets]


def first_difference(texts: list[str], ours: list, theirs: list) -> list:
    return [(t, a, b) for t, a, b in zip(texts, ours, theirs, strict=True) if a != b][:3]


@pytest.mark.slow
def test_ids_of_real_texts_and_code_points(pair):
    tokenizer, call = pair
    golden = [json.loads(line)["text"] for line in (ROOT / "tests/tokenizer/expected_tokens.jsonl").open()]
    texts = golden + real_texts() + code_point_texts() + odd_texts()
    found = call([["ids", text] for text in texts])
    assert first_difference(texts, found, tokenizer.ids_batch(texts)) == []


def test_offsets_and_specials(pair):
    tokenizer, call = pair
    golden = [json.loads(line)["text"] for line in (ROOT / "tests/tokenizer/expected_tokens.jsonl").open()]
    texts = golden + real_texts()[::40] + odd_texts(500)
    encodings = tokenizer.encode_batch(texts, add_specials=False)
    wanted = [[list(e.ids), to_units(text, e.offsets)] for text, e in zip(texts, encodings, strict=True)]
    found = [[f["ids"], list(map(list, zip(f["starts"], f["ends"], strict=True)))] for f in call([["offsets", t] for t in texts])]  # fmt: skip
    assert first_difference(texts, found, wanted) == []
    for limit in (8, 3):
        wanted = [list(e.ids) for e in tokenizer.encode_batch(texts, max_length=limit)]
        assert first_difference(texts, [f["ids"] for f in call([["encode", t, limit] for t in texts])], wanted) == []


def test_pairs_and_masks(pair):
    tokenizer, call = pair
    texts = real_texts()[:200] + odd_texts(100)
    others = [*reversed(texts)]
    wanted = tokenizer.encode_batch(texts, others, max_length=20)
    found = call([["encodePair", a, b, 20] for a, b in zip(texts, others, strict=True)])
    assert [(f["ids"], f["types"]) for f in found] == [(list(e.ids), list(e.segments)) for e in wanted]
    masked = [re.sub(r"(\w)\w+", r"\1[MASK]", text, count=2) for text in texts] + [
        "[MASK]",
        "a[MASK] b",
        "[MASK]中[MASK]",
    ]
    wanted = [list(tokenizer.encode(text, recognize_mask=True).ids) for text in masked]
    found = [f["ids"] for f in call([["encode", text, 10**6, {"recognizeMask": True}] for text in masked])]
    assert first_difference(masked, found, wanted) == []


def test_lone_surrogates_are_replaced_as_in_python(pair):
    tokenizer, call = pair
    texts = ["a\ud800b", "\udc00", "x \ud83d y", "\ude00\ud83d"]
    assert call([["ids", text] for text in texts]) == tokenizer.ids_batch(texts)


def test_unreadable_share(pair):
    tokenizer, call = pair
    texts = ["a cat sat", "我想退货", "Привет мир", "", "ᚠᛇᚻ 中文 abc"]
    assert call([["unknownShare", t] for t in texts]) == pytest.approx([unknown_share(tokenizer, t) for t in texts])


def test_a_table_of_phonemes_is_an_error():
    with pytest.raises(AlbertkitError, match="table of phonemes"):
        tokenizer_data(Tokenizer.from_symbols(["$", "a", "b"]))


def test_other_data_is_an_error(tmp_path: Path):
    (tmp_path / "data.json").write_text('{"format": 2}')
    with pytest.raises(AssertionError, match="has the format 2; this module reads format 1"):
        call_tokenizer(tmp_path, tmp_path / "data.json", [])
