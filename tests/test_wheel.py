"""What is published: a wheel and an sdist, built offline, installed beside the sources' absence, and used without
torch.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

import albertkit
from tests.conftest import ROOT

LARGEST = 26_000_000  # bytes, with four built-in models
BLOCKED = ("torch", "transformers", "sklearn", "scipy", "matplotlib", "starlette", "msgspec", "pyarrow")


def tracked() -> set[str]:
    """Files of the package in the sources, as a published one would have them."""
    there = (p for p in (ROOT / "src" / "albertkit").rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    return {str(p.relative_to(ROOT / "src")) for p in there}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Path]:
    """(wheel, sdist)."""
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    place = str(tmp_path_factory.mktemp("dist"))
    wheel = next(WheelBuilder(str(ROOT)).build(directory=place, versions=["standard"]))
    return Path(wheel), Path(next(SdistBuilder(str(ROOT)).build(directory=place, versions=["standard"])))


@pytest.fixture(scope="module")
def site(built, tmp_path_factory) -> Path:
    """The wheel installed into a folder of its own, without its dependencies, which come from this environment."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--target"]
    subprocess.run([*command, str(target), str(built[0])], check=True, capture_output=True)
    return target


def python(site: Path, code: str, cwd: Path) -> str:
    """Run code with the installed package first, the sources away and what the base install lacks blocked."""
    blocked = f"import sys\nfor name in {BLOCKED}: sys.modules[name] = None\n"
    kept = [p for p in sys.path if p and not Path(p).resolve().is_relative_to(ROOT / "src") and p != str(ROOT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *kept])}
    environment.pop("PYTHONHOME", None)
    ran = subprocess.run(
        [sys.executable, "-S", "-c", blocked + code], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_wheel_holds_the_package_and_nothing_else(built):
    names = set(zipfile.ZipFile(built[0]).namelist())
    info = {name for name in names if ".dist-info/" in name}
    assert names - info == tracked()
    assert {"albertkit/py.typed", "albertkit/serve/page/index.html", "albertkit/models/small/spiece.model"} <= names
    assert {Path(name).name for name in info} == {
        "METADATA",
        "WHEEL",
        "RECORD",
        "entry_points.txt",
        "LICENSE",
        "NOTICE",
    }
    assert built[0].stat().st_size < LARGEST


def test_its_metadata(built):
    archive = zipfile.ZipFile(built[0])
    name = next(n for n in archive.namelist() if n.endswith("METADATA"))
    about = HeaderParser().parsestr(archive.read(name).decode())
    assert about["Version"] == albertkit.__version__ and about["License-Expression"] == "Apache-2.0"
    base = [text for text in about.get_all("Requires-Dist") if "extra ==" not in text]
    assert not any(text.startswith(BLOCKED) for text in base)
    assert f"## {albertkit.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").replace(
        "[", ""
    ).replace("]", "")


def test_the_sdist_builds_tests_and_explains_itself(built):
    with tarfile.open(built[1]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for wanted in ("pyproject.toml", "PKG-INFO", "README.md", "README.zh-CN.md", "CHANGELOG.md", "SECURITY.md", "LICENSE", "NOTICE",
                   "Makefile", "constraints.txt", "requirements/serve.txt", "docs/build_site.py", "tests/conftest.py", "tests/docs/doc_commands.py", "docs/generate.py",
                   "bench/inference.py", "examples/notes.txt", "deploy/kubernetes.yaml", "src/albertkit/py.typed"):  # fmt: skip
        assert wanted in names, wanted
    stray = [
        name for name in names if re.search(r"__pycache__|\.pyc$|(^|/)\.venv|(^|/)\.cache|\.egg-info|^site/", name)
    ]
    assert not stray


def test_a_wheel_from_the_sdist_is_the_same(built, tmp_path):
    """Whoever builds from the sdist gets what we publish."""
    from hatchling.builders.wheel import WheelBuilder

    with tarfile.open(built[1]) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    again = next(WheelBuilder(str(source)).build(directory=str(tmp_path / "out"), versions=["standard"]))
    first, second = (
        {i.filename: i.CRC for i in zipfile.ZipFile(path).infolist() if not i.filename.endswith("RECORD")}
        for path in (built[0], again)
    )
    assert first == second


def test_it_works_without_torch_and_without_the_sources(site, tmp_path):
    out = python(
        site,
        "import albertkit, json\n"
        "from albertkit import Albert\n"
        "albert = Albert()\n"
        "like, unlike = albert.similarity('a man plays the guitar', ['someone makes music', 'the train was late'])\n"
        "print(json.dumps([albertkit.__file__, bool(like > unlike), albert.fill_mask('paris is the [MASK] of france.')[0][0].word]))",
        tmp_path,
    )
    file, right, word = json.loads(out)
    assert Path(file).is_relative_to(site) and right and word == "capital"


def test_the_command_line_of_the_wheel(site, tmp_path):
    call = "from albertkit.cli.entry_point import main\nsys.argv = ['albertkit', *{}]\nmain()"
    assert python(site, call.format(["--version"]), tmp_path).strip().endswith(albertkit.__version__)
    shown = python(site, call.format(["embed", "a text", "--dim", "8"]), tmp_path)
    assert len(re.findall(r"-?\d\.\d+", shown)) >= 8
    points = next(site.glob("albertkit-*.dist-info")) / "entry_points.txt"
    assert "albertkit = albertkit.cli:main" in points.read_text()


def test_what_is_missing_is_named(site, tmp_path):
    code = (
        "from albertkit.cli.entry_point import main\n"
        "sys.argv = ['albertkit', 'finetune', 'classify', 'x.tsv', '-o', 'out']\n"
        "try: main()\nexcept SystemExit as end: print(end.code)"
    )
    assert python(site, code, tmp_path).strip() == "2"
