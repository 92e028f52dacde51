"""Settings of Sphinx for `docs/build_site.py`, in both languages."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.search import SearchLanguage
from sphinx.search.en import SearchEnglish

sys.path.insert(0, str(Path(__file__).parent.parent))

import build_site

project = "albertkit"
html_title = "albertkit"
author = "The albertkit authors"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 4
myst_url_schemes = {"http": None, "https": None, "mailto": None, "site": "{{path}}", "site-anchor": "{{path}}#{{fragment}}"}  # fmt: skip
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
html_theme = "furo"
templates_path = ["."]
html_static_path: list[str] = []
html_show_sphinx = False
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
html_show_search_summary = False  # a browser does not let a page on a disk read other pages
html_sidebars = {
    "**": [
        "sidebar/brand.html", "sidebar/search.html", "sidebar/scroll-start.html", "sidebar/language.html",
        "sidebar/navigation.html", "sidebar/scroll-end.html",
    ]
}  # fmt: skip


class ChineseSearch(SearchLanguage):
    """Chinese without a dictionary: ideographs are indexed alone and in pairs, and queries are cut into pairs, so that a
    word is found inside any sentence.
    """

    lang = "zh"
    language_name = "Chinese"
    stopwords = SearchEnglish.stopwords
    js_splitter_code = r"""
var splitQuery = (query) => {
  const terms = [];
  for (const [run] of query.matchAll(/[\p{Script=Han}]+|[\p{Letter}\p{Number}_]+?(?=\p{Script=Han}|[^\p{Letter}\p{Number}_]|$)/gu)) {
    if (/^\p{Script=Han}{2}/u.test(run)) for (let i = 0; i + 1 < run.length; i++) terms.push(run.slice(i, i + 2));
    else terms.push(run);
  }
  return terms;
};
"""

    def split(self, input: str) -> list[str]:
        terms = []
        for run in re.findall(r"[\u4e00-\u9fff]+|[^\W\u4e00-\u9fff]+", input):
            terms.append(run)
            if "\u4e00" <= run[0] <= "\u9fff":
                terms += [*run, *(run[at : at + 2] for at in range(len(run) - 1))]
        return terms


def add_language_link(app: Sphinx, name: str, template: str, context: dict[str, Any], tree: object) -> None:
    """The address of the same page in the other language, or of its front page."""
    language = "zh" if app.config.language == "zh_CN" else "en"
    other = "en" if language == "zh" else "zh"
    file = next((page for page in build_site.pages(language) if build_site.inside(page, language) == f"{name}.md"), "")
    there = build_site.twin(file) or build_site.pages(other)[0]
    here = Path(build_site.site_path(file)).parent if file else Path("zh" if language == "zh" else ".", name).parent
    address = re.sub(r"\.md$", ".html", build_site.site_path(there))
    context["other_language"] = {
        "name": "中文" if other == "zh" else "English",
        "address": os.path.relpath(address, here),
    }
    context["english_reference"] = language == "zh" and os.path.relpath("reference/cli.html", here)


def setup(app: Sphinx) -> None:
    app.add_search_language(ChineseSearch)
    app.connect("html-page-context", add_language_link)
