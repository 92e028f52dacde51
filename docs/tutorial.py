"""Run the code of “ALBERT explained” and write its output and numbers into the page; tests/docs/test_tutorial.py checks it.

    python docs/tutorial.py              # every section, and the page about the documents
    python docs/tutorial.py --check 1 4  # report what is stale in these two sections; exit with 1 if anything is

In: docs/understand/albert.md and its Chinese twin. Their code is the same except for comments. Each section (`## `) has
its own namespace and scratch folder, so that sections can run in any order. Out: what a block prints, as a `text` block
below it, and between blocks the value of each marked expression:

    <!--=f"{V * H / 1e6:.2f} M"-->23.04 M<!--/-->

docs/understand/documents.md and its twin have no code, but marks, evaluated with the names of `facts`.

Print only what is equal on every machine: fixed seeds, few digits, no times. `<!--±0.02-->` above a block is the
tolerance of its numbers, because processors round int8 products differently.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ALBERT = (DOCS / "understand" / "albert.md", DOCS / "zh" / "understand" / "albert.md")
DOCUMENTS = (DOCS / "understand" / "documents.md", DOCS / "zh" / "understand" / "documents.md")
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.S | re.M)
TOLERANCE = re.compile(r"<!--±([\d.]+)-->\n\Z")
NUMBER = re.compile(r"-?\d+\.?\d*")
MARK = re.compile(r"<!--=(.+?)-->.*?<!--/-->", re.S)


def sections(text: str) -> list[str]:
    """A page, cut before each `## ` heading."""
    return re.split(r"^(?=## )", text, flags=re.M)


def run_section(twins: tuple[str, str]) -> tuple[str, str]:
    """Run one section, given in both languages: the text that each should have."""
    english, chinese = (BLOCK.split(text) for text in twins)  # prose, code, output, prose, code, output, …, prose
    compare_code(english[1::3], chinese[1::3])
    namespace: dict[str, Any] = {"__name__": "section"}
    texts = ["", ""]
    with scratch_folder():
        for at in range(0, len(english), 3):
            for language, parts in enumerate((english, chinese)):
                texts[language] += fill_marks(parts[at], namespace)
            if at + 1 < len(english):
                printed = run_block(english[at + 1], namespace)
                for language, parts in enumerate((english, chinese)):
                    texts[language] += show_block(parts[at + 1], printed, parts[at + 2] or "", parts[at])
    return texts[0], texts[1]


def compare_code(english: list[str], chinese: list[str]) -> None:
    """Refuse sections whose code differs by more than comments."""
    if len(english) != len(chinese):
        raise SystemExit(f"{len(english)} code blocks in English, {len(chinese)} in Chinese")
    for number, (one, other) in enumerate(zip(english, chinese, strict=True), 1):
        if ast.dump(ast.parse(one)) != ast.dump(ast.parse(other)):
            raise SystemExit(f"code block {number} differs between the two languages:\n{one}")


def run_block(code: str, namespace: dict[str, Any]) -> str:
    """What a block prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "section", "exec"), namespace)
    return "".join(f"{line.rstrip()}\n" for line in printed.getvalue().rstrip().splitlines())


def show_block(code: str, printed: str, shown: str, prose_above: str) -> str:
    """A block with its output: the one on the page, if the new one is within its tolerance."""
    tolerance = TOLERANCE.search(prose_above)
    if tolerance and is_near(printed, shown, float(tolerance[1])):
        printed = shown
    return f"```python\n{code}```\n" + (f"\n```text\n{printed}```\n" if printed else "")


def is_near(one: str, other: str, tolerance: float) -> bool:
    """Whether two outputs differ only in their numbers, and in those by at most `tolerance`."""
    if NUMBER.sub("", one) != NUMBER.sub("", other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(abs(float(a) - float(b)) <= tolerance + 1e-9 for a, b in pairs)


def fill_marks(prose: str, namespace: dict[str, Any]) -> str:
    """Prose with its marked expressions evaluated."""
    return MARK.sub(lambda m: f"<!--={m[1]}-->{eval(m[1], namespace)}<!--/-->", prose)  # noqa: S307  our own page


@contextlib.contextmanager
def scratch_folder() -> Any:
    """Work in a temporary folder."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def facts() -> dict[str, Any]:
    """The names that marks on the page about the documents may use."""
    from albertkit import preset, shape_cost

    sys.path.insert(0, str(DOCS))
    from verdicts import measured, tested

    base = preset("base")
    unshared = base.replace(num_hidden_groups=base.num_hidden_layers)
    return {
        "measured": measured,
        "tested": tested,
        "preset": preset,
        "V": base.vocab_size,
        "E": base.embedding_size,
        "H": base.hidden_size,
        "shared": shape_cost(base).parameters["total"],
        "bert": shape_cost(base).unshared,
        "alone": shape_cost(unshared).parameters["total"],
    }


def documents_texts() -> dict[Path, str]:
    """What the pages about the documents should contain."""
    namespace = facts()
    return {path: fill_marks(path.read_text(encoding="utf-8"), namespace) for path in DOCUMENTS}


def albert_texts(pages: tuple[Path, Path] = ALBERT, numbers: list[int] | None = None) -> dict[Path, str]:
    """What the pages should contain, with these sections run (0 is the introduction); all by default."""
    parts = [sections(page.read_text(encoding="utf-8")) for page in pages]
    if len(parts[0]) != len(parts[1]):
        raise SystemExit(f"{len(parts[0])} sections in English, {len(parts[1])} in Chinese")
    for number in range(len(parts[0])) if numbers is None else numbers:
        parts[0][number], parts[1][number] = run_section((parts[0][number], parts[1][number]))
    return dict(zip(pages, map("".join, parts), strict=True))


def stale(texts: dict[Path, str]) -> dict[Path, str]:
    """The pages whose text differs."""
    return {path: text for path, text in texts.items() if path.read_text(encoding="utf-8") != text}


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Run the code of “ALBERT explained” and write its output into the page."
    )
    parser.add_argument("sections", nargs="*", type=int, help="default: all, and the page about the documents")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    options = parser.parse_args()
    wrong = stale(albert_texts(numbers=options.sections or None))
    if not options.sections:
        wrong |= stale(documents_texts())
    for path, text in wrong.items():
        print(path.relative_to(DOCS.parent), "is stale" if options.check else "written")
        if not options.check:
            path.write_text(text, encoding="utf-8")
    if wrong and options.check:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
