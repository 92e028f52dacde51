"""Convert SQuAD to pairs for `albertkit finetune generate`: answer and sentence as the source, question as the target.

python runs/questions.py train-v1.1.json pairs.jsonl [--most 20000]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / "src")]

from albertkit.data.sentences import split_sentences  # noqa: E402
from albertkit.tasks.examples import QuestionExample, RewriteExample  # noqa: E402
from albertkit.tasks.readers import read_examples  # noqa: E402

CONTEXT_CHARACTERS = 300  # kept before and after an answer if its sentence is not found


def question_generation_examples(
    questions: Sequence[QuestionExample], separator: str = " | "
) -> Iterator[RewriteExample]:
    """One example per answerable question."""
    for example in questions:
        if example.answers and not example.is_impossible:
            start, answer = example.answers[0]
            sentence = sentences_around(example.context, start, start + len(answer))
            yield RewriteExample(f"{answer}{separator}{sentence}", example.question, example.where)


def sentences_around(text: str, start: int, end: int) -> str:
    """The sentences of a text that contain its characters from `start` to `end`."""
    kept, position = [], 0
    cut = text[max(0, start - CONTEXT_CHARACTERS) : end + CONTEXT_CHARACTERS].strip()
    for sentence in split_sentences(text):
        begin = text.find(sentence, position)
        if begin < 0:  # splitting changed the white space
            return cut
        position = begin + len(sentence)
        if begin < end and position > start:
            kept.append(sentence)
    return " ".join(kept) or cut


def main() -> None:
    """Read the questions and write the pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("squad", type=Path)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--most", type=int, help="most pairs to write, spread evenly over the file")
    args = parser.parse_args()
    made = list(question_generation_examples(read_examples("answer", args.squad).examples))
    step = max(1, -(-len(made) // args.most)) if args.most else 1
    lines = [json.dumps({"source": e.source, "target": e.target}, ensure_ascii=False) + "\n" for e in made[::step]]
    args.pairs.parent.mkdir(parents=True, exist_ok=True)
    beside = args.pairs.with_name(f".{args.pairs.name}.{os.getpid()}")
    beside.write_text("".join(lines), encoding="utf-8")
    beside.replace(args.pairs)


if __name__ == "__main__":
    main()
