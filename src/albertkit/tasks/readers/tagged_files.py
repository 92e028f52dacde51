"""Words with tags: CoNLL columns, folders of seq.in, seq.out and label, CLUENER, tokens in JSONL → `TaggedExample`s.

In: a file or folder and `ReadOptions`. Out: texts with the characters of their words and entities, and notes. Before
this file: `labelled_files.py`; after it: `read_examples.py`.

Tags may be IOB1, IOB2, BIOES, BILOU or BMES, or bare names; all become spans by one rule: B, S, U or another name
begins an entity; E, L, S, U end it; everything else continues it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError
from albertkit.tasks.examples import Span, TaggedExample
from albertkit.tasks.readers.labelled_files import (
    Problems,
    ReadOptions,
    clean,
    count_noun,
    file_format,
    file_lines,
    json_objects,
    list_names,
    text_problem,
)
from albertkit.text_reader import TEXT_LIMIT, replace_surrogates

FOLDER_FILES = ("seq.in", "seq.out", "label")
SPACES = re.compile(r" +")  # and no others: a word may be an ideographic space
LETTERS = frozenset("BIESLUM")
PREFIXED_TAG = re.compile(r"([BIESLUM])-(.+)", re.S)
UNDERLINED_TAG = re.compile(r"[BIES]_.+", re.S)
SCHEME_NOTES = {
    "letters": "tags are letters without names: their entities are called entity",
    "names": "tags have no B- or I-: neighbouring words with the same tag are one entity",
    "mixed": "some entities begin with B- and some with I-: both are taken as beginnings",
}
CLUENER_LABEL = '{"name": {"叶老桂": [[9, 11]]}}'
TAG_FIELDS = ("labels", "tags", "ner_tags", "slots")


@dataclass
class TaggedSentence:
    """Words and their tags, as in the file."""

    line: int
    words: list[str]
    tags: list[str] | None
    intent: str | None = None


def read_tagged(path: Path, options: ReadOptions, problems: Problems) -> tuple[list[TaggedExample], list[str]]:
    """The sentences of any file of words and tags, and notes."""
    if path.is_dir():
        return _make_examples(_folder_sentences(path, options, problems), path / "seq.in", problems)
    format = file_format(path, options)
    if format == "parquet":
        raise AlbertkitError(f"{path} is Parquet, which is read for texts only; write its words and labels as JSONL")
    if format not in ("json", "jsonl"):
        return _make_examples(_column_sentences(path, options, problems), path, problems)
    rows = list(json_objects(path, format, problems))
    if rows and "text" in rows[0][1] and "tokens" not in rows[0][1]:
        return list(_cluener_examples(rows, path, options, problems)), []
    return _make_examples(_json_sentences(rows, options, problems), path, problems)


def _make_examples(
    sentences: Iterable[TaggedSentence], path: Path, problems: Problems
) -> tuple[list[TaggedExample], list[str]]:
    """Sentences → examples; the scheme is that of the whole file."""
    sentences = list(sentences)
    scheme = tag_scheme([sentence.tags for sentence in sentences if sentence.tags is not None])
    if scheme == "names":
        _check_underlines({tag for sentence in sentences for tag in sentence.tags or ()} - {"O"}, path)
    examples = []
    for sentence in sentences:
        text, words = join_words(sentence.words)
        tags = [_add_prefix(tag, scheme) for tag in sentence.tags or ()]
        odd = next((tag for tag in tags if tag != "O" and not PREFIXED_TAG.fullmatch(tag)), None)
        if len(text) > TEXT_LIMIT:
            remedy = "put empty lines between sentences"
            problems.add(sentence.line, f"the sentence has over {TEXT_LIMIT:,} characters; {remedy}")
        elif odd is not None:
            problems.add(sentence.line, f"the label {odd!r:.40} is neither O nor like B-PER; correct it")
        else:
            spans = spans_of(tags, words)
            examples.append(TaggedExample(text, words, spans, sentence.intent, f"{path}:{sentence.line}"))
    return examples, [SCHEME_NOTES.get(scheme, f"labels are {scheme}")] if scheme else []


def _check_underlines(tags: set[str], path: Path) -> None:
    """Raise for B_PER and I_PER, which are not names; E_MAIL beside PHONE is one."""
    found = sorted(tag for tag in tags if UNDERLINED_TAG.fullmatch(tag))
    if found and (len(found) == len(tags) or {"B", "I"} <= {tag[0] for tag in found}):
        correct = f"{found[0][0]}-{found[0][2:]}"
        raise AlbertkitError(
            f"{path} has the label {found[0]!r:.40}; the letter of a label ends with a hyphen, as in B-PER: "
            f"write {correct!r:.40}, and the others like it"
        )


# Tags → spans --------------------------------------------------------------------------------------------------------


def tag_scheme(sentences: Sequence[Sequence[str]]) -> str:
    """IOB1, IOB2, mixed, BIOES (or BMES) or BILOU; letters or names if that is all; empty without tags.

    One entity in twenty may be an exception: the CoNLL 2003 files are IOB1 except for two.
    """
    seen = {tag for tags in sentences for tag in tags} - {"O"}
    letters = {tag[0] for tag in seen if PREFIXED_TAG.fullmatch(tag)}
    if not letters:
        return "" if not seen else "letters" if seen <= LETTERS else "names"
    if letters & set("LU"):
        return "BILOU"
    if letters & set("ESM"):
        return "BIOES"
    begins = {"B": 0, "I": 0}  # entities that do not follow another of their kind, by their first letter
    for tags in sentences:
        for before, tag in pairwise(("O", *tags)):
            if tag[:1] in begins and before[1:] != tag[1:]:
                begins[tag[0]] += 1
    few = sum(begins.values()) / 20
    return "IOB2" if begins["I"] <= few else "IOB1" if begins["B"] <= few else "mixed"


def _add_prefix(tag: str, scheme: str) -> str:
    """The tag as letter and name, also if the file has only one of them."""
    if tag == "O" or not tag:
        return tag
    return f"I-{tag}" if scheme == "names" else f"{tag}-entity" if scheme == "letters" else tag


def spans_of(tags: Sequence[str], words: Sequence[tuple[int, int]]) -> tuple[Span, ...]:
    """The entities of tagged words, in any scheme of letter and name."""
    spans: list[Span] = []
    current = ""  # the name of the entity that may continue
    for tag, (start, end) in zip(tags, words, strict=False):
        letter, name = tag[0], tag[2:]
        if letter != "O":
            if letter in "BSU" or name != current:
                spans.append(Span(start, end, name))
            else:
                spans[-1] = Span(spans[-1].start, end, name)
        current = "" if letter in "OESLU" else name
    return tuple(spans)


def join_words(words: Sequence[str]) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Words with single spaces between them, and the characters of each."""
    places, start = [], 0
    for word in words:
        places.append((start, start + len(word)))
        start += len(word) + 1
    return " ".join(words), tuple(places)


