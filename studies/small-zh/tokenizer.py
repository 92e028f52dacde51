"""The tokenizer of `small-zh`: trains unigram vocabularies on Chinese Wikipedia and compares them with Chinese BERT's.

    python studies/small-zh/tokenizer.py train TEXTS -o tokenizers --tatoeba cmn.txt --sizes 16000,21000,30000
    python studies/small-zh/tokenizer.py compare tokenizers/unigram-* --bert vocab.txt --set news=a.txt --set chat=b.txt

Traditional characters become simplified ones in the normalisation table, so that both scripts share tokens and vectors.
Needs `sentencepiece`, which compiles the table, and `opencc-python-reimplemented`, whose character list (Apache-2.0)
fills it.
"""

from __future__ import annotations

import argparse
import collections
import json
import lzma
import random
import sys
import tempfile
import time
import unicodedata
from array import array
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "src")]

from albertkit.tokenizer import Tokenizer  # noqa: E402
from albertkit.tokenizer.normalizer import Normalizer  # noqa: E402
from albertkit.tokenizer.spiece_file import parse_spiece  # noqa: E402
from albertkit.tokenizer.tokenizer_json import metaspace_words, sequence, split  # noqa: E402
from albertkit.tokenizer.train_vocabulary import PUNCTUATION, open_tokenizer  # noqa: E402
from albertkit.tokenizer.vocabulary import MAX_TOKENS, SPECIALS, Vocabulary  # noqa: E402

LEAST = 8  # a character that occurs less often in the text gets no token
EVERYDAY = 4  # how often the Tatoeba sentences are repeated: encyclopedias have few words of conversation
FUNCTION_WORDS = "的了是在和与也而但并被由及我你他她它这那其为将把从对等之"
EXTRA = (
    "€£¥°©®™§…—–·•・「」『』《》〈〉【】〔〕“”‘’、。〇々〜×÷±≈≠≤≥→←↑↓★☆●○■□◆◇△▲▽▼♪♥√∞~^`|\\_{}[]<>@#$%&*+=-/:;!?,.'\"()"
)


def lines(path: Path) -> Iterator[str]:
    """The paragraphs of a text file, packed or not."""
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
        for line in file:
            if line.strip():
                yield line.strip()


def simplified() -> dict[str, str]:
    """Traditional characters and what replaces them; rare ones outside the basic plane are left as they are."""
    import opencc

    table: dict[str, str] = {}
    for line in (Path(opencc.__file__).parent / "dictionary" / "TSCharacters.txt").read_text("utf-8-sig").splitlines():
        if "\t" in line:
            old, new = line.split("\t")[0], line.split("\t")[1].split()[0]
            if old != new and ord(old) < 0x10000 and ord(new) < 0x10000:
                table[old] = new
    table |= {
        "妳": "你",
        "牠": "它",
        "裡": "里",
        "啟": "启",
        "峯": "峰",
        "綫": "线",
        "衞": "卫",
        "爲": "为",
        "羣": "群",
        "麽": "么",
    }
    while any(new in table for new in table.values()):  # a replacement is not replaced again
        table = {old: table.get(new, new) for old, new in table.items()}
    return table


def charsmap() -> bytes:
    """The compiled table: traditional to simplified, and control characters to nothing."""
    import sentencepiece as spm

    rules = {ord(old): [ord(new)] for old, new in simplified().items()}
    controls = (c for c in range(0x20000) if unicodedata.category(chr(c)) in ("Cc", "Cf") and not chr(c).isspace())
    rules |= {c: [] for c in controls if c}
    with tempfile.TemporaryDirectory() as folder:
        tsv, texts = Path(folder, "rules.tsv"), Path(folder, "texts.txt")
        tsv.write_text("".join(f"{a:X}\t{' '.join(f'{c:X}' for c in b)}\n" for a, b in sorted(rules.items())))
        texts.write_text("一 二 三 四\n" * 50, encoding="utf-8")
        options = {"hard_vocab_limit": False, "minloglevel": 2, "vocab_size": 12}
        spm.SentencePieceTrainer.train(
            input=str(texts), model_prefix=f"{folder}/m", normalization_rule_tsv=str(tsv), **options
        )
        return parse_spiece(Path(folder, "m.model").read_bytes(), MAX_TOKENS).normalizer.charsmap


