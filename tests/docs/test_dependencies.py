"""What is imported is declared, what is declared is imported, and each package has its row and its reason."""

from __future__ import annotations

import ast
import re
import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT, program

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

BEHIND_NEED = {"train_vocabulary.py"}  # modules of an extra, imported after `need` has found it
UNTESTED = {  # declared, and not pinned
    "pyspark": "needs Java; its test runs where it is installed",
    "chromadb": "brings 170 MB, a client of Kubernetes among them; its test runs where it is installed",
    "lancedb": "180 MB more to install; its tests run where it is installed",
}
SOURCE = ROOT / "src" / "albertkit"
MADE_OF = {"httptools": "uvicorn's parser; protocol.py chooses it by name"}  # declared, needed, and imported by another


def pinned() -> dict[str, str]:
    """constraints.txt: name → version."""
    found = re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    return {canonicalize_name(name): version for name, version in found}


@pytest.fixture(scope="module")
def pages():
    return program("docs/dependencies")


def imported(text: str) -> set[str]:
    """Top-level names of modules: import statements, and strings given to `need` and `import_module`."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in ("need", "import_module") and isinstance(node.args[0].value, str):
                found.add(node.args[0].value)
    return {name.split(".")[0] for name in found}


def third_party() -> set[str]:
    found = set().union(*(imported(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")))
    return found - set(sys.stdlib_module_names) - {"albertkit", "tomllib", "typing_extensions", "_typeshed"}


def test_the_scan_sees_every_way_to_import():
    text = "import a.b\nfrom c.d import e\nfrom . import f\ndef g():\n    import h\nneed('i.j', 'x', 'y')\nimportlib.import_module('k')"
    assert imported(text) == {"a", "c", "h", "i", "k"}


def test_every_dependency_has_a_reason_and_nothing_else_has(pages):
    wanted = {name for names in pages.declared().values() for name in names}
    assert wanted == set(pages.WHY)


def test_every_dependency_is_imported_and_every_import_is_declared(pages):
    modules = {why.module: name for name, why in pages.WHY.items()}
    found = third_party()
    assert found - set(modules) == set(), "imported in src and not declared in pyproject.toml"
    assert set(modules) - found == set(MADE_OF), "declared in pyproject.toml and not imported in src"
    for module in MADE_OF:
        assert any(f'"{module}"' in path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")), module


def test_the_base_install_imports_only_its_own(pages):
    """What the running half imports when it is imported belongs to the base install."""
    base = {pages.WHY[name].module for name in pages.declared()["base"]} | set(sys.stdlib_module_names) | {"albertkit"}
    paths = [*(SOURCE / "runtime").glob("*.py"), SOURCE / "artifact.py", *(SOURCE / "tokenizer").glob("*.py")]
    for path in [path for path in paths if path.name not in BEHIND_NEED]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        top = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
        assert imported(ast.unparse(top)) <= base, path.name


def test_the_table_has_a_row_for_each_package(pages):
    text = pages.MARKED.search(pages.PAGE.read_text(encoding="utf-8"))[0]
    rows = re.findall(r"^\| (\S+) \| [^|]+ \| ([^|]+) \| \S+ \| \S+ \|", text, re.M)
    found = {name: parts.split(", ") for name, parts in rows if name not in ("package", "---")}
    declared = pages.declared()
    assert set(found) == {name for names in declared.values() for name in names}
    for name, parts in found.items():
        assert parts == [part for part, names in declared.items() if name in names], f"{name}; run  make docs"


def test_the_table_shows_the_versions_that_are_tested(pages):
    pins, text = pinned(), pages.PAGE.read_text(encoding="utf-8")
    for name in set(pages.WHY) - set(UNTESTED):
        version = pins.get(canonicalize_name(name))
        assert version, f"{name} is not pinned"
        assert re.search(rf"^\| {name} \| [^|]+ \| [^|]+ \| {re.escape(version)} \|", text, re.M), (
            f"{name}; run  make docs"
        )


def test_pins_are_within_the_ranges():
    pins = pinned()
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lists = [
        about["project"]["dependencies"],
        *about["project"]["optional-dependencies"].values(),
        *(about["dependency-groups"][group] for group in ("dev", "build", "lock", "site")),
    ]
    for wanted in [Requirement(text) for part in lists for text in part if isinstance(text, str)]:
        if wanted.name not in ("albertkit", *UNTESTED):
            assert pins[canonicalize_name(wanted.name)] in wanted.specifier, wanted


def test_a_tensorflow_checkpoint_alone_needs_the_checksum_library():
    tree = ast.parse((SOURCE / "interop" / "google_tf.py").read_text(encoding="utf-8"))
    top = ast.Module([node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)], [])
    assert "google_crc32c" not in imported(ast.unparse(top))
