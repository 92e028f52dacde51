"""Run the tutorial's code and write what it gives into its text; run by hand, checked by `tests/docs/test_tutorial.py`.

    python docs/tutorial/make.py              # every chapter
    python docs/tutorial/make.py --check 1 4  # of these two, say what is stale, and end with code 1 if anything is

In: a chapter in English, `1-….md`, and its Chinese twin, `zh/1-….md`. Their code is the same but for comments, and is
run once, in a folder that is thrown away: `python` blocks in one namespace, `bash` blocks each in a shell of its own.
Out: what a block prints, as a `text` block below it, and in the sentences between blocks the value of each marked
expression, at the place where it stands:

    <!--=f"{V * H / 1e6:.2f} M"-->23.04 M<!--/-->

`docs/documents.md` and its twin have no code, but marks, which know what `facts` gives.

Only what is the same on every machine may be printed or marked: fixed seeds, few digits, no times. Int8 products are
rounded differently by different processors; `<!--±0.02-->` in the line above a block lets the numbers it prints differ
by so much before its output counts as stale.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DOCUMENTS = (HERE.parent / "documents.md", HERE.parent / "zh" / "documents.md")
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.S | re.M)
ABOUT = re.compile(r"<!--±([\d.]+)-->\n\Z")
NUMBER = re.compile(r"-?\d+\.?\d*")
MARK = re.compile(r"<!--=(.+?)-->.*?<!--/-->", re.S)
SECONDS = 120  # that one shell block may take


@dataclass(frozen=True)
class Page:
    """A chapter in one language: sentences, and the code blocks between them (one fewer)."""

    path: Path
    prose: list[str]
    code: list[tuple[str, str]]  # (python or bash, source)
    shown: list[str]  # what each block printed when the page was written

    @classmethod
    def read(cls, path: Path) -> Page:
        parts = BLOCK.split(path.read_text(encoding="utf-8"))
        return cls(path, parts[::4], list(zip(parts[1::4], parts[2::4], strict=True)), [p or "" for p in parts[3::4]])


def chapters() -> list[Path]:
    """The English chapters, in order."""
    return sorted(HERE.glob("[0-9]-*.md"))


def twins(chapter: Path) -> list[Page]:
    """The chapter in both languages, with the same code."""
    pages = [Page.read(chapter), Page.read(chapter.parent / "zh" / chapter.name)]
    english, chinese = ([without_comments(*block) for block in page.code] for page in pages)
    for number, (ours, theirs) in enumerate(zip(english, chinese, strict=False), 1):
        if ours != theirs:
            raise SystemExit(f"{chapter.name}: code block {number} differs between the two languages")
    if len(english) != len(chinese):
        raise SystemExit(f"{chapter.name}: {len(english)} code blocks in English, {len(chinese)} in Chinese")
    return pages


def without_comments(kind: str, code: str) -> tuple[str, str]:
    """Code as it is compared between languages."""
    if kind == "python":
        return kind, ast.dump(ast.parse(code))
    return kind, "\n".join(re.sub(r"(^|\s)#.*", "", line).rstrip() for line in code.splitlines())


def run(kind: str, code: str, space: dict[str, Any]) -> str:
    """What a block prints."""
    if kind == "python":
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "chapter", "exec"), space)
        return printed.getvalue()
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", code], capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise SystemExit(f"a shell block ended with code {done.returncode}:\n{code}\n{done.stderr}")
    return done.stdout


def made(pages: list[Page]) -> list[str]:
    """The text of each page, with the output and the values that its code gives."""
    space: dict[str, Any] = {"__name__": "chapter"}
    texts = ["" for _ in pages]
    last = len(pages[0].code)
    for number in range(last + 1):
        for at, page in enumerate(pages):
            texts[at] += filled(page.prose[number], space)
        if number == last:
            break
        output = run(*pages[0].code[number], space)
        shown = "".join(f"{line.rstrip()}\n" for line in output.rstrip().splitlines())
        for at, page in enumerate(pages):
            about = ABOUT.search(page.prose[number])
            if about and near(shown, page.shown[number], float(about[1])):
                shown = page.shown[number]
            kind, code = page.code[number]
            texts[at] += f"```{kind}\n{code}```\n" + (f"\n```text\n{shown}```\n" if shown else "")
    return texts


def near(one: str, other: str, most: float) -> bool:
    """Whether two outputs differ in nothing but their numbers, and in those by `most` at most."""
    if NUMBER.sub("", one) != NUMBER.sub("", other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(abs(float(a) - float(b)) <= most + 1e-9 for a, b in pairs)


def filled(prose: str, space: dict[str, Any]) -> str:
    """Sentences with their marked expressions worked out."""
    return MARK.sub(lambda m: f"<!--={m[1]}-->{eval(m[1], space)}<!--/-->", prose)  # noqa: S307  our own page


@contextlib.contextmanager
def workplace() -> Any:
    """A folder to be thrown away, where `albertkit` is this interpreter's."""
    path, folder = os.environ["PATH"], Path.cwd()
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), path])
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        try:
            yield
        finally:
            os.chdir(folder)
            os.environ["PATH"] = path


def facts() -> dict[str, Any]:
    """What the page about the documents may speak of."""
    from albertkit import preset, shape_cost

    sys.path.insert(0, str(HERE))
    from verdicts import measured, tested

    base = preset("base")
    alone = base.replace(num_hidden_groups=base.num_hidden_layers)
    return {
        "measured": measured,
        "tested": tested,
        "preset": preset,
        "V": base.vocab_size,
        "E": base.embedding_size,
        "H": base.hidden_size,
        "shared": shape_cost(base).parameters["total"],
        "bert": shape_cost(base).unshared,
        "alone": shape_cost(alone).parameters["total"],
    }


def chapter_texts(chapter: Path) -> dict[Path, str]:
    """Run a chapter: what its pages ought to say."""
    pages = twins(chapter)
    with workplace():
        return dict(zip((page.path for page in pages), made(pages), strict=True))


def document_texts() -> dict[Path, str]:
    """What the pages about the documents ought to say."""
    space = facts()
    return {path: filled(path.read_text(encoding="utf-8"), space) for path in DOCUMENTS}


def stale(texts: dict[Path, str]) -> dict[Path, str]:
    """The pages that do not say what they ought to."""
    return {path: text for path, text in texts.items() if path.read_text(encoding="utf-8") != text}


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the tutorial's code and write what it gives into its text.")
    parser.add_argument("numbers", nargs="*", type=int, help="chapters; default all, and the page about the documents")
    parser.add_argument("--check", action="store_true", help="write nothing; end with code 1 if a page is stale")
    chosen = parser.parse_args()
    wrong = {} if chosen.numbers else stale(document_texts())
    for chapter in chapters():
        if not chosen.numbers or int(chapter.name[0]) in chosen.numbers:
            wrong |= stale(chapter_texts(chapter))
    for path, text in wrong.items():
        print(path.relative_to(HERE.parent.parent), "is stale" if chosen.check else "written")
        if not chosen.check:
            path.write_text(text, encoding="utf-8")
    if wrong and chosen.check:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
