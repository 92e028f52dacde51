"""Words with tags: CoNLL columns, folders of seq.in, seq.out and label, CLUENER, tokens in JSONL → `TaggedExample`s.

In: a `LabelledFile`. Out: for each sentence its place, and its example or its problem. Imports `labelled_files.py`.

Tags may be IOB1, IOB2, BIOES, BILOU or BMES, or bare letters or names. One rule converts all of them into spans: B, S,
U or a different name starts an entity; E, L, S, U end it; any other tag continues it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError
from albertkit.tasks.examples import Span, TaggedExample, text_problem
from albertkit.tasks.readers.json_files import Rows
from albertkit.tasks.readers.labelled_files import LabelledFile, ReadOptions, clean, count_noun, list_names

FOLDER_FILES = ("seq.in", "seq.out", "label")
SPACES = re.compile(r" +")  # and no others: a word may be an ideographic space
LETTERS = frozenset("BIESLUM")
PREFIXED_TAG = re.compile(r"([BIESLUM])-(.+)", re.S)
UNDERLINED_TAG = re.compile(r"[BIES]_.+", re.S)
BARE_LETTERS = "tags are letters without names, so the label of all entities is 'entity'"
BARE_NAMES = "tags have no B- or I-, so adjacent words with the same tag are one entity"
CLUENER_PROBLEM = (
    '\'label\' is missing or has another form; write it as {"name": {"叶老桂": [[9, 11]]}}, or {} for no entity'
)
TAG_FIELDS = ("labels", "tags", "ner_tags", "slots")


@dataclass
class TaggedSentence:
    """Words and their tags, as in the file."""

    line: int
    words: list[str]
    tags: list[str]
    intent: str | None = None


def read_tagged(file: LabelledFile) -> Rows:
    """The sentences of any file of words and tags."""
    if file.path.is_dir():
        yield from _make_examples(_folder_sentences(file), file, file.path / "seq.in")
    elif file.is_json:
        rows = list(file.objects())
        if rows and "text" in rows[0][1] and "tokens" not in rows[0][1]:
            yield from ((line, _cluener_example(row, f"{file.path}:{line}")) for line, row in rows)
        else:
            yield from _make_examples(_json_sentences(rows, file), file, file.path)
    elif file.format == "parquet":
        raise AlbertkitError(
            f"{file.path} is Parquet, which is supported only for texts. Write words and labels as JSONL."
        )
    else:
        yield from _make_examples(_column_sentences(file), file, file.path)


def _make_examples(sentences: Iterator[TaggedSentence], file: LabelledFile, path: Path) -> Rows:
    """Sentences → examples; whether tags are bare letters or names is decided for the whole file."""
    all_sentences = list(sentences)
    tags = {tag for sentence in all_sentences for tag in sentence.tags} - {"O", ""}
    is_bare = bool(tags) and not any(map(PREFIXED_TAG.fullmatch, tags))
    has_letters = tags <= LETTERS
    if is_bare:
        _check_underlines(tags, path)
        file.notes.append(BARE_LETTERS if has_letters else BARE_NAMES)
    for sentence in all_sentences:
        prefixed = sentence.tags
        if is_bare:
            prefixed = [tag if tag in ("O", "") else f"{tag}-entity" if has_letters else f"I-{tag}" for tag in prefixed]
        odd = next((tag for tag in prefixed if tag != "O" and not PREFIXED_TAG.fullmatch(tag)), None)
        if odd is not None:
            yield sentence.line, f"the label {odd!r:.40} is neither O nor of the form B-PER; correct it"
            continue
        text, words = join_words(sentence.words)
        example = TaggedExample(text, words, spans_of(prefixed, words), sentence.intent, f"{path}:{sentence.line}")
        yield sentence.line, example


def _check_underlines(tags: set[str], path: Path) -> None:
    """Raise an error for B_PER and I_PER, which are not names; E_MAIL next to PHONE is a name."""
    underlined = sorted(tag for tag in tags if UNDERLINED_TAG.fullmatch(tag))
    if underlined and (len(underlined) == len(tags) or {"B", "I"} <= {tag[0] for tag in underlined}):
        correct = f"{underlined[0][0]}-{underlined[0][2:]}"
        raise AlbertkitError(
            f"{path} has the label {underlined[0]!r:.40}; the letter must be followed by a hyphen, as in B-PER. "
            f"Write {correct!r:.40}, and correct the other labels too."
        )


def spans_of(tags: Sequence[str], words: Sequence[tuple[int, int]]) -> tuple[Span, ...]:
    """The entities of tagged words, in any tagging scheme."""
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


# Files → sentences ---------------------------------------------------------------------------------------------------


def _column_sentences(file: LabelledFile) -> Iterator[TaggedSentence]:
    """CoNLL: one word per line, an empty line between sentences; the first cell is the word, the last the tag."""
    width = word = tag = start = 0
    rows: list[list[str]] = []
    for number, line in chain(file.lines(), [(-1, "")]):
        cells = line.split("\t") if "\t" in line else SPACES.split(line.strip(" "))
        if not line.strip() or cells[0] == "-DOCSTART-":
            if rows and file.problems.lines.isdisjoint(range(start, start + len(rows))):
                tags = [cells[tag].strip() for cells in rows]
                yield TaggedSentence(start, [cells[word] for cells in rows], tags)
            rows = []
            continue
        if not rows and line.startswith("# ") and len(cells) != width:
            continue  # a comment, as in CoNLL-U
        if not width:
            width = len(cells)
            word, tag = _word_and_tag_columns(width, file.options, f"line {number} of {file.path}")
        start = start if rows else number
        if len(cells) != width:
            problem = f"{count_noun(len(cells), 'cell')} where the first line has {width}"
            file.problems.add(number, f"{problem}; write a word and its label, and an empty line between sentences")
        elif not cells[word]:
            file.problems.add(number, "there is no word; write one")
        rows.append(cells)


def _word_and_tag_columns(width: int, options: ReadOptions, where: str) -> tuple[int, int]:
    """The columns of words and tags, from 0."""
    columns = []
    for role, column in (("text", options.text_column or 1), ("label", options.label_column or width)):
        if not str(column).isdecimal() or not 1 <= int(column) <= width:
            raise AlbertkitError(
                f"{where} has columns 1 to {width} and no {column!r}. Pass a number (--{role}-column)."
            )
        columns.append(int(column) - 1)
    if columns[0] == columns[1]:
        raise AlbertkitError(f"{where} needs two cells, a word and its label, but has {width}. Add the label.")
    return columns[0], columns[1]


def _folder_sentences(file: LabelledFile) -> Iterator[TaggedSentence]:
    """ATIS and SNIPS: three files with one line per sentence."""
    columns = []
    for name in FOLDER_FILES:
        lines = [line for _, line in file.lines(name)]
        while lines and not lines[-1].strip():
            lines.pop()
        columns.append(lines)
    counts = [len(lines) for lines in columns]
    if len(set(counts)) > 1:
        each = ", ".join(f"{name} {count:,}" for name, count in zip(FOLDER_FILES, counts, strict=True))
        raise AlbertkitError(f"the files in {file.path} differ in lines ({each}); each must have one line per sentence")
    for number, (text, tag_line, intent) in enumerate(zip(*columns, strict=True), 1):
        words, tags = text.split(), tag_line.split()
        if problem := text_problem(intent, "intent") or _count_problem(words, tags):
            file.problems.add(number, problem)
        else:
            yield TaggedSentence(number, words, tags, intent.strip())


def _count_problem(words: Sequence[str], tags: Sequence[str]) -> str | None:
    if len(words) == len(tags):
        return None
    return f"{count_noun(len(words), 'word')} and {count_noun(len(tags), 'label')}; write one label per word"


def _json_sentences(rows: Sequence[tuple[int, dict[str, Any]]], file: LabelledFile) -> Iterator[TaggedSentence]:
    """{"tokens": [...], "labels": [...]}, and an "intent" if there is one."""
    for line, row in rows:
        words: Any = row.get("tokens")
        tags: Any = next((row[name] for name in TAG_FIELDS if name in row), None)
        if not _are_texts(words) or not words:
            problem = f"needs a list of words in 'tokens', but has {list_names(row)}; write non-empty texts"
        elif tags is None:
            problem = f"needs a list of labels in 'labels', but has {list_names(row)}; write one per word"
        elif not _are_texts(tags):
            problem = "the labels are not all texts; replace numbers with names such as B-PER"
        else:
            problem = _count_problem(words, tags) or ""
        if problem:
            file.problems.add(line, problem)
        else:
            yield TaggedSentence(line, words, tags, clean(row.get("intent")))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) and part for part in value)


def _cluener_example(row: dict[str, Any], where: str) -> TaggedExample | str:
    """{"text": …, "label": {kind: {entity: [[first, last], …]}}}; every character but white space is a word."""
    text, label = row.get("text"), row.get("label")
    if not isinstance(text, str):
        return text_problem(text, "text") or ""
    try:
        spans = sorted(_cluener_spans(text, label), key=lambda span: (span.start, span.end))
    except AlbertkitError as error:
        return str(error)
    except (TypeError, ValueError, AttributeError):
        return CLUENER_PROBLEM
    words = tuple((i, i + 1) for i, character in enumerate(text) if not character.isspace())
    return TaggedExample(text, words, tuple(spans), None, where)


def _cluener_spans(text: str, label: Any) -> Iterator[Span]:
    """Entities without white space at their ends; another form raises an error."""
    for kind, entities in label.items():
        for entity, places in entities.items():
            for first, last in places:
                if not entity.strip() or not 0 <= first <= last < len(text) or text[first : last + 1] != entity:
                    raise AlbertkitError(
                        f"characters {first} to {last} are not {entity!r:.40}; count from 0, the last included"
                    )
                start = first + len(entity) - len(entity.lstrip())
                yield Span(start, start + len(entity.strip()), kind)