def train(given: argparse.Namespace) -> None:
    """Vocabularies of several sizes from one sample of the text."""
    table = charsmap()
    normalize = Normalizer(table, True, True)
    counts: collections.Counter[str] = collections.Counter()
    sample: list[str] = []
    draw = random.Random(0)
    for path in given.texts:
        for line in lines(path):
            counts.update(line)
            if draw.random() < given.share:
                sample.append(line)
    made: collections.Counter[str] = collections.Counter()
    for c, n in counts.items():
        for x in normalize(c)[0]:
            made[x] += n
    alphabet = {c for c, n in made.items() if n >= LEAST} | set(normalize(EXTRA)[0])
    everyday = [line.split("\t")[1] for line in lines(given.tatoeba) if "\t" in line] if given.tatoeba else []
    rare = {ord(c): " " for line in sample for c in normalize(line)[0] if c not in alphabet}
    texts = [normalize(line)[0].translate(rare) for line in sample + everyday * EVERYDAY]
    chars = sum(map(len, texts))
    print(json.dumps({"characters": chars, "alphabet": len(alphabet), "counted": sum(counts.values())}), flush=True)
    given.output.mkdir(parents=True, exist_ok=True)
    steps = sequence("pretokenizers", [*metaspace_words(split_scripts=True), split(PUNCTUATION)])
    splitter = open_tokenizer({"type": "Unigram", "unk_id": None, "vocab": []}, {"pre_tokenizer": steps}).pre_tokenizer
    words = collections.Counter(word for text in texts for word, _ in splitter.pre_tokenize_str(text))
    listed = given.output / "words.tsv"
    listed.write_text("".join(f"{word}\t{n}\n" for word, n in words.items()), encoding="utf-8")
    print(len(words), "different words", flush=True)
    for size in map(int, given.sizes.split(",")):
        began = time.perf_counter()
        vocabulary = unigram(listed, size, alphabet, table)
        Tokenizer(vocabulary).save(given.output / f"unigram-{size}")
        print(size, len(vocabulary.tokens), f"{time.perf_counter() - began:.0f} s", flush=True)


def unigram(words: Path, size: int, alphabet: set[str], table: bytes) -> Vocabulary:
    """A vocabulary by SentencePiece, which is much faster on Chinese than the trainer behind `Tokenizer.train`."""
    import sentencepiece as spm

    first = SPECIALS["unigram"]
    with tempfile.TemporaryDirectory() as folder:
        spm.SentencePieceTrainer.train(
            input=str(words), input_format="tsv", model_prefix=f"{folder}/m", vocab_size=size - len(first) + 3,
            normalization_rule_name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False,
            split_by_unicode_script=False, split_by_number=False, character_coverage=1.0,
            required_chars="".join(sorted(alphabet - {" "})), seed_sentencepiece_size=400_000, num_threads=2,
            max_sentencepiece_length=16, minloglevel=1,
        )  # fmt: skip
        found = parse_spiece(Path(folder, "m.model").read_bytes(), MAX_TOKENS)
    scored = [(token.text.decode(), token.score) for token in found.token if token.type == 1]
    learnt = [(token, score) for token, score in scored if is_word(token)]
    tokens, scores = [*first, *(t for t, _ in learnt)], [0.0] * len(first) + [round(s, 3) for _, s in learnt]
    scores = array("f", scores).tolist()
    return Vocabulary("unigram", tokens, scores, frozenset(range(5)), 1, True, True, table, split_scripts=True)


def is_word(token: str) -> bool:
    """Whether a token is at most a word: phrases are long, or of three characters with a function word at an end."""
    if token.startswith("▁") or token.isascii():
        return True
    phrase = len(token) >= 3 and (token[0] in FUNCTION_WORDS or token[-1] in FUNCTION_WORDS)
    return len(token) <= 4 and not phrase


def compare(given: argparse.Namespace) -> None:
    """Tokens per character and the share of unknown tokens, for every tokenizer and set of texts."""
    tokenizers = {path.name: Tokenizer.load(path) for path in given.tokenizers}
    if given.bert:
        tokenizers["bert"] = Tokenizer.from_vocab(given.bert)
    sets = {name: list(lines(Path(path)))[:20000] for name, path in (one.split("=", 1) for one in given.set)}
    print("| tokenizer | tokens | table int8, MB | files, MB |", " | ".join(sets), "|")
    for name, tokenizer in tokenizers.items():
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save(folder, compact=True)
            size = sum(file.stat().st_size for file in Path(folder).iterdir())
        cells = []
        for texts in sets.values():
            found = tokenizer.ids_batch(texts)
            tokens, unknown = sum(map(len, found)), sum(row.count(tokenizer.unk_id) for row in found)
            cells.append(f"{tokens / sum(map(len, texts)):.3f}, {unknown / tokens:.4%}")
        table = tokenizer.vocab_size * 128 / 1e6
        print(
            f"| {name} | {tokenizer.vocab_size} | {table:.2f} | {size / 1e6:.2f} |", " | ".join(cells), "|", flush=True
        )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("train")
    one.add_argument("texts", nargs="+", type=Path)
    one.add_argument("-o", "--output", type=Path, required=True)
    one.add_argument("--tatoeba", type=Path)
    one.add_argument("--sizes", default="16000,21000,30000")
    one.add_argument("--share", type=float, default=0.15)
    one.set_defaults(run=train)
    two = commands.add_parser("compare")
    two.add_argument("tokenizers", nargs="*", type=Path)
    two.add_argument("--bert", type=Path)
    two.add_argument("--set", action="append", default=[])
    two.set_defaults(run=compare)
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
