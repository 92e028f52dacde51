"""Nested JSON: questions (SQuAD, CMRC 2018), choices (RACE), dialogues (WOZ 2.0), texts with intents (CLINC150).

In: a `LabelledFile`. Out: for each row its place, and its example or its problem. Imports `labelled_files.py`;
`read_examples` uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from albertkit.errors import AlbertkitError, type_with_article
from albertkit.tasks.classify import OUT_OF_SCOPE
from albertkit.tasks.examples import ChoiceExample, DialogueTurn, QuestionExample, TextExample, text_problem
from albertkit.tasks.readers.labelled_files import LabelledFile, clean, list_names

DEV_NAMES = {"dev", "val", "valid", "validation", "validate"}
ANSWERS_PROBLEM = '\'answers\' is missing or has another form; write it as [{"text": …, "answer_start": …}]'
SLOTS_PROBLEM = "'turn_label' and the slots of 'belief_state' must be lists like [[\"food\", \"thai\"]]; correct them"
QUESTIONS = "SQuAD or CMRC 2018 JSON, or JSONL with question, context and answers"
CHOICES = "RACE, or JSONL with context, question, choices and answer"
DIALOGUES = "dialogues as in WOZ 2.0"
Rows = Iterator[tuple[int | str, Any]]  # line or name of a row, and its example or its problem
QuestionRow = tuple[int | str, dict[str, Any]]  # line or name, the question with its context and answers


# SQuAD, CMRC 2018 ----------------------------------------------------------------------------------------------------


def read_questions(file: LabelledFile) -> Rows:
    """SQuAD 1.1 and 2.0, CMRC 2018, or flat rows with question, context and answers."""
    data = file.json_object.get("data")
    is_tree = isinstance(data, list)
    rows = list[QuestionRow](_tree_rows(file, data or []) if is_tree else file.objects(QUESTIONS))
    may_lack_answers = not is_tree or any("is_impossible" in row for _, row in rows)
    for number, (place, row) in enumerate(rows, 1):
        if "context" not in row or "question" not in row:
            yield (
                place,
                f"needs 'question' and 'context', but has {list_names(row)}; write them, or use the SQuAD format",
            )
            continue
        is_impossible = bool(row.get("is_impossible"))
        answers = [] if is_impossible else _parse_answers(row.get("answers"))
        if answers is None:
            yield place, ANSWERS_PROBLEM
            continue
        is_impossible = is_impossible or (not answers and may_lack_answers)
        id, where = str(row.get("id", number)), f"{file.path}:{place}"
        yield place, QuestionExample(id, clean(row["question"]), row["context"], tuple(answers), is_impossible, where)


def _tree_rows(file: LabelledFile, data: list[Any]) -> Iterator[QuestionRow]:
    """data → paragraphs → qas."""
    for article_place, article in _objects_in(data, "data", file):
        paragraphs = article.get("paragraphs")
        for place, paragraph in _objects_in(paragraphs, f"{article_place}.paragraphs", file):
            if problem := text_problem(paragraph.get("context"), "context"):
                file.problems.add(place, problem)
                continue
            for name, row in _objects_in(paragraph.get("qas"), f"{place}.qas", file):
                place_of_row = f"question {row['id']}" if "id" in row else name
                yield place_of_row, {"question": None, **row, "context": paragraph["context"]}


def _objects_in(values: Any, place: str, file: LabelledFile) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a list with their places; any other value is a problem."""
    if not isinstance(values, list):
        file.problems.add(place, "this list is missing; the structure is data, paragraphs, qas")
        return
    for number, value in enumerate(values):
        if isinstance(value, dict):
            yield f"{place}[{number}]", value
        else:
            file.problems.add(f"{place}[{number}]", f"contains {type_with_article(value)}; write an object in braces")


def _parse_answers(answers: Any) -> list[tuple[Any, Any]] | None:
    """Starts and texts, from a list of objects or an object of lists; None for another form."""
    if isinstance(answers, list) and all(isinstance(answer, dict) for answer in answers):
        return [(answer.get("answer_start"), answer.get("text")) for answer in answers]
    if isinstance(answers, dict):
        texts, starts = answers.get("text"), answers.get("answer_start")
        if isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts):
            return list(zip(starts, texts, strict=True))
    return None


# RACE ----------------------------------------------------------------------------------------------------------------


