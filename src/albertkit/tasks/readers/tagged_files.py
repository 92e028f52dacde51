"""Words with labels → `TaggedExample` examples: CoNLL columns, folders of seq.in, seq.out and label, CLUENER, tokens in JSONL.

In: a file or folder and `ReadOptions`. Out: texts with the characters of their words and entities. Before this file: `files.py`;
after it: `reading.py`.

Labels may be IOB1, IOB2, BIOES, BILOU or BMES, or bare names; all become spans. The one reading rule that fits them all: B, S, U
or another name begins an entity, E, L, S, U end it, and everything else goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError
from albertkit.tasks.examples import Span, TaggedExample
from albertkit.tasks.readers.labelled_files import (
    Problems,
    ReadOptions,
    counted,
    fault,
    form_of,
    lines,
    objects,
    told,
    whole,
)
from albertkit.text_reader import TEXT_LIMIT

FOLDER = ("seq.in", "seq.out", "label")
SPACES = re.compile(r" +")  # and no others: a word may be an ideographic space
LETTERS = frozenset("BIESLUM")
PREFIXED = re.compile(r"([BIESLUM])-(.+)", re.S)
UNDERLINED = re.compile(r"[BIES]_.+", re.S)
NOTES = {
    "letters": "labels are letters without names: what they enclose is called entity",
    "names": "labels have no B- or I-: words in a row with the same label are one entity",
    "mixed": "some entities begin with B- and some with I-: both are taken as beginnings",
}
EXAMPLE = '{"name": {"叶老桂": [[9, 11]]}}'
LABEL_FIELDS = ("labels", "tags", "ner_tags", "slots")


@dataclass
class Sentence:
    """Words and their labels, as they stand in the file."""

    line: int
    words: list[str]
    labels: list[str] | None
    intent: str | None = None


def read_tagged(path: Path, options: ReadOptions, problems: Problems) -> tuple[list[TaggedExample], list[str]]:
    """The sentences of any file of words and labels, and notes."""
    if path.is_dir():
        return _finished(_folder(path, options, problems), path / "seq.in", problems)
    form = form_of(path, options)
    if form == "parquet":
        raise AlbertkitError(f"{path} is Parquet, which is read for texts only; write its words and labels as JSONL")
    if form not in ("json", "jsonl"):
        return _finished(_columns(path, options, problems), path, problems)
    rows = list(objects(path, form, problems))
    if rows and "text" in rows[0][1] and "tokens" not in rows[0][1]:
        return list(_cluener(rows, path, options, problems)), []
    return _finished(_tokens(rows, options, problems), path, problems)


def _finished(found: Iterable[Sentence], path: Path, problems: Problems) -> tuple[list[TaggedExample], list[str]]:
    """Sentences → examples; the scheme is that of the whole file."""
    sentences = list(found)
    scheme = scheme_of([sentence.labels for sentence in sentences if sentence.labels is not None])
    if scheme == "names":
        _refuse_underlined({label for sentence in sentences for label in sentence.labels or ()} - {"O"}, path)
    examples = []
    for sentence in sentences:
        text, words = join_words(sentence.words)
        labels = [prefixed(label, scheme) for label in sentence.labels or ()]
        odd = next((label for label in labels if label != "O" and not PREFIXED.fullmatch(label)), None)
        if len(text) > TEXT_LIMIT:
            problems.add(
                sentence.line, f"the sentence has over {TEXT_LIMIT:,} characters; put empty lines between sentences"
            )
        elif odd is not None:
            problems.add(sentence.line, f"the label {odd!r:.40} is neither O nor like B-PER; correct it")
        else:
            spans = spans_of(labels, words)
            examples.append(TaggedExample(text, words, spans, sentence.intent, f"{path}:{sentence.line}"))
    return examples, [NOTES.get(scheme, f"labels are {scheme}")] if scheme else []


def _refuse_underlined(seen: set[str], path: Path) -> None:
    """B_PER and I_PER are no names of their own; E_MAIL beside PHONE is one."""
    found = sorted(label for label in seen if UNDERLINED.fullmatch(label))
    if found and (len(found) == len(seen) or {"B", "I"} <= {label[0] for label in found}):
        right = f"{found[0][0]}-{found[0][2:]}"
        raise AlbertkitError(
            f"{path} has the label {found[0]!r:.40}; the letter of a label ends with a hyphen, as in B-PER: "
            f"write {right!r:.40}, and the others like it"
        )


# Labels → spans ------------------------------------------------------------------------------------------------------


def scheme_of(sentences: Sequence[Sequence[str]]) -> str:
    """IOB1, IOB2, mixed, BIOES (BMES too) or BILOU; letters or names where that is all; empty without labels.

    One entity in twenty may be written otherwise: the CoNLL 2003 files are IOB1 except for two.
    """
    seen = {label for labels in sentences for label in labels} - {"O"}
    letters = {label[0] for label in seen if PREFIXED.fullmatch(label)}
    if not letters:
        return "" if not seen else "letters" if seen <= LETTERS else "names"
    if letters & set("LU"):
        return "BILOU"
    if letters & set("ESM"):
        return "BIOES"
    begins = {"B": 0, "I": 0}  # entities that do not stand beside another of their kind, by the letter they begin with
    for labels in sentences:
        for before, label in pairwise(("O", *labels)):
            if label[:1] in begins and before[1:] != label[1:]:
                begins[label[0]] += 1
    few = sum(begins.values()) / 20
    return "IOB2" if begins["I"] <= few else "IOB1" if begins["B"] <= few else "mixed"


def prefixed(label: str, scheme: str) -> str:
    """The label as letter and name, also where the file has only one of them."""
    if label == "O" or not label:
        return label
    return f"I-{label}" if scheme == "names" else f"{label}-entity" if scheme == "letters" else label


def spans_of(labels: Sequence[str], words: Sequence[tuple[int, int]]) -> tuple[Span, ...]:
    """The entities that labels of words stand for, in any scheme of letter and name."""
    spans: list[Span] = []
    going = ""  # the name of the entity that may go on
    for label, (start, end) in zip(labels, words, strict=False):
        letter, name = label[0], label[2:]
        if letter != "O":
            if letter in "BSU" or name != going:
                spans.append(Span(start, end, name))
            else:
                spans[-1] = Span(spans[-1].start, end, name)
        going = "" if letter in "OESLU" else name
    return tuple(spans)


def join_words(words: Sequence[str]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Words with single spaces between them, and the characters of each."""
    places, start = [], 0
    for word in words:
        places.append((start, start + len(word)))
        start += len(word) + 1
    return " ".join(words), tuple(places)


