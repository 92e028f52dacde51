"""The site: every page is on it, it builds without a warning, and both searches work from a disk."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT, program

build_site = program("docs/build_site")
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")


def test_every_page_is_on_the_site():
    there = {str(page.relative_to(ROOT)) for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]}
    named = [page for language in build_site.NAVIGATION for page in build_site.pages(language)]
    assert len(named) == len(set(named))
    assert set(named) == there, f"to add to NAVIGATION: {there - set(named)}; to take out: {set(named) - there}"


def test_english_docs_have_at_most_31_pages():
    pages = [p for p in (ROOT / "docs").rglob("*.md") if "zh" not in p.relative_to(ROOT).parts]
    assert len(pages) <= 31, sorted(str(p) for p in pages)


def test_twins_point_at_each_other():
    for page in build_site.pages("zh"):
        other = build_site.twin(page)
        assert other is not None and build_site.twin(other) == page
    assert build_site.twin("docs/reference/cli.md") is None


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("sphinx", reason="sphinx is not installed; make test installs it")
    folder = tmp_path_factory.mktemp("site")
    build_site.build(folder / "site", folder / "work")  # ends with an error for a warning or a foreign host
    return folder / "site"


@pytest.mark.slow
def test_site_has_both_languages_and_the_linked_files(site):
    vectors = (site / "guides" / "vectors.html").read_text(encoding="utf-8")
    assert 'href="../zh/guides/vectors.html"' in vectors
    chinese = (site / "zh" / "guides" / "vectors.html").read_text(encoding="utf-8")
    assert 'href="../../guides/vectors.html"' in chinese and '<html class="no-js" lang="zh-CN"' in chinese
    for page in site.rglob("*.html"):
        for link in re.findall(r'href="([^"#?:]+)(?:#[^"]*)?"', page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.relative_to(site)}: {link}"


def test_front_pages_carry_the_demo_of_their_language(tmp_path):
    for language, (name, title) in build_site.DEMOS.items():
        (tmp_path / name).mkdir()
        page = build_site.with_demo("# albertkit\n\nA text.\n\n## Install\n", language, tmp_path)
        assert f"demo/{name}/index.html" in page and title in page and page.index("<iframe") < page.index("## Install")
        assert page.count('loading="lazy"') == 1 and build_site.with_demo("# a\n", language, None) == "# a\n"


@pytest.mark.slow
def test_a_page_that_loads_from_another_host_is_found(tmp_path):
    (tmp_path / "page.html").write_text('<script src="https://cdn.example.org/x.js"></script>')
    (tmp_path / "page.css").write_text('@import "https://cdn.example.org/x.css";')
    assert len(build_site.foreign(tmp_path)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "query", "page"),
    [
        (".", "quantize", "guides/compression.html"),
        (".", "early exit", "guides/elastic.html"),
        ("zh", "量化", "guides/compression.html"),
        ("zh", "句向量", "guides/vectors.html"),
        ("zh", "Python 安装", "guides/install.html"),
    ],
)
def test_search_works_from_a_disk(site, folder, query, page):
    playwright = pytest.importorskip("playwright.sync_api")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"there is no {CHROMIUM}")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        tab, errors = browser.new_page(), []
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto((site / folder / "index.html").as_uri())
        tab.locator("input[name=q]").first.fill(query)
        tab.keyboard.press("Enter")
        found = tab.locator(f'#search-results a[href*="{page}"]').first
        playwright.expect(found).to_be_visible(timeout=60_000)
        browser.close()
    assert not errors


@pytest.mark.slow
def test_search_of_a_word_that_is_nowhere_finds_nothing(site):
    index = (site / "zh" / "searchindex.js").read_text(encoding="utf-8")
    assert "\\u91cf\\u5316" in index or "量化" in index
    assert "龘龘" not in index and "\\u9f98\\u9f98" not in index
