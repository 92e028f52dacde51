"""JSON trees: questions (SQuAD, CMRC 2018), choices (RACE) and dialogue turns (WOZ 2.0), and flat rows of them.

In: a file and `ReadOptions`. Out: `QuestionExample`s, `ChoiceExample`s or `DialogueTurn`s, and notes. Before this file:
`labelled_files.py`; after it: `read_examples.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from numbers import Integral
from pathlib import Path
from typing import Any

from albertkit.errors import AlbertkitError
from albertkit.tasks.examples import ChoiceExample, DialogueTurn, QuestionExample
from albertkit.tasks.readers.labelled_files import (
    Problems,
    ReadOptions,
    clean,
    count_noun,
    file_format,
    file_text,
    json_objects,
    list_names,
    parse_object,
    text_problem,
)
from albertkit.text_reader import replace_surrogates

QUESTIONS = "SQuAD or CMRC 2018 JSON, or JSONL with question, context and answers"
CHOICES = "RACE, or JSONL with context, question, choices and answer"
DIALOGUES = "dialogues as in WOZ 2.0"
Answers = tuple[tuple[int, str], ...]  # start and text
QuestionRow = tuple[int | str, str, dict[str, Any]]  # line or name, context, question with its answers
SlotValues = tuple[tuple[str, str], ...]


def _json_format(path: Path, options: ReadOptions, expected: str) -> str:
    """json or jsonl; another format is an error."""
    format = file_format(path, options)
    if format not in ("json", "jsonl"):
        raise AlbertkitError(f"{path} is not JSON; this task reads {expected}. Pass --format jsonl if it is.")
    return format


# SQuAD, CMRC 2018 ----------------------------------------------------------------------------------------------------


def read_questions(path: Path, options: ReadOptions, problems: Problems) -> tuple[list[QuestionExample], list[str]]:
    """SQuAD 1.1 and 2.0, CMRC 2018, or flat rows with question, context and answers."""
    format = _json_format(path, options, QUESTIONS)
    file = parse_object(file_text(path)) if format != "jsonl" else None
    data = file.get("data") if file else None
    rows = list(_tree_rows(data, problems) if isinstance(data, list) else _flat_rows(path, format, problems))
    may_lack_answers = not isinstance(data, list) or any("is_impossible" in row for _, _, row in rows)
    examples, moved = [], 0
    for number, (place, context, row) in enumerate(rows, 1):
        parsed = _parse_question(context, row, options, may_lack_answers)
        if isinstance(parsed, str):
            problems.add(place, parsed)
            continue
        answers, is_impossible, count = parsed
        moved += count
        id = replace_surrogates(str(row.get("id", number)))
        examples.append(QuestionExample(id, clean(row["question"]), context, answers, is_impossible, f"{path}:{place}"))
    notes = [f"{count_noun(moved, 'answer')} not where the file says, but nearby"] if moved else []
    if none := sum(example.is_impossible for example in examples):
        total = count_noun(len(examples), "question")
        notes.append(f"{none:,} of {total} taken as unanswerable (is_impossible, or no answers)")
    return examples, notes


def _tree_rows(data: list[Any], problems: Problems) -> Iterator[QuestionRow]:
    """data → paragraphs → qas."""
    for i, article in enumerate(data):
        for j, paragraph in enumerate(_child_list(article, "paragraphs", f"data[{i}]", problems)):
            place = f"data[{i}].paragraphs[{j}]"
            context: Any = paragraph.get("context") if isinstance(paragraph, dict) else None
            if problem := text_problem(context, "context"):
                problems.add(place, problem)
                continue
            for k, row in enumerate(_child_list(paragraph, "qas", place, problems)):
                name = f"{place}.qas[{k}]"
                if isinstance(row, dict):
                    name = replace_surrogates(f"question {row['id']}") if "id" in row else name
                    yield name, replace_surrogates(context), row
                else:
                    problems.add(name, f"contains a {type(row).__name__}; write an object in braces")


def _child_list(node: Any, key: str, place: str, problems: Problems) -> list[Any]:
    children = node.get(key) if isinstance(node, dict) else None
    if isinstance(children, list):
        return children
    problems.add(place, f"has no list {key!r}; the tree is data, paragraphs, qas")
    return []


def _flat_rows(path: Path, format: str, problems: Problems) -> Iterator[QuestionRow]:
    for line, row in json_objects(path, format, problems):
        if "context" not in row or "question" not in row:
            fields = list_names(row)
            problems.add(line, f"needs 'question' and 'context', and has {fields}; write them, or a tree as in SQuAD")
        elif problem := text_problem(row["context"], "context"):
            problems.add(line, problem)
        else:
            yield line, replace_surrogates(row["context"]), row


def _parse_question(
    context: str, row: dict[str, Any], options: ReadOptions, may_lack_answers: bool
) -> tuple[Answers, bool, int] | str:
    """The answers, whether the question is impossible, and how many answers were moved; or the problem."""
    if problem := text_problem(row.get("question"), "question"):
        return problem
    is_impossible = bool(row.get("is_impossible"))
    raw = [] if is_impossible else _raw_answers(row.get("answers"))
    if raw is None and options.labelled:
        return '\'answers\' is missing or not like [{"text": …, "answer_start": …}]; write it like this'
    if raw == [] and not is_impossible and options.labelled and not may_lack_answers:
        return "there is no answer; give one, or mark the question with is_impossible"
    located = locate_answers(context, [(start, text) for text, start in raw or ()])
    if isinstance(located, str):
        return located
    return located[0], is_impossible or (raw == [] and may_lack_answers), located[1]


def locate_answers(context: str, answers: Iterable[tuple[Any, Any]]) -> tuple[Answers, int] | str:
    """Answers (start, text) with their place in the context, and how many were elsewhere; or the problem."""
    located, moved = [], 0
    for start, text in answers:
        if problem := text_problem(text, "answer"):
            return problem
        text = replace_surrogates(text)
        bare = text.strip()
        start = int(start) + text.index(bare) if isinstance(start, Integral) else 0
        found = nearest_occurrence(context, bare, start)
        if found is None:
            return f"the answer {bare!r:.60} is not in the context; correct it"
        moved += found != start
        located.append((found, bare))
    return tuple(located), moved


def _raw_answers(answers: Any) -> list[tuple[Any, Any]] | None:
    """Texts and starts, from a list of objects or an object of lists; None for another form."""
    if isinstance(answers, list) and all(isinstance(answer, dict) for answer in answers):
        return [(answer.get("text"), answer.get("answer_start")) for answer in answers]
    if isinstance(answers, dict):
        texts, starts = answers.get("text"), answers.get("answer_start")
        if isinstance(texts, list) and isinstance(starts, list) and len(texts) == len(starts):
            return list(zip(texts, starts, strict=True))
    return None


def nearest_occurrence(context: str, text: str, start: int) -> int | None:
    """Where the text is in the context: at `start`, or as near to it as possible."""
    start = max(0, start)
    before, after = context.rfind(text, 0, start + len(text)), context.find(text, start)
    return min((place for place in (before, after) if place >= 0), key=lambda p: abs(p - start), default=None)


# RACE ----------------------------------------------------------------------------------------------------------------


def read_choices(path: Path, options: ReadOptions, problems: Problems) -> tuple[list[ChoiceExample], list[str]]:
    """RACE (JSONL, or its folders of .txt files), or flat rows with context, question, choices and answer."""
    examples: list[ChoiceExample] = []
    for file in sorted(path.rglob("*.txt")) if path.is_dir() else [path]:
        own = Problems(str(file)) if path.is_dir() else problems
        for line, row in json_objects(file, _json_format(file, options, CHOICES), own):
            parsed = [_parse_choice(*parts, options, f"{file}:{line}") for parts in _choice_parts(row)]
            if not parsed:
                fields = list_names(row)
                parsed = [f"needs question, choices and answer, or those of RACE, and has {fields}; write them"]
            for number, choice in enumerate(parsed, 1):
                if isinstance(choice, str):
                    own.add(f"line {line}, question {number}", choice)
                else:
                    examples.append(choice)
        if own is not problems:
            problems.include(own)
    return examples, []


def _choice_parts(row: dict[str, Any]) -> list[tuple[Any, Any, Any, Any]]:
    """(context, question, choices, answer) of one row; none if it has another form."""
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
    return [(row["article"], *rest) for rest in zip(questions, options, answers, strict=True)]


def _parse_choice(
    context: Any, question: Any, choices: Any, answer: Any, options: ReadOptions, where: str
) -> ChoiceExample | str:
    """The example, or the problem; one of context and question may be empty."""
    if not isinstance(choices, list) or len(choices) < 2:
        return "there must be a list of at least two choices; write them as texts"
    parts = {"context": context, "question": question}
    given = [name for name, text in parts.items() if text != ""] or ["question"]
    problems = [text_problem(parts[name], name) for name in given]
    problems += [text_problem(choice, "choice") for choice in choices]
    if problem := next((problem for problem in problems if problem), None):
        return problem
    if isinstance(answer, str) and len(answer.strip()) == 1:
        answer = ord(answer.strip().upper()) - ord("A")
    is_missing = answer is None and not options.labelled
    is_number = isinstance(answer, int) and not isinstance(answer, bool)
    if not is_missing and not (is_number and 0 <= answer < len(choices)):
        last = chr(ord("A") + len(choices) - 1)
        return f"the answer must be a letter from A to {last}, or a number from 0 to {len(choices) - 1}; correct it"
    return ChoiceExample(clean(context), clean(question), tuple(map(clean, choices)), answer, where)


# WOZ 2.0 -------------------------------------------------------------------------------------------------------------


def read_turns(path: Path, options: ReadOptions, problems: Problems) -> tuple[list[DialogueTurn], list[str]]:
    """WOZ 2.0: a list of dialogues. The state is what was informed; a request belongs to its turn alone."""
    examples = []
    for line, row in json_objects(path, _json_format(path, options, DIALOGUES), problems):
        turns, name = row.get("dialogue"), replace_surrogates(str(row.get("dialogue_idx", line)))
        if not isinstance(turns, list):
            problems.add(
                line, f"needs a list of turns in 'dialogue', and has {list_names(row)}; write it as in WOZ 2.0"
            )
            continue
        for number, turn in enumerate(turns):
            parsed = _parse_turn(turn, options)
            if isinstance(parsed, str):
                problems.add(f"line {line}, turn {number}", parsed)
            else:
                examples.append(DialogueTurn(name, number, *parsed, f"{path}:{line}"))
    return examples, []


def _parse_turn(turn: Any, options: ReadOptions) -> tuple[str, str, SlotValues, SlotValues] | str:
    """The texts of system and user, the state, and the updates of the turn; or the problem."""
    if not isinstance(turn, dict):
        return f"contains a {type(turn).__name__}; write an object in braces"
    system, user = turn.get("system_transcript") or "", turn.get("transcript")
    problem = text_problem(user, "transcript") or (text_problem(system, "system_transcript") if system != "" else None)
    if problem or user is None:
        return problem or ""
    default: Any = None if options.labelled else []
    updates = _slot_values(turn.get("turn_label", default))
    acts = turn.get("belief_state", default)
    if not isinstance(acts, list) or not all(isinstance(act, dict) for act in acts):
        return f"needs a list of acts in 'belief_state', and has {list_names(turn)}; write it as in WOZ 2.0"
    informed = [_slot_values(act.get("slots")) for act in acts if act.get("act") == "inform"]
    if updates is None or None in informed:
        return "'turn_label' and the slots of 'belief_state' must be lists like [[\"food\", \"thai\"]]; correct them"
    state = dict.fromkeys(pair for slots in informed for pair in slots or ())
    return clean(system), clean(user), tuple(state), updates


def _slot_values(value: Any) -> SlotValues | None:
    """[[slot, value], …], each once; None for another form."""
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        return None
    if not all(isinstance(part, str) for pair in value for part in pair):
        return None
    return tuple(dict.fromkeys((replace_surrogates(slot), replace_surrogates(text)) for slot, text in value))
