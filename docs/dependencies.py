"""Write docs/dependencies.md: every package that albertkit asks for, why, and what it weighs. Run by `make docs`.

In: `pyproject.toml`, what is installed here (versions, files, licences), and the table `WHY`, the only part written by
hand. Out: the page. Sizes are of this machine's wheels, so the page is not compared byte by byte;
tests/docs/test_dependencies.py checks its rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "dependencies.md"


@dataclass(frozen=True)
class Why:
    """What no metadata tells about a package."""

    module: str
    keeper: str
    reason: str
    instead: str


WHY = {
    "click": Why("click", "Pallets", "the command line", "typer and rich, which are slower to start and bring more packages"),
    "google-crc32c": Why("google_crc32c", "Google", "checksums of TensorFlow checkpoints; loaded when one is read", "TensorFlow"),
    "ml-dtypes": Why("ml_dtypes", "JAX authors", "bfloat16 arrays in numpy, for checkpoints that hold them", "torch, to read such files"),
    "numpy": Why("numpy", "NumFOCUS", "arrays", "nothing"),
    "onnx": Why("onnx", "LF AI & Data", "the graph of the shared layer, and exported files", "writing protobuf by hand"),
    "onnxruntime": Why("onnxruntime", "Microsoft", "runs that graph", "torch, which is ten times as large"),
    "protobuf": Why("google", "Google", "SentencePiece models; onnx brings it anyway", "sentencepiece, or a parser of our own"),
    "safetensors": Why("safetensors", "Hugging Face", "weights on disk, without pickle", "pickle"),
    "tokenizers": Why("tokenizers", "Hugging Face", "cuts words into pieces, and learns vocabularies", "sentencepiece and a WordPiece of our own"),
    "tqdm": Why("tqdm", "its authors", "progress bars; tokenizers brings it anyway", "a bar of our own"),
    "torch": Why("torch", "PyTorch Foundation", "training, and computing on a GPU", "nothing"),
    "matplotlib": Why("matplotlib", "NumFOCUS", "the confusion matrix of a report", "drawing by hand"),
    "scikit-learn": Why("sklearn", "NumFOCUS", "metrics, heads on frozen vectors, and its own interface", "metrics of our own"),
    "scipy": Why("scipy", "NumFOCUS", "correlations", "formulas of our own"),
    "seqeval": Why("seqeval", "its author; no release since 2020", "entity F1 as others report it", "a measure that nobody could compare"),
    "tensorboardX": Why("tensorboardX", "its author", "metrics for TensorBoard", "torch's writer, which needs the tensorboard package"),
    "transformers": Why("transformers", "Hugging Face", "opens the teachers of `albertkit distill`", "readers for every other encoder"),
    "rouge-score": Why("rouge_score", "Google Research", "ROUGE as others report it", "a measure that nobody could compare"),
    "sacrebleu": Why("sacrebleu", "its authors", "BLEU and chrF as others report them", "a measure that nobody could compare"),
    "captum": Why("captum", "Meta", "integrated gradients", "a method of our own that nobody could compare"),
    "ray": Why("ray", "Anyscale", "bulk work on a cluster", "a scheduler of our own"),
    "pyspark": Why("pyspark", "Apache Spark", "a function for Spark's tables", "nothing, where Spark is already there"),
    "pandas": Why("pandas", "NumFOCUS", "the tables that Spark hands to such a function", "nothing, where Spark is already there"),
    "pyarrow": Why("pyarrow", "Apache Arrow", "Parquet files", "nothing as well kept"),
    "httptools": Why("httptools", "MagicStack", "parses HTTP", "uvicorn's own parser, at twice the processor time"),
    "msgspec": Why("msgspec", "its author", "reads, checks and describes requests", "FastAPI and pydantic, at 12 MB"),
    "orjson": Why("orjson", "its author", "writes arrays of numbers as JSON", "json, at twenty times the time"),
    "prometheus-client": Why("prometheus_client", "Prometheus", "counters at /metrics", "a text format of our own"),
    "starlette": Why("starlette", "its authors", "routes and responses", "FastAPI"),
    "uvicorn": Why("uvicorn", "its authors", "carries HTTP, signals and shutting down", "a server of our own"),
}  # fmt: skip


def declared(path: Path = ROOT / "pyproject.toml") -> dict[str, list[str]]:
    """Names of packages for "base" and for each extra, without the project's own."""
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    parts = {"base": project["dependencies"], **project["optional-dependencies"]}
    found = {part: [Requirement(one).name for one in wanted] for part, wanted in parts.items()}
    return {part: [n for n in names if n != "albertkit"] for part, names in found.items() if part != "all"}


