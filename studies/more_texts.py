"""Unlabelled texts for `elastic.py train --texts`: from the training parts of data sets, from the predictions of a
masked language model, and from a corpus.

    python studies/more_texts.py DATA OUT [--variants 4] [--corpus FILE.txt.xz --sentences 60000]

Writes OUT/conll2003.txt: sentences of CoNLL-2003 with entities replaced by others of the same kind, news sentences of
MRPC, RTE and STS-B, and sentences of a corpus that contain names. Writes OUT/mrpc.txt, pairs separated by a tab: pairs
of MRPC in which words were omitted or replaced by likely tokens of the built-in pre-trained model, pairs of STS-B and
RTE, and sentences of all three paired with their most similar ones. Held-out parts of training sets (`split_examples`)
and all dev files are excluded. STS-B shares some pairs with MRPC's dev file, so `without_dev_texts` drops every line with a
sentence of a dev file.
"""

from __future__ import annotations

import argparse
import lzma
import random
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "bench", "studies")]

from tasksets import SETS, load  # noqa: E402

from albertkit import Albert  # noqa: E402
from albertkit.runtime.batching import token_batches  # noqa: E402
from albertkit.runtime.mask_filling import encode_masks, likeliest_tokens  # noqa: E402
from albertkit.tasks.dataset import split_examples  # noqa: E402

SHARE = 0.2  # of the words of a sentence that are replaced
LIKELY = 8  # words proposed for each, of which one is drawn
NEAR = 1  # sentences beside which one is set


def training(name: str, data: Path) -> list[Any]:
    """The training examples of a set that elastic.py learns from."""
    return list(split_examples(load(SETS[name], data, None)["train"])[0])


def normalized(text: str) -> str:
    """A sentence as it is compared: small letters and signs, without spaces."""
    return "".join(text.lower().split())


def without_dev_texts(lines: list[str], name: str, data: Path) -> list[str]:
    """The lines that share no sentence with the held-out file of a set."""
    dev_texts = {
        normalized(t) for e in load(SETS[name], data, None)["dev"] for t in (e.text, getattr(e, "pair", None)) if t
    }
    return [line for line in lines if not any(normalized(part) in dev_texts for part in line.split("\t"))]


def clean(texts: Iterable[str], shortest: int = 15, longest: int = 300) -> list[str]:
    """Each text once, without breaks, if it is a sentence by its length."""
    distinct = dict.fromkeys(re.sub(r"\s+", " ", text).strip() for text in texts)
    return [text for text in distinct if shortest < len(text) < longest]


def exchange_entities(examples: Sequence[Any], rng: random.Random) -> list[str]:
    """Sentences with other entities of the same kind."""
    names: dict[str, list[str]] = defaultdict(list)
    for e in examples:
        for span in e.spans:
            names[span.label].append(e.text[span.start : span.end])
    out = []
    for e in examples:
        text, last = "", 0
        for span in e.spans:
            text += e.text[last : span.start] + rng.choice(names[span.label])
            last = span.end
        out.append(text + e.text[last:])
    return [new for new, e in zip(out, examples, strict=True) if new != e.text]


def sentences_with_names(path: Path, most: int) -> list[str]:
    """Sentences of a corpus (.txt.xz) with words in capitals inside, written as CoNLL-2003 is: spaces around every
    sign.
    """
    sentences: list[str] = []
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            for text in re.split(r"(?<=[.!?]) +(?=[A-Z\"])", line.strip()):
                words = re.findall(r"\w+(?:[-.,]\w+)*|'s|\S", text)
                if 5 <= len(words) <= 45 and sum(word[0].isupper() for word in words[1:]) >= 2:
                    sentences.append(" ".join(words))
            if len(sentences) >= most:
                return sentences[:most]
    return sentences


