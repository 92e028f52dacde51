"""Make the site: `make site`. Pages are taken as they lie in the repository, so that their links work on a code host
and here.

In: `mkdocs.yml`, the Markdown files of the repository's root and of `docs/`. Out: `site/`, which needs no other host:
no fonts, scripts or pictures from elsewhere; this is checked.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE, SITE = ROOT / "build" / "site-source", ROOT / "site"
KINDS = (".md", ".png", ".svg", ".css")
LOADED = re.compile(r"<(?:script|img|iframe|source|video|audio)\b[^>]*?\bsrc=[\"']?(https?:)?//|<link\b(?![^>]*rel=[\"']?canonical)[^>]*?\bhref=[\"']?(https?:)?//", re.I)  # fmt: skip
IMPORTED = re.compile(r"@import\s+[\"']?(?:url\()?[\"']?https?:|url\([\"']?https?:", re.I)


def gather(target: Path = SOURCE) -> Path:
    """The same tree as in the repository, of what a site shows; with the whole interface in place of its summary."""
    shutil.rmtree(target, ignore_errors=True)
    for path in [*ROOT.glob("*.md"), *(p for p in (ROOT / "docs").rglob("*") if p.suffix in KINDS)]:
        copy = target / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    interface = target / "docs" / "api.md"
    interface.write_text(whole(interface.read_text(encoding="utf-8")), encoding="utf-8")
    for name in ("LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, target / name)
    return target


def whole(text: str) -> str:
    """Each marked entry of docs/api.md becomes a directive for mkdocstrings."""
    return re.sub(r"<!-- site: (\S+) -->\n\n(```text\n.*?\n```)\n\n.*?(?=\n#|\Z)", r"\2\n\n::: \1\n", text, flags=re.S)


def foreign(site: Path = SITE) -> list[str]:
    """What pages would load from other hosts."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css"):
            text = path.read_text(encoding="utf-8")
            rule = LOADED if path.suffix == ".html" else IMPORTED
            found += [f"{path.relative_to(site)}: {hit.group()[:120]}" for hit in rule.finditer(text)]
    return found


def main() -> None:
    from mkdocs.__main__ import cli

    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")
    gather()
    cli(["build", "--strict", "-f", str(ROOT / "mkdocs.yml"), "-d", str(SITE)], standalone_mode=False)
    if found := foreign():
        sys.exit("the site asks other hosts:\n" + "\n".join(found))
    print(
        f"{SITE.relative_to(ROOT)}/ has {len(list(SITE.rglob('*.html')))} pages; open {SITE.relative_to(ROOT)}/index.html"
    )


if __name__ == "__main__":
    main()
