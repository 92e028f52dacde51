"""JSON trees → questions, choices and turns: SQuAD and CMRC 2018, RACE, WOZ 2.0, and flat rows of the same.

In: a file and `ReadOptions`. Out: `QuestionExample`s, `ChoiceExample`s or `DialogueTurn`s, and notes. Before this file: `files.py`; after it:
`reading.py`.
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
    counted,
    fault,
    form_of,
    loads,
    objects,
    text_of,
    told,
    whole,
)

Place = int | str  # a line, or the name of a question or turn
Asked = tuple[Place, str, dict[str, Any]]  # where, context, question with its answers


def json_form(path: Path, options: ReadOptions, what: str) -> str:
    """json or jsonl; a table is refused, with what is read instead of it."""
    form = form_of(path, options)
    if form not in ("json", "jsonl"):
        raise AlbertkitError(
            f"{path} is no JSON; this task reads {what}: write the examples so (--format jsonl if they are)"
        )
    return form


# SQuAD, CMRC 2018 ----------------------------------------------------------------------------------------------------


def read_questions(path: Path, options: ReadOptions, problems: Problems) -> tuple[list[QuestionExample], list[str]]:
    """SQuAD 1.1 and 2.0, CMRC 2018, or flat rows with question, context and answers."""
    form = json_form(path, options, "SQuAD or CMRC 2018 JSON, or JSONL with question, context and answers")
    file = loads(text_of(path)) if form != "jsonl" else None
    data = file.get("data") if file else None
    asked = list(_in_tree(data, problems) if isinstance(data, list) else _in_rows(path, form, problems))
    second = not isinstance(data, list) or any("is_impossible" in row for _, _, row in asked)  # may lack answers
    examples, moved = [], 0
    for number, (place, context, row) in enumerate(asked, 1):
        made = _question(context, row, options, second)
        if isinstance(made, str):
            problems.add(place, made)
            continue
        answers, impossible, away = made
        moved += away
        question, id = whole(row["question"]).strip(), whole(str(row.get("id", number)))
        examples.append(QuestionExample(id, question, context, answers, impossible, f"{path}:{place}"))
    notes = [f"{counted(moved, 'answer')} not where the file says, but nearby"] if moved else []
    if none := sum(example.is_impossible for example in examples):
        notes.append(
            f"{none:,} of {counted(len(examples), 'question')} taken as unanswerable (is_impossible, or no answers)"
        )
    return examples, notes


def _in_tree(data: list[Any], problems: Problems) -> Iterator[Asked]:
    """data → paragraphs → qas."""
    for i, article in enumerate(data):
        for j, paragraph in enumerate(_list(article, "paragraphs", f"data[{i}]", problems)):
            place = f"data[{i}].paragraphs[{j}]"
            context: Any = paragraph.get("context") if isinstance(paragraph, dict) else None
            if wrong := fault(context, "context"):
                problems.add(place, wrong)
                continue
            context = whole(context)
            for k, row in enumerate(_list(paragraph, "qas", place, problems)):
                if isinstance(row, dict):
                    yield whole(f"question {row['id']}") if "id" in row else f"{place}.qas[{k}]", context, row
                else:
                    problems.add(f"{place}.qas[{k}]", f"holds a {type(row).__name__}; write an object in braces")


def _list(node: Any, key: str, place: str, problems: Problems) -> list[Any]:
    found = node.get(key) if isinstance(node, dict) else None
    if isinstance(found, list):
        return found
    problems.add(place, f"has no list {key!r}; the tree is data, paragraphs, qas")
    return []


def _in_rows(path: Path, form: str, problems: Problems) -> Iterator[Asked]:
    for line, row in objects(path, "jsonl" if form == "jsonl" else "json", problems):
        if "context" not in row or "question" not in row:
            problems.add(
                line, f"needs 'question' and 'context', and has {told(row)}; write them, or a tree as SQuAD does"
            )
        elif wrong := fault(row["context"], "context"):
            problems.add(line, wrong)
        else:
            yield line, whole(row["context"]), row


def _question(
    context: str, row: dict[str, Any], options: ReadOptions, second: bool
) -> tuple[tuple[tuple[int, str], ...], bool, int] | str:
    """The answers, whether there can be none, and how many stood elsewhere; or what is wrong."""
    if wrong := fault(row.get("question"), "question"):
        return wrong
    impossible = bool(row.get("is_impossible"))
    given = [] if impossible else _answers(row.get("answers"))
    if given is None and options.labelled:
        return '\'answers\' is missing or has another form than [{"text": …, "answer_start": …}]; write it like this'
    if given == [] and not impossible and options.labelled and not second:
        return "there is no answer; give one, or mark the question with is_impossible"
    answers = placed(context, [(start, text) for text, start in given or ()])
    return answers if isinstance(answers, str) else (answers[0], impossible or (given == [] and second), answers[1])


def placed(context: str, given: Iterable[tuple[Any, Any]]) -> tuple[tuple[tuple[int, str], ...], int] | str:
    """Answers (start, text) where they stand in the context, and how many stood elsewhere; or what is wrong."""
    answers, away = [], 0
    for start, text in given:
        if wrong := fault(text, "answer"):
            return wrong
        text = whole(text)
        bare = text.strip()
        start = int(start) + text.index(bare) if isinstance(start, Integral) else 0
        found = nearest_occurrence(context, bare, start)
        if found is None:
            return f"the answer {bare!r:.60} is not in the context; correct it"
        away += found != start
        answers.append((found, bare))
    return tuple(answers), away


def _answers(raw: Any) -> list[tuple[Any, Any]] | None:
    """Texts and where they start: from a list of objects, or from an object of lists."""
    if isinstance(raw, list) and all(isinstance(answer, dict) for answer in raw):
        return [(answer.get("text"), answer.get("answer_start")) for answer in raw]
    if isinstance(raw, dict) and isinstance(raw.get("text"), list) and isinstance(raw.get("answer_start"), list):
        pairs = list(zip(raw["text"], raw["answer_start"], strict=False))
        return pairs if len(raw["text"]) == len(raw["answer_start"]) else None
    return None


def nearest_occurrence(context: str, text: str, start: int) -> int | None:
    """Where the text stands in the context: at `start`, else as near to it as it does."""
    start = max(0, start)
    before, after = context.rfind(text, 0, start + len(text)), context.find(text, start)
    return min((place for place in (before, after) if place >= 0), key=lambda p: abs(p - start), default=None)


CHOICES = "RACE, or JSONL with context, question, choices and right"


# RACE ----------------------------------------------------------------------------------------------------------------


def read_choices(path: Path, options: ReadOptions, problems: Problems) -> tuple[list[ChoiceExample], list[str]]:
    """RACE (JSONL, or its folders of .txt files), or flat rows with context, question, choices and right."""
    examples: list[ChoiceExample] = []
    for file in sorted(path.rglob("*.txt")) if path.is_dir() else [path]:
        own = Problems(str(file)) if path.is_dir() else problems
        for line, row in objects(file, json_form(file, options, CHOICES), own):
            made = [_choice(*one, options) for one in _in_article(row)]
            if not made:
                made = [f"needs question, choices and right, or those of RACE, and has {told(row)}; write them"]
            for number, choice in enumerate(made, 1):
                if isinstance(choice, str):
                    own.add(f"line {line}, question {number}", choice)
                else:
                    context, question, choices, right = choice
                    examples.append(ChoiceExample(context, question, choices, right, f"{file}:{line}"))
        if own is not problems:
            problems.include(own)
    return examples, []


def _in_article(row: dict[str, Any]) -> list[tuple[Any, Any, Any, Any]]:
    """(context, question, choices, right) of one row; none if it has another form."""
    if "article" not in row:
        right = next((row[name] for name in ("right", "answer", "label") if name in row), None)
        choices = row.get("choices", row.get("options"))
        return [(row.get("context", ""), row.get("question", ""), choices, right)] if choices is not None else []
    questions, options = row.get("questions"), row.get("options")
    if not isinstance(questions, list) or not isinstance(options, list):
        return []
    answers = row.get("answers")
    answers = answers if isinstance(answers, list) else [None] * len(questions)
    if not len(questions) == len(options) == len(answers):
        return []
    return [(row["article"], *rest) for rest in zip(questions, options, answers, strict=True)]


def _choice(
    context: Any, question: Any, choices: Any, right: Any, options: ReadOptions
) -> tuple[str, str, tuple[str, ...], int | None] | str:
    """The parts of a choice, or what is wrong with them."""
    if not isinstance(choices, list) or len(choices) < 2:
        return "there must be a list of at least two choices; write them as texts"
    asked = question if context == "" else context if question == "" else None
    wrong = fault(asked, "question") if asked is not None else fault(context, "context") or fault(question, "question")
    wrong = wrong or next((w for choice in choices if (w := fault(choice, "choice"))), None)
    if wrong:
        return wrong
    if isinstance(right, str) and len(right.strip()) == 1:
        right = ord(right.strip().upper()) - ord("A")
    if right is None and not options.labelled:
        pass
    elif not isinstance(right, int) or isinstance(right, bool) or not 0 <= right < len(choices):
        last = chr(ord("A") + len(choices) - 1)
        return f"the right choice must be a letter from A to {last}, or its number from 0 to {len(choices) - 1}; correct it"
    return whole(context).strip(), whole(question).strip(), tuple(whole(choice).strip() for choice in choices), right


# WOZ 2.0 -------------------------------------------------------------------------------------------------------------


def read_turns(path: Path, options: ReadOptions, problems: Problems) -> tuple[list[DialogueTurn], list[str]]:
    """WOZ 2.0: a list of dialogues. A state is what was informed; a request belongs to its turn alone."""
    examples = []
    for line, row in objects(path, json_form(path, options, "dialogues as WOZ 2.0 has them"), problems):
        turns, name = row.get("dialogue"), whole(str(row.get("dialogue_idx", line)))
        if not isinstance(turns, list):
            problems.add(line, f"needs a list of turns in 'dialogue', and has {told(row)}; write them as WOZ 2.0 does")
            continue
        for number, turn in enumerate(turns):
            place = f"line {line}, turn {number}"
            made = _turn(turn, options)
            if isinstance(made, str):
                problems.add(place, made)
            else:
                system, user, state, said = made
                examples.append(DialogueTurn(name, number, system, user, state, said, f"{path}:{line}"))
    return examples, []


Pairs = tuple[tuple[str, str], ...]


def _turn(turn: Any, options: ReadOptions) -> tuple[str, str, Pairs, Pairs] | str:
    """What system and user say, the state, and what the turn adds; or what is wrong."""
    if not isinstance(turn, dict):
        return f"holds a {type(turn).__name__}; write an object in braces"
    system, user = turn.get("system_transcript") or "", turn.get("transcript")
    wrong = fault(user, "transcript") or (fault(system, "system_transcript") if system != "" else None)
    if wrong:
        return wrong
    usual: Any = None if options.labelled else []
    said = _slots(turn.get("turn_label", usual))
    acts = turn.get("belief_state", usual)
    if not isinstance(acts, list) or not all(isinstance(act, dict) for act in acts):
        return f"needs a list of acts in 'belief_state', and has {told(turn)}; write them as WOZ 2.0 does"
    held = [_slots(act.get("slots")) for act in acts if act.get("act") == "inform"]
    if said is None or None in held:
        return "'turn_label' and the slots of 'belief_state' must be lists like [[\"food\", \"thai\"]]; correct them"
    state = dict.fromkeys(pair for slots in held for pair in slots or ())
    return whole(system).strip(), whole(user or "").strip(), tuple(state), said


def _slots(value: Any) -> Pairs | None:
    """[[slot, value], …], each once."""
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        return None
    if not all(isinstance(part, str) for pair in value for part in pair):
        return None
    return tuple(dict.fromkeys((whole(slot), whole(said)) for slot, said in value))