def replace_words(albert: Albert, texts: Sequence[str], rng: random.Random) -> list[str]:
    """Texts with some words replaced by likely ones, and now and then one left out."""
    masked = []
    for text in texts:
        words = text.split(" ")
        for place in rng.sample(range(len(words)), max(1, round(SHARE * len(words)))):
            words[place] = "" if rng.random() < 0.25 else "[MASK]"
        if "[MASK]" not in words:
            words[0] = "[MASK]"
        masked.append(" ".join(word for word in words if word))
    encoded = [encode_masks(albert, text, LIKELY) for text in masked]
    out = list(texts)
    for batch in token_batches([e.ids for e, _ in encoded], token_budget=albert.token_budget):
        hidden = albert.engine.run(batch, albert.depth)
        for states, nth in zip(hidden, batch.order.tolist(), strict=True):
            best = likeliest_tokens(albert, states[encoded[nth][1]], LIKELY)
            drawn = iter(rng.choices([i for i, _ in row], [p for _, p in row])[0] for row in best)
            fill = (albert.tokenizer.decode([next(drawn)]) for _ in encoded[nth][1])
            out[nth] = re.sub(r"\[MASK\]", lambda _: next(fill), masked[nth])
    return out


def similar_pairs(texts: list[str]) -> list[tuple[str, str]]:
    """Each text beside those whose vectors are nearest."""
    vectors = Albert().embed(texts)
    out = []
    for first in range(0, len(texts), 512):
        likeness = vectors[first : first + 512] @ vectors.T
        likeness[np.arange(len(likeness)), first + np.arange(len(likeness))] = -1
        for row, near in enumerate(np.argsort(-likeness, axis=1)[:, :NEAR]):
            out += [(texts[first + row], texts[place]) for place in near]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--variants", type=int, default=4, help="of each pair of MRPC")
    parser.add_argument("--corpus", type=Path, help="a text file, .txt.xz, for sentences with names")
    parser.add_argument("--sentences", type=int, default=60_000, help="of the corpus")
    parser.add_argument("--most", type=int, default=100_000, help="lines a file")
    args = parser.parse_args()
    rng = random.Random(0)
    args.out.mkdir(parents=True, exist_ok=True)
    pairs = {name: [(e.text, e.pair) for e in training(name, args.data)] for name in ("mrpc", "rte", "sts-b")}
    news = clean(
        s
        for many in pairs.values()
        for pair in many
        for text in pair
        for s in re.split(r"(?<=[.!?]) +(?=[A-Z\"])", text)
    )
    corpus = sentences_with_names(args.corpus, args.sentences) if args.corpus else []
    tagged = training("conll2003", args.data)
    lines = without_dev_texts([*exchange_entities(tagged, rng), *news, *corpus], "conll2003", args.data)
    write(args.out / "conll2003.txt", lines, args.most, rng)
    albert = Albert("small-pretrained")
    mrpc_pairs = pairs["mrpc"] * args.variants
    changed = [replace_words(albert, [pair[side] for pair in mrpc_pairs], rng) for side in (0, 1)]
    turns = [
        (a, second) if rng.random() < 0.5 else (first, b)
        for (first, second), a, b in zip(mrpc_pairs, *changed, strict=True)
    ]
    near = similar_pairs(clean(text for many in pairs.values() for pair in many for text in pair))
    every = [*turns, *pairs["rte"], *pairs["sts-b"], *near]
    lines = without_dev_texts([f"{a}\t{b}" for a, b in every if "\t" not in a + b], "mrpc", args.data)
    write(args.out / "mrpc.txt", lines, args.most, rng)


def write(path: Path, lines: list[str], most: int, rng: random.Random) -> None:
    """At most so many lines, drawn."""
    once = list(dict.fromkeys(line.replace("\n", " ") for line in lines))
    rng.shuffle(once)
    path.write_text("\n".join(once[:most]) + "\n", encoding="utf-8")
    print(f"{path}: {len(once[:most]):,} of {len(once):,} lines", flush=True)


if __name__ == "__main__":
    main()
