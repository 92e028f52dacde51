"""Build the site: `make site`. Pages are written for a code host; this program lays them out for a site in two languages.

In: the Markdown pages of `NAVIGATION` and the files that they link to. Out: `site/` in English and `site/zh/` in
Chinese, each with a search of its own. The site works from a disk and loads nothing from another host; both are
checked. Sphinx builds it, because it has been maintained for eighteen years and its search needs no server.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
THEME = Path(__file__).parent / "site_theme"
GUIDES = ("install", "vectors", "stores", "classify", "entities", "questions", "dialogue", "pretraining", "distillation",
          "compression", "elastic", "serving", "web", "bulk", "explain", "own-layers", "migration")  # fmt: skip
NAVIGATION = {  # language → heading → pages in the order of the menu; the first page of a language is its front page
    "en": {
        "": ["README.md"],
        "Guides": [f"docs/guides/{name}.md" for name in GUIDES],
        "Reference": [f"docs/reference/{name}.md" for name in ("cli", "api", "artifact", "http")],
        "Results": [f"docs/results/{name}.md" for name in ("benchmarks", "models", "tasks", "data-size", "compression", "elastic", "ideas")],
        "Understand": [f"docs/understand/{name}.md" for name in ("architecture", "albert", "documents")],
        "Project": ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LOG.md"],
    },
    "zh": {
        "": ["README.zh-CN.md"],
        "指南": [f"docs/zh/guides/{name}.md" for name in GUIDES],
        "原理": [f"docs/zh/understand/{name}.md" for name in ("albert", "documents")],
    },
}  # fmt: skip
DEMOS = {  # language → model of the demo on its front page, and what to click
    "en": ("small", "Try it in this browser: sentence vectors and search without a server (downloads 9 MB once)"),
    "zh": ("small-zh", "在浏览器中试用：句向量与搜索，不需要服务器（首次下载 9 MB）"),
}
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"(^```.*?^```$)", re.S | re.M)
LOADED = re.compile(
    r"<(?:script|img|iframe|source|video|audio)\b[^>]*?\bsrc=[\"']?(https?:)?//"
    r"|<link\b(?![^>]*rel=[\"']?canonical)[^>]*?\bhref=[\"']?(https?:)?//",
    re.I,
)
IMPORTED = re.compile(r"@import\s+[\"']?(?:url\()?[\"']?https?:|url\([\"']?https?:", re.I)


def pages(language: str) -> list[str]:
    return [page for part in NAVIGATION[language].values() for page in part]


def site_path(file: str) -> str:
    """Where a file of the repository lies on the site, `.md` for pages: `zh/guides/vectors.md`, `images/page.png`."""
    for language in NAVIGATION:
        if file == pages(language)[0]:
            return "index.md" if language == "en" else f"{language}/index.md"
    if is_page(file):
        return file.removeprefix("docs/")
    if is_image(file):
        return f"images/{Path(file).name}"
    return f"files/{file}"


def twin(file: str) -> str | None:
    """The same page in the other language."""
    if file in (front := [pages(language)[0] for language in NAVIGATION]):
        return front[1 - front.index(file)]
    other = file.replace("docs/zh/", "docs/") if file.startswith("docs/zh/") else file.replace("docs/", "docs/zh/", 1)
    return other if other in pages("en") + pages("zh") and other != file else None


def lay_out(language: str, source: Path, demos: Path | None = None) -> list[str]:
    """Write the pages of a language to `source`, with links as the site needs them. Returns the files they link to."""
    linked: list[str] = []
    for page in pages(language):
        text = (ROOT / page).read_text(encoding="utf-8")
        parts = FENCE.split(text)
        parts[::2] = [LINK.sub(lambda m, page=page: m[1] + site_link(m[2], page, language, linked) + m[3], part) for part in parts[::2]]  # fmt: skip
        target = source / inside(page, language)
        target.parent.mkdir(parents=True, exist_ok=True)
        laid = "".join(parts)
        if page == pages(language)[0]:
            laid = with_demo(laid, language, demos) + menu(language)
        target.write_text(laid, encoding="utf-8")
    for image in linked:
        if is_image(image):
            target = source / site_path(image)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / image, target)
    return [file for file in linked if site_path(file).startswith("files/")]


def with_demo(text: str, language: str, demos: Path | None) -> str:
    """A front page with the demo before its first section; it loads when it is opened."""
    name, title = DEMOS[language]
    if demos is None or not (demos / name).is_dir():
        return text
    source = f"{'' if language == 'en' else '../'}demo/{name}/index.html"
    frame = f'<iframe src="{source}" title="{title}" loading="lazy" width="100%" height="900"></iframe>'
    before, heading, after = text.partition("\n## ")
    return f"{before}\n<details><summary>{title}</summary>{frame}</details>\n{heading}{after}"


def inside(file: str, language: str) -> str:
    """The path of a page or image in the sources of its language."""
    return site_path(file).removeprefix(f"{language}/")


def site_link(link: str, page: str, language: str, linked: list[str]) -> str:
    """A link of `page` as the site needs it: pages of the same language by their source, all else by its address."""
    if "://" in link or link.startswith(("#", "mailto:")):
        return link
    path, _, anchor = link.partition("#")
    file = os.path.relpath((ROOT / page).parent / path, ROOT)
    if not (ROOT / file).is_file():
        raise SystemExit(f"{page} links to {link}, which is not a file. Correct the link.")
    linked.append(file)
    anchor = f"#{anchor}" if anchor else ""
    if file in pages(language) or is_image(file):
        return os.path.relpath(inside(file, language), Path(inside(page, language)).parent) + anchor
    here = Path(site_path(page)).parent
    target = re.sub(r"\.md$", ".html", site_path(file)) if is_page(file) else site_path(file)
    return ("site-anchor:" if anchor else "site:") + os.path.relpath(target, here) + anchor


def is_page(file: str) -> bool:
    return any(file in pages(language) for language in NAVIGATION)


def is_image(file: str) -> bool:
    return Path(file).suffix in (".png", ".svg")


def menu(language: str) -> str:
    """The table of contents, hidden at the end of the front page."""
    lines = []
    for heading, part in NAVIGATION[language].items():
        names = [inside(page, language) for page in part if page != pages(language)[0]]
        if names:
            lines += ["", "```{toctree}", ":hidden:", f":caption: {heading}", "", *names, "```"]
    return "\n".join(lines) + "\n"


def foreign(site: Path) -> list[str]:
    """What pages would load from other hosts."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css"):
            rule = LOADED if path.suffix == ".html" else IMPORTED
            text = path.read_text(encoding="utf-8")
            found += [f"{path.relative_to(site)}: {hit.group()[:120]}" for hit in rule.finditer(text)]
    return found


