"""SQuAD questions to pairs for `albertkit finetune generate`: the answer and its sentence as source, the question as target.

python runs/questions.py train-v1.1.json pairs.jsonl [--most 20000]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / "src")]

from albertkit.tasks.generation import question_generation_examples  # noqa: E402
from albertkit.tasks.readers import read_examples  # noqa: E402


def main() -> None:
    """Read questions, write pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("squad", type=Path)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--most", type=int, help="at most so many, spread over the file")
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
