"""How often do real queries and nonsense find something? The measurement behind the default of `--min-score`.

    python studies/search_limit.py DATA            DATA contains the folders cisi, npl, squad and cmrc2018
    python studies/search_limit.py DATA scripts    needs opencc-python-reimplemented 0.1.7

For each set: the share of real queries whose answer is among ten hits, with every text and with the default limit;
the same for those whose first hit is right; and the share of nonsense queries that find anything.

`scripts`: the same shares of CMRC 2018, with texts and queries in simplified or traditional characters, or with full-width
letters and digits, with and without what keyword search folds. OpenCC converts by its lists of words (s2tw), not by
characters alone. The result is in studies/results/scripts.json.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from albertkit import Albert, Index, Record
from albertkit.data.sentences import split_sentences
from albertkit.input_warnings import collect_problems
from albertkit.search import keywords

RESULT = Path(__file__).parent / "results" / "scripts.json"
QUERIES = 500  # of SQuAD and CMRC 2018
Queries = list[tuple[str, set[int]]]  # a query and the places of the texts that answer it


def main(data: Path) -> None:
    """Print one block per set."""
    sets = {"squad": read_answers, "cmrc2018": read_answers, "cisi": read_cisi, "npl": read_npl}
    for name, read in sets.items():
        texts, queries = read(data / name)
        albert = Albert("small-zh" if name == "cmrc2018" else "small")
        with tempfile.TemporaryDirectory() as folder, Index.create(Path(folder) / "t.idx", albert) as index:
            index.add(Record(str(place), text) for place, text in enumerate(texts))
            print(f"\n{name}: {len(texts):,} texts, {len(queries)} queries", flush=True)
            for mode in ("vector", "hybrid"):
                measure(index, mode, queries)
            nonsense_queries = nonsense()
            with collect_problems():
                found = {kind: index.search_many(strings) for kind, strings in nonsense_queries.items()}
            print("  nonsense with hits:", {kind: sum(map(bool, hits)) for kind, hits in found.items()}, "of 200 each")


def measure(index: Index, mode: str, queries: Queries) -> None:
    """Print what the default limit keeps."""
    all_texts, limited = (
        "first hit {:.1%}, ten hits {:.1%}".format(*right_shares(index, mode, queries, limit)) for limit in (-1.0, None)
    )
    print(f"  {mode}: right with all texts: {all_texts}; with the limit: {limited}")


def right_shares(index: Index, mode: str, queries: Queries, limit: float | None = None) -> tuple[float, float]:
    """The share of queries with a right first hit, and with a right one among ten."""
    results = index.search_many([query for query, _ in queries], 10, mode, min_score=limit)
    pairs = list(zip(results, (places for _, places in queries), strict=True))
    first = sum(bool(hits) and int(hits[0].id) in places for hits, places in pairs)
    among = sum(any(int(hit.id) in places for hit in hits) for hits, places in pairs)
    return first / len(pairs), among / len(pairs)


def compare_scripts(data: Path) -> None:
    """Record one row per script of the texts and of the queries: right among ten hits, with and without folding."""
    from opencc import OpenCC

    texts, queries = read_answers(data / "cmrc2018")
    wide = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
    convert = {
        "simplified": str,
        "traditional": OpenCC("s2tw").convert,
        "full-width": lambda text: text.translate(wide),
    }
    rows = [
        {"texts": ours, "queries": query_script} for ours in ("simplified", "traditional") for query_script in convert
    ]
    for row in rows:
        with_script = [convert[row["texts"]](text) for text in texts]
        converted = [(convert[row["queries"]](query), places) for query, places in queries]
        row["converted"] = sum(new != old for (new, _), (old, _) in zip(converted, queries, strict=True))
        for column, fold in {"without folding": str.lower, "folded": keywords.fold}.items():
            with (
                patch.object(keywords, "fold", fold),
                tempfile.TemporaryDirectory() as folder,
                Index.create(Path(folder) / "t.idx", Albert("small-zh")) as index,
            ):
                index.add(Record(str(place), text) for place, text in enumerate(with_script))
                for mode in ("keyword", "hybrid"):
                    row[f"{mode}, {column}"] = right_shares(index, mode, converted)
        print(row, flush=True)
    RESULT.write_text(json.dumps({"queries": len(queries), "texts": len(texts), "rows": rows}, indent=1) + "\n")


def nonsense() -> dict[str, list[str]]:
    """Strings that mean nothing, of four kinds; none of them is in `relevance.NONSENSE`."""
    rng = random.Random(0)
    letters, hexadecimal = "abcdefghijklmnopqrstuvwxyz", "0123456789abcdef"
    ideographs = [bytes([high, low]).decode("gb2312") for high in range(0xB0, 0xD7) for low in range(0xA1, 0xFF)]
    sizes = [[rng.randint(3, 8) for _ in range(rng.randint(1, 6))] for _ in range(200)]
    words = [" ".join("".join(rng.choices(letters, k=size)) for size in row) for row in sizes]
    return {
        "letters": words,
        "consonants": [re.sub("[aeiouy]", "x", word) for word in words],
        "hexadecimal": ["".join(rng.choices(hexadecimal, k=32)) for _ in range(200)],
        "ideographs": ["".join(rng.choices(ideographs, k=rng.randint(2, 12))) for _ in range(200)],
    }


def read_cisi(folder: Path) -> tuple[list[str], Queries]:
    """Titles with abstracts, and the queries with their relevant texts."""

    def parts(name: str) -> Iterator[tuple[int, str]]:
        for part in (folder / name).read_text(encoding="latin-1").split("\n.I "):
            number = int(part.removeprefix(".I ").split("\n", 1)[0])
            pieces = re.findall(r"\n\.[TW]\n(.*?)(?=\n\.[A-Z]\n|\Z)", part, re.S)
            yield number, " ".join(" ".join(pieces).split())

    relevant: dict[int, set[int]] = {}
    for line in (folder / "CISI.REL").read_text().splitlines():
        query, text, *_ = map(float, line.split())
        relevant.setdefault(int(query), set()).add(int(text) - 1)
    queries = [(text, relevant[number]) for number, text in parts("CISI.QRY") if number in relevant]
    return [text for _, text in parts("CISI.ALL")], queries


def read_npl(folder: Path) -> tuple[list[str], Queries]:
    """Abstracts of physics, and the queries with their relevant texts."""

    def parts(name: str) -> dict[int, str]:
        parts_of_file = (part.strip().split(None, 1) for part in re.split(r"\n *\/", (folder / name).read_text()))
        return {int(part[0]): " ".join(part[1].split()) for part in parts_of_file if len(part) == 2}

    texts, relevant = parts("doc-text"), parts("rlv-ass")
    places = {number: place for place, number in enumerate(texts)}
    queries = [
        (query.lower(), {places[int(text)] for text in relevant[number].split() if int(text) in places})
        for number, query in parts("query-text").items()
    ]
    return list(texts.values()), queries


def read_answers(folder: Path) -> tuple[list[str], Queries]:
    """Sentences, and questions with the sentence that contains the answer."""
    texts: list[str] = []
    questions: Queries = []
    path = sorted(folder.glob("*.json"))[0]
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            context, first, at, ends = paragraph["context"], len(texts), 0, []
            for sentence in split_sentences(context):
                at = context.find(sentence, at) + len(sentence)
                texts.append(sentence)
                ends.append(at)
            for item in paragraph["qas"]:
                answer = item["answers"][0]
                start = answer.get("answer_start", context.find(answer["text"]))
                place = next((i for i, end in enumerate(ends) if start < end), None)
                if place is not None and start >= 0:
                    questions.append((item["question"], {first + place}))
    random.Random(0).shuffle(questions)
    return texts, questions[:QUERIES]


if __name__ == "__main__":
    (compare_scripts if sys.argv[2:] == ["scripts"] else main)(Path(sys.argv[1]))