# Files → sentences ---------------------------------------------------------------------------------------------------


def _columns(path: Path, options: ReadOptions, problems: Problems) -> Iterator[Sentence]:
    """CoNLL: a word on a line, an empty line between sentences; the first cell is the word, the last the label."""
    width = word = label = begun = 0
    held: list[list[str]] = []
    for number, line in _with_end(lines(path, problems)):
        cells = line.split("\t") if "\t" in line else SPACES.split(line.strip(" "))
        if not line.strip() or cells[0] == "-DOCSTART-":
            if held and not any(at in problems.lines for at in range(begun, number)):
                labels = [cells[label].strip() for cells in held] if word != label else None
                yield Sentence(begun, [cells[word] for cells in held], labels)
            held = []
            continue
        if not held and line.startswith("# ") and len(cells) != width:
            continue  # a comment, as in CoNLL-U
        if not width:
            width = len(cells)
            word, label = _places(width, options, f"line {number} of {path}")
        begun = begun if held else number
        if len(cells) != width:
            what = f"{counted(len(cells), 'cell')} where the first line has {width}"
            problems.add(number, f"{what}; write a word and its label, and an empty line between sentences")
        elif not cells[word]:
            problems.add(number, "there is no word; write one")
        held.append(cells)


def _with_end(numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lines, and an empty one behind them."""
    number = 0
    for number, line in numbered:
        yield number, line
    yield number + 1, ""


def _places(width: int, options: ReadOptions, where: str) -> tuple[int, int]:
    """The columns of words and labels, counted from 0; the same where there are no labels."""
    places = []
    for role, column in (("text", options.text_column or 1), ("label", options.label_column or width)):
        if not str(column).isdecimal() or not 1 <= int(column) <= width:
            raise AlbertkitError(f"{where} has columns 1 to {width} and no {column!r}: give a number (--{role}-column)")
        places.append(int(column) - 1)
    if places[0] == places[1] and options.labelled:
        raise AlbertkitError(f"{where} needs two cells, a word and its label, and has {width}")
    return places[0], places[1]


def _folder(path: Path, options: ReadOptions, problems: Problems) -> Iterator[Sentence]:
    """ATIS and SNIPS: three files with a line for each sentence."""
    found = []
    for name in FOLDER:
        if not (path / name).exists():
            has = told(sorted(p.name for p in path.iterdir()))
            raise AlbertkitError(
                f"{path} has no {name}; a folder of intents has {', '.join(FOLDER)}, and this one {has}"
            )
        own = problems if name == "seq.in" else Problems(str(path / name), options.skip_bad)
        found.append([line for _, line in lines(path / name, own)])
        while found[-1] and not found[-1][-1].strip():
            found[-1].pop()
        if own is not problems:
            problems.include(own)
    counts = [len(f) for f in found]
    if len(set(counts)) > 1:
        each = ", ".join(f"{name} {count:,}" for name, count in zip(FOLDER, counts, strict=True))
        raise AlbertkitError(f"the files in {path} differ in lines ({each}); each must have one line for each sentence")
    for number, (text, tags, intent) in enumerate(zip(*found, strict=True), 1):
        words, labels = text.split(), tags.split()
        wrong = fault(text, "text") or fault(intent, "intent")
        if not wrong and len(words) != len(labels):
            wrong = f"{counted(len(words), 'word')} in seq.in and {counted(len(labels), 'label')} in seq.out; write one label for each word"
        if wrong:
            problems.add(number, wrong)
        elif number not in problems.lines:
            yield Sentence(number, words, labels, intent.strip())


def _tokens(rows: Iterable[tuple[int, dict[str, Any]]], options: ReadOptions, problems: Problems) -> Iterator[Sentence]:
    """{"tokens": [...], "labels": [...]}, with an "intent" where there is one."""
    for line, row in rows:
        words, intent = row.get("tokens"), row.get("intent")
        labels = next((row[name] for name in LABEL_FIELDS if name in row), None)
        wrong = None if intent is None else fault(intent, "intent")
        if not _strings(words) or not words:
            wrong = f"needs a list of words in 'tokens', and has {told(row)}; write them as texts, none of them empty"
        elif labels is None and options.labelled:
            wrong = f"needs a list of labels in 'labels', and has {told(row)}; write one for each word"
        elif labels is not None and not _strings(labels):
            wrong = "the labels are not all texts; write names such as B-PER, since numbers do not say what they mean"
        elif labels is not None and len(labels) != len(words):
            wrong = f"{counted(len(words), 'word')} and {counted(len(labels), 'label')}; write one label for each word"
        if wrong:
            problems.add(line, wrong)
        else:
            intent = None if intent is None else whole(intent).strip()
            labels = None if labels is None else [whole(label) for label in labels]
            yield Sentence(line, [whole(word) for word in words or ()], labels, intent)


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) and part for part in value)


def _cluener(
    rows: Iterable[tuple[int, dict[str, Any]]], path: Path, options: ReadOptions, problems: Problems
) -> Iterator[TaggedExample]:
    """{"text": …, "label": {kind: {entity: [[first, last], …]}}}; every character that is no space is a word."""
    for line, row in rows:
        text, label = row.get("text"), row.get("label", None if options.labelled else {})
        wrong = fault(text, "text")
        if wrong or not isinstance(text, str):
            problems.add(line, wrong or "")
            continue
        text, spans = whole(text), []
        try:
            spans = sorted(_cluener_spans(text, label), key=lambda span: (span.start, span.end))
            wrong = overlap(spans, text)
        except AlbertkitError as error:
            wrong = str(error)
        except (TypeError, ValueError, AttributeError):
            wrong = f"'label' is missing or not as it should be; write it like {EXAMPLE}, or {{}} for no entity"
        if wrong:
            problems.add(line, wrong)
            continue
        words = tuple((i, i + 1) for i, character in enumerate(text) if not character.isspace())
        yield TaggedExample(text, words, tuple(spans), None, f"{path}:{line}")


def _cluener_spans(text: str, label: Any) -> Iterator[Span]:
    """Entities without spaces at their ends; whatever has another form raises."""
    for kind, entities in label.items():
        for entity, places in entities.items():
            for first, last in places:
                if not 0 <= first <= last < len(text) or text[first : last + 1] != whole(entity) or not entity.strip():
                    raise AlbertkitError(
                        f"characters {first} to {last} are not {entity!r:.40}; count from 0, the last included"
                    )
                start = first + len(entity) - len(entity.lstrip())
                yield Span(start, start + len(entity.strip()), whole(kind))


def overlap(spans: Sequence[Span], text: str) -> str | None:
    """What to say of entities that share characters; None if none do. They must be in order."""
    for one, two in pairwise(spans):
        if two.start < one.end:
            names = [f"{text[span.start : span.end]!r:.40} ({span.label})" for span in (one, two)]
            return f"the entities {names[0]} and {names[1]} overlap; keep one of them"
    return None