def overlap_problem(spans: Sequence[Span], text: str) -> str | None:
    """The problem with entities that share characters; None if none do. They must be in order."""
    for one, two in pairwise(spans):
        if two.start < one.end:
            names = [f"{text[span.start : span.end]!r:.40} ({span.label})" for span in (one, two)]
            return f"the entities {names[0]} and {names[1]} overlap; keep one of them"
    return None


# Files → sentences ---------------------------------------------------------------------------------------------------


def _column_sentences(path: Path, options: ReadOptions, problems: Problems) -> Iterator[TaggedSentence]:
    """CoNLL: one word per line, an empty line between sentences; the first cell is the word, the last the tag."""
    width = word = tag = start = 0
    rows: list[list[str]] = []
    for number, line in chain(file_lines(path, problems), [(-1, "")]):
        cells = line.split("\t") if "\t" in line else SPACES.split(line.strip(" "))
        if not line.strip() or cells[0] == "-DOCSTART-":
            if rows and problems.lines.isdisjoint(range(start, start + len(rows))):
                tags = [cells[tag].strip() for cells in rows] if word != tag else None
                yield TaggedSentence(start, [cells[word] for cells in rows], tags)
            rows = []
            continue
        if not rows and line.startswith("# ") and len(cells) != width:
            continue  # a comment, as in CoNLL-U
        if not width:
            width = len(cells)
            word, tag = _word_and_tag_columns(width, options, f"line {number} of {path}")
        start = start if rows else number
        if len(cells) != width:
            found = f"{count_noun(len(cells), 'cell')} where the first line has {width}"
            problems.add(number, f"{found}; write a word and its label, and an empty line between sentences")
        elif not cells[word]:
            problems.add(number, "there is no word; write one")
        rows.append(cells)


def _word_and_tag_columns(width: int, options: ReadOptions, where: str) -> tuple[int, int]:
    """The columns of words and tags, from 0; the same if there are no tags."""
    columns = []
    for role, column in (("text", options.text_column or 1), ("label", options.label_column or width)):
        if not str(column).isdecimal() or not 1 <= int(column) <= width:
            raise AlbertkitError(f"{where} has columns 1 to {width} and no {column!r}: pass a number (--{role}-column)")
        columns.append(int(column) - 1)
    if columns[0] == columns[1] and options.labelled:
        raise AlbertkitError(f"{where} needs two cells, a word and its label, and has {width}")
    return columns[0], columns[1]