def included(path: Path = ROOT / "pyproject.toml") -> dict[str, set[str]]:
    """The other extras that each extra brings."""
    extras = tomllib.loads(path.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    asked = {part: [Requirement(one) for one in wanted] for part, wanted in extras.items()}
    return {
        part: {e for one in wanted if one.name == "albertkit" for e in one.extras} for part, wanted in asked.items()
    }


def installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def size(found: Distribution) -> int:
    """Bytes of its files, compiled Python left out."""
    paths = [Path(str(found.locate_file(file))) for file in found.files or () if file.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file())


def licence(found: Distribution) -> str:
    """As its metadata says it: the expression, else the classifiers, else the first words of the text."""
    about: Any = found.metadata
    if about.get("License-Expression"):
        return str(about["License-Expression"])
    kinds = [one.rsplit(" :: ", 1)[-1] for one in about.get_all("Classifier") or [] if one.startswith("License ::")]
    named = [kind for kind in kinds if kind != "OSI Approved"]
    return " AND ".join(named) or (about.get("License") or "not said").splitlines()[0][:60]


def needed(names: Iterable[str]) -> dict[str, Distribution]:
    """Those packages, and all that they ask for."""
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        one = None if name in found else installed(name)
        if one is None:
            continue
        found[name] = one
        asked = [Requirement(text) for text in one.requires or ()]
        here = {**default_environment(), "extra": ""}
        waiting += [r.name for r in asked if r.marker is None or r.marker.evaluate(here)]
    return found


def page() -> str:
    """The whole page."""
    parts, inner = declared(), included()
    lines = ["<!-- Written by `python docs/dependencies.py`; do not edit. -->", "", "# Dependencies", "",
             "Every package that albertkit asks for, by `pip install albertkit` or with an extra. Versions are those of `constraints.txt`, with which the tests run; sizes are of installed files",
             "(x86-64 Linux; torch without CUDA), licences as the packages' own metadata gives them. A package is taken where it is better kept than what we would write, and left where a page of code",
             "does the same.", ""]  # fmt: skip
    for part, names in parts.items():
        lines += [f"## {'The base install' if part == 'base' else f'`albertkit[{part}]`'}", ""]
        lines += ["| package | version | MB | licence | kept by | for | instead of |", "|---|---|---|---|---|---|---|"]
        lines += [row(name) for name in names]
        others_too = sorted(inner.get(part, ()))
        total = needed([*names, *(name for other in others_too for name in parts[other])])
        brings = f"It brings {' and '.join(f'`albertkit[{other}]`' for other in others_too)}. " if others_too else ""
        lines += ["", f"{brings}With all that these ask for in turn: {len(total)} package{'s' * (len(total) > 1)}, {megabytes(sum(map(size, total.values())))} MB."
                      + (f" {others(names, total)}" if part == "base" else ""), ""]  # fmt: skip
    return "\n".join(
        [
            *lines,
            "## How they are watched",
            "",
            "`constraints.txt` pins what is tested. The workflow runs `pip-audit` against it on every change and once a week. tests/docs/test_dependencies.py compares the",
            "imports of `src/` with `pyproject.toml`, both ways round.",
            "",
        ]
    )


def row(name: str) -> str:
    found, why = installed(name), WHY[name]
    facts = [found.version.split("+")[0], megabytes(size(found)), licence(found)] if found else ["–", "–", "–"]
    return f"| {' | '.join([name, *facts, why.keeper, why.reason, why.instead])} |"


def others(names: list[str], total: dict[str, Distribution]) -> str:
    """What comes along, by name."""
    own = {canonicalize_name(name) for name in names}
    return f"Beside those named: {', '.join(sorted(name for name in total if name not in own))}."


def megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f}"


def main() -> None:
    PAGE.write_text(re.sub(r" +\n", "\n", page()), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
