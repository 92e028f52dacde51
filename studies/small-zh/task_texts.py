"""The texts of the training examples of the Chinese sets, each as a document, for `albertkit corpus`.

python studies/small-zh/task_texts.py DATA OUT.txt
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "src"), str(Path(__file__).parents[1])]

from tasksets import SETS, load  # noqa: E402

NAMES = ("chnsenticorp", "afqmc", "cluener")

if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    texts = [
        text
        for name in NAMES
        for example in load(SETS[name], Path(sys.argv[1]))["train"]
        for text in (example.text, getattr(example, "pair", None))
        if text
    ]
    Path(sys.argv[2]).write_text("".join(f"{' '.join(text.split())}\n\n" for text in texts), encoding="utf-8")
