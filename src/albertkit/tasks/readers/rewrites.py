"""Tables → `RewriteExample` examples: a text in one column, what is to be written from it in another. And questions → rewrites.

In: a file and `ReadOptions`, whose text column is the source and whose label column the target; or SQuAD questions. Out: `RewriteExample`s.
Before this file: `tables.py` loads csv, tsv, JSONL and Parquet; after it: `reading.py`, `generate.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from albertkit.data.sentences import split_sentences
from albertkit.errors import AlbertkitError
from albertkit.tasks.examples import QuestionExample, RewriteExample
from albertkit.tasks.readers.column_roles import WRITTEN, Table, asked
from albertkit.tasks.readers.labelled_files import Problems, ReadOptions, fault, whole
from albertkit.tasks.readers.tables import load

NEAR = 300  # characters of a text without sentences that are kept before and behind an answer


def read_rewrites(path: Path, options: ReadOptions, problems: Problems) -> tuple[list[RewriteExample], list[str]]:
    """The rows of a table as examples, and notes."""
    table = load(path, replace(options, kind="single"), problems)
    if not table.rows:
        return [], []
    source, target = columns_of(table, options)
    notes = [f"source in column {table.title(source)}"]
    if target is not None:
        notes = [f"{notes[0]}, target in column {table.title(target)}"]
    examples = []
    for line, row in table.rows:
        written = None if target is None else row[target]
        wrong = fault(row[source], "source")
        if written is not None or options.labelled:
            wrong = wrong or fault(written, "target")
        if wrong:
            problems.add(line, wrong)
            continue
        kept = None if written is None else whole(written).strip()
        examples.append(RewriteExample(whole(row[source]).strip(), kept, f"{path}:{line}"))
    return examples, notes


def columns_of(table: Table, options: ReadOptions) -> tuple[int, int | None]:
    """The columns of source and target: as asked for, by well-known names, or the first and the second of two."""
    source = asked(table, "text", options.text_column)
    target = asked(table, "label", options.label_column)
    places = {name.casefold(): place for place, name in reversed(list(enumerate(table.names or [])))}
    for one, other in WRITTEN:
        if source is None and target is None and one in places and other in places:
            source, target = places[one], places[other]
    if table.width == 2 and (source is None or target is None):
        source = (0 if target is None else 1 - target) if source is None else source
        target = 1 - source
    if source is None and target is None and not options.labelled:
        names = [one for one, _ in WRITTEN if one in places]
        source = places[names[0]] if names else 0 if table.width == 1 else None
    if source is None or (target is None and options.labelled) or source == target:
        raise AlbertkitError(
            f"it is not clear which columns of {table.name} hold source and target; it has {table.titles}: "
            "name both (--text-column for the source, --label-column for the target)"
        )
    return source, target


def question_generation_examples(
    questions: Sequence[QuestionExample], between: str = " | "
) -> Iterator[RewriteExample]:
    """SQuAD the other way round: from an answer and the sentence it stands in, the question."""
    for example in questions:
        if example.answers and not example.is_impossible:
            start, answer = example.answers[0]
            sentence = sentences_around(example.context, start, start + len(answer))
            yield RewriteExample(f"{answer}{between}{sentence}", example.question, example.where)


def sentences_around(text: str, start: int, end: int) -> str:
    """The sentences of a text that hold its characters from `start` to `end`."""
    kept, at = [], 0
    for sentence in split_sentences(text):
        begins = text.find(sentence, at)
        if begins < 0:  # white space inside was changed: cut around the answer instead
            return text[max(0, start - NEAR) : end + NEAR].strip()
        at = begins + len(sentence)
        if begins < end and at > start:
            kept.append(sentence)
    return " ".join(kept) or text[max(0, start - NEAR) : end + NEAR].strip()