def build(site: Path, work: Path, demos: Path | None = None) -> None:
    """Build both languages into `site`; `work` holds the sources and Sphinx's cache. A warning is an error.

    demos: folders of `albertkit export --web`, by model, for the front pages.
    """
    shutil.rmtree(site, ignore_errors=True)
    files: list[str] = []
    for language in NAVIGATION:
        source, target = work / language, site if language == "en" else site / language
        shutil.rmtree(source, ignore_errors=True)
        files += lay_out(language, source, demos)
        command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "-c", str(THEME),
                   "-D", f"language={'zh_CN' if language == 'zh' else 'en'}", "-d", str(work / f"{language}-cache"),
                   str(source), str(target)]  # fmt: skip
        if subprocess.run(command).returncode:
            raise SystemExit("The site was not built: correct the pages named above.")
    for file in set(files):
        target = site / site_path(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, target)
    if demos is not None and demos.is_dir():
        shutil.copytree(demos, site / "demo")
    if found := foreign(site):
        raise SystemExit("The site loads from other hosts:\n" + "\n".join(found))


def main() -> None:
    site = ROOT / "site"
    build(site, ROOT / "build" / "site", ROOT / "build" / "demo")
    print(f"site/ has {len(list(site.rglob('*.html')))} pages. Open site/index.html.")


if __name__ == "__main__":
    main()