def read_choices(file: LabelledFile) -> Rows:
    """RACE as JSONL, or flat rows with context, question, choices and answer."""
    for line, row in file.objects(CHOICES):
        parts = _choice_parts(row)
        if not parts:
            yield (
                line,
                f"needs question, choices and answer, or the fields of RACE, but has {list_names(row)}; add them",
            )
        for number, (context, question, choices, answer) in enumerate(parts, 1):
            if isinstance(answer, str) and len(answer.strip().upper()) == 1:
                answer = ord(answer.strip().upper()) - ord("A")
            texts = tuple(map(clean, choices)) if isinstance(choices, list) else ()
            example = ChoiceExample(clean(context) or context, clean(question), texts, answer, f"{file.path}:{line}")
            yield f"line {line}, question {number}", example


def _choice_parts(row: dict[str, Any]) -> list[tuple[Any, Any, Any, Any]]:
    """(context, question, choices, answer) of one row; empty if it has another form."""
    if "article" not in row:
        answer = next((row[name] for name in ("right", "answer", "label") if name in row), None)
        choices = row.get("choices", row.get("options"))
        return [(row.get("context", ""), row.get("question", ""), choices, answer)] if choices is not None else []
    questions, options = row.get("questions"), row.get("options")
    if not isinstance(questions, list) or not isinstance(options, list):
        return []
    answers = row.get("answers")
    answers = answers if isinstance(answers, list) else [None] * len(questions)
    if not len(questions) == len(options) == len(answers):
        return []
    return [(row["article"], *question) for question in zip(questions, options, answers, strict=True)]


# WOZ 2.0 -------------------------------------------------------------------------------------------------------------


def read_turns(file: LabelledFile) -> Rows:
    """WOZ 2.0: a list of dialogues. The state contains the informed slots; a request belongs only to its turn."""
    for line, row in file.objects(DIALOGUES):
        turns, name = row.get("dialogue"), str(row.get("dialogue_idx", line))
        if not isinstance(turns, list):
            yield line, f"needs a list of turns in 'dialogue', but has {list_names(row)}; write it as in WOZ 2.0"
            continue
        for number, turn in enumerate(turns):
            place = f"line {line}, turn {number}"
            labels = _turn_labels(turn) if isinstance(turn, dict) else "contains no object; write one in braces"
            if isinstance(labels, str):
                yield place, labels
            else:
                texts = clean(turn.get("system_transcript") or ""), clean(turn.get("transcript"))
                yield place, DialogueTurn(name, number, *texts, *labels, f"{file.path}:{line}")


def _turn_labels(turn: dict[str, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]] | str:
    """The state after a turn and its updates, as (slot, value); or the problem."""
    acts: Any = turn.get("belief_state")
    updates: Any = turn.get("turn_label")
    if not isinstance(acts, list) or not all(isinstance(act, dict) for act in acts):
        return f"needs a list of acts in 'belief_state', but has {list_names(turn)}; write it as in WOZ 2.0"
    informed = [act.get("slots") for act in acts if act.get("act") == "inform"]
    if not all(map(_are_slots, (*informed, updates))):
        return SLOTS_PROBLEM
    state = dict.fromkeys((slot, value) for slots in informed for slot, value in slots)
    return tuple(state), tuple(dict.fromkeys((slot, value) for slot, value in updates))


def _are_slots(slots: Any) -> bool:
    """Whether it is [[slot, value], …]."""
    return isinstance(slots, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair) for pair in slots
    )


# CLINC150: {"train": [[text, intent], …], "oos_train": …} ------------------------------------------------------------


def is_clinc(file: LabelledFile) -> bool:
    """Whether a file is one object of lists of lists."""
    parts = file.json_object.values()
    return bool(parts) and all(isinstance(p, list) and all(isinstance(row, list) for row in p) for p in parts)


def read_clinc(file: LabelledFile) -> Rows:
    """A split, including its out-of-scope texts."""
    parts, split = file.json_object, file.options.split or "train"
    names = [name for name in parts if is_split(name.removeprefix(f"{OUT_OF_SCOPE}_"), split) or name == split]
    if not names:
        raise AlbertkitError(
            f"{file.path} has no split {split!r}; it has {list_names(parts)}. Pass one of these with --split."
        )
    file.notes.append(f"read from {' and '.join(names)}; {OUT_OF_SCOPE} is the label of out-of-scope texts")
    for name in sorted(names, key=lambda name: name.startswith(OUT_OF_SCOPE)):
        for number, row in enumerate(parts[name], 1):
            problem = "write a text and an intent" if len(row) != 2 else text_problem(row[1], "intent")
            place = f"{name} {number}"
            yield place, problem or TextExample(clean(row[0]), None, clean(row[1]), f"{file.path}:{place}")


def is_split(name: str, split: str | None) -> bool:
    """Whether a name denotes a split: dev, val and validation are the same."""
    return name == split or (name in DEV_NAMES and split in DEV_NAMES)