def _folder_sentences(path: Path, options: ReadOptions, problems: Problems) -> Iterator[TaggedSentence]:
    """ATIS and SNIPS: three files with one line per sentence."""
    columns = []
    for name in FOLDER_FILES:
        if not (path / name).exists():
            names = list_names(sorted(p.name for p in path.iterdir()))
            raise AlbertkitError(
                f"{path} has no {name}; a folder of intents has {', '.join(FOLDER_FILES)}, and this one {names}"
            )
        own = problems if name == "seq.in" else Problems(str(path / name), options.skip_bad)
        lines = [line for _, line in file_lines(path / name, own)]
        while lines and not lines[-1].strip():
            lines.pop()
        columns.append(lines)
        if own is not problems:
            problems.include(own)
    counts = [len(lines) for lines in columns]
    if len(set(counts)) > 1:
        each = ", ".join(f"{name} {count:,}" for name, count in zip(FOLDER_FILES, counts, strict=True))
        raise AlbertkitError(f"the files in {path} differ in lines ({each}); each must have one line per sentence")
    for number, (text, tag_line, intent) in enumerate(zip(*columns, strict=True), 1):
        words, tags = text.split(), tag_line.split()
        problem = text_problem(text, "text") or text_problem(intent, "intent")
        if not problem and len(words) != len(tags):
            found = f"{count_noun(len(words), 'word')} in seq.in and {count_noun(len(tags), 'label')} in seq.out"
            problem = f"{found}; write one label per word"
        if problem:
            problems.add(number, problem)
        elif number not in problems.lines:
            yield TaggedSentence(number, words, tags, intent.strip())


def _json_sentences(
    rows: Iterable[tuple[int, dict[str, Any]]], options: ReadOptions, problems: Problems
) -> Iterator[TaggedSentence]:
    """{"tokens": [...], "labels": [...]}, and an "intent" if there is one."""
    for line, row in rows:
        words, intent = row.get("tokens"), row.get("intent")
        tags = next((row[name] for name in TAG_FIELDS if name in row), None)
        problem = None if intent is None else text_problem(intent, "intent")
        if not _are_texts(words) or not words:
            problem = f"needs a list of words in 'tokens', and has {list_names(row)}; write them as texts, none empty"
        elif tags is None and options.labelled:
            problem = f"needs a list of labels in 'labels', and has {list_names(row)}; write one per word"
        elif tags is not None and not _are_texts(tags):
            problem = "the labels are not all texts; write names such as B-PER, since numbers do not say what they mean"
        elif tags is not None and len(tags) != len(words):
            problem = f"{count_noun(len(words), 'word')} and {count_noun(len(tags), 'label')}; write one label per word"
        if problem:
            problems.add(line, problem)
        else:
            tags = None if tags is None else [replace_surrogates(tag) for tag in tags]
            intent = None if intent is None else clean(intent)
            yield TaggedSentence(line, [replace_surrogates(word) for word in words or ()], tags, intent)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) and part for part in value)


def _cluener_examples(
    rows: Iterable[tuple[int, dict[str, Any]]], path: Path, options: ReadOptions, problems: Problems
) -> Iterator[TaggedExample]:
    """{"text": …, "label": {kind: {entity: [[first, last], …]}}}; every character but white space is a word."""
    for line, row in rows:
        text, label = row.get("text"), row.get("label", None if options.labelled else {})
        problem = text_problem(text, "text")
        spans: list[Span] = []
        if not problem and isinstance(text, str):
            text = replace_surrogates(text)
            try:
                spans = sorted(_cluener_spans(text, label), key=lambda span: (span.start, span.end))
                problem = overlap_problem(spans, text)
            except AlbertkitError as error:
                problem = str(error)
            except (TypeError, ValueError, AttributeError):
                problem = f"'label' is missing or not as expected; write it like {CLUENER_LABEL}, or {{}} for no entity"
        if problem or not isinstance(text, str):
            problems.add(line, problem or "")
            continue
        words = tuple((i, i + 1) for i, character in enumerate(text) if not character.isspace())
        yield TaggedExample(text, words, tuple(spans), None, f"{path}:{line}")


def _cluener_spans(text: str, label: Any) -> Iterator[Span]:
    """Entities without white space at their ends; another form raises."""
    for kind, entities in label.items():
        for entity, places in entities.items():
            for first, last in places:
                is_there = 0 <= first <= last < len(text) and text[first : last + 1] == replace_surrogates(entity)
                if not is_there or not entity.strip():
                    raise AlbertkitError(
                        f"characters {first} to {last} are not {entity!r:.40}; count from 0, the last included"
                    )
                start = first + len(entity) - len(entity.lstrip())
                yield Span(start, start + len(entity.strip()), replace_surrogates(kind))
