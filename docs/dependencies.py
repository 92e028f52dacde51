"""Write the table of dependencies into docs/understand/architecture.md. Run by `make docs`.

In: `pyproject.toml`, the installed packages (versions, files, licences), and `WHY`, the only part written by hand. Out:
one row per package, and one row per extra. Sizes are those of this machine's wheels, so
tests/docs/test_dependencies.py checks the rows and not the text.
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
PAGE = ROOT / "docs" / "understand" / "architecture.md"
MARKED = re.compile(r"(<!-- dependencies -->\n).*?(<!-- /dependencies -->)", re.S)


@dataclass(frozen=True)
class Why:
    """What the metadata of a package does not contain."""

    module: str
    purpose: str


WHY = {
    "click": Why("click", "the command line"),
    "google-crc32c": Why("google_crc32c", "checksums of indexes and TensorFlow checkpoints"),
    "numpy": Why("numpy", "arrays"),
    "onnxruntime": Why("onnxruntime", "runs the graph"),
    "safetensors": Why("safetensors", "weights on disk, without pickle"),
    "tokenizers": Why("tokenizers", "trains vocabularies; reads the tokenizers of teachers"),
    "tqdm": Why("tqdm", "progress bars"),
    "torch": Why("torch", "training; inference on a GPU"),
    "onnx": Why("onnx", "torch's export of a custom head"),
    "matplotlib": Why("matplotlib", "confusion matrices"),
    "scikit-learn": Why("sklearn", "metrics, heads on frozen vectors, estimators"),
    "scipy": Why("scipy", "correlations"),
    "seqeval": Why("seqeval", "entity F1"),
    "tensorboardX": Why("tensorboardX", "metrics for TensorBoard"),
    "transformers": Why("transformers", "teachers of `albertkit distill`"),
    "rouge-score": Why("rouge_score", "ROUGE"),
    "sacrebleu": Why("sacrebleu", "BLEU and chrF"),
    "langchain-core": Why("langchain_core", "LangChain's classes for vectors and stores"),
    "llama-index-core": Why("llama_index", "LlamaIndex's class for vectors"),
    "chromadb": Why("chromadb", "Chroma's class for vectors; not measured here"),
    "spacy": Why("spacy", "spaCy's component for entities and categories"),
    "captum": Why("captum", "integrated gradients"),
    "ray": Why("ray", "bulk work on a cluster"),
    "pyspark": Why("pyspark", "a function for Spark tables; not measured here"),
    "pandas": Why("pandas", "batches of Spark tables"),
    "pyarrow": Why("pyarrow", "Parquet files"),
    "psycopg": Why("psycopg", "indexes in Postgres with pgvector"),
    "lancedb": Why("lancedb", "indexes in LanceDB; 180 MB, not in `make test`"),
    "qdrant-client": Why("qdrant_client", "indexes in Qdrant; in `make test` with folders, without a server"),
    "httptools": Why("httptools", "parses HTTP"),
    "msgspec": Why("msgspec", "validates and describes requests"),
    "orjson": Why("orjson", "writes JSON"),
    "prometheus-client": Why("prometheus_client", "metrics at /metrics"),
    "opentelemetry-exporter-otlp-proto-http": Why("opentelemetry", "sends traces and metrics to a collector"),
    "opentelemetry-sdk": Why("opentelemetry", "traces of requests"),
    "starlette": Why("starlette", "routes and responses"),
    "uvicorn": Why("uvicorn", "the HTTP server"),
}


def required(path: Path = ROOT / "pyproject.toml") -> dict[str, list[Requirement]]:
    """What "base" and each extra require, without the project's own extras."""
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    parts = {"base": project["dependencies"], **project["optional-dependencies"]}
    found = {part: [Requirement(one) for one in wanted] for part, wanted in parts.items()}
    return {part: [one for one in wanted if one.name != "albertkit"] for part, wanted in found.items() if part != "all"}


def declared(path: Path = ROOT / "pyproject.toml") -> dict[str, list[str]]:
    """Names of packages for "base" and for each extra."""
    return {part: [one.name for one in wanted] for part, wanted in required(path).items()}


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
    """Bytes of its files, without compiled Python."""
    paths = [Path(str(found.locate_file(file))) for file in found.files or () if file.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file())


def licence(found: Distribution) -> str:
    """From its metadata: the expression, else the classifiers, else the first words of the text."""
    about: Any = found.metadata
    if about.get("License-Expression"):
        return str(about["License-Expression"])
    kinds = [one.rsplit(" :: ", 1)[-1] for one in about.get_all("Classifier") or [] if one.startswith("License ::")]
    named = [kind for kind in kinds if kind != "OSI Approved"]
    return " AND ".join(named) or (about.get("License") or "not said").splitlines()[0][:60]


def needed(wanted: Iterable[Requirement]) -> dict[str, Distribution]:
    """These packages, and everything that they and their extras require."""
    found: dict[str, Distribution] = {}
    waiting = list(wanted)
    while waiting:
        asked = waiting.pop()
        name = canonicalize_name(asked.name)
        one = found.get(name) or installed(name)
        if one is None or (name in found and not asked.extras):
            continue
        found[name] = one
        here = [{**default_environment(), "extra": extra} for extra in ("", *asked.extras)]
        following = (Requirement(text) for text in one.requires or ())
        waiting += [r for r in following if r.marker is None or any(map(r.marker.evaluate, here))]
    return found


def table() -> str:
    """One row per package, then one row per extra with everything that it requires."""
    parts, wanted, inner = declared(), required(), included()
    installed_by: dict[str, list[str]] = {}
    for part, names in parts.items():
        for name in names:
            installed_by.setdefault(name, []).append(part)
    lines = ["| package | for | in | version | MB | licence |", "|---|---|---|---|---|---|"]
    lines += [row(name, where) for name, where in installed_by.items()]
    sizes = ["| install | packages | MB |", "|---|---|---|"]
    for part, requirements in wanted.items():
        own = [*requirements, *(one for other in inner.get(part, ()) for one in wanted[other])]
        total = needed(own if part == "base" else [*wanted["base"], *own])
        title = "`albertkit`" if part == "base" else f"`albertkit[{part}]`"
        sizes.append(f"| {title} | {len(total)} | {sum(map(size, total.values())) / 1e6:,.0f} |")
    return "\n".join([*lines, "", "The base install and each extra, with everything that they require:", "", *sizes])


def row(name: str, parts: list[str]) -> str:
    found = installed(name)
    facts = [found.version.split("+")[0], megabytes(size(found)), licence(found)] if found else ["–", "–", "–"]
    return f"| {' | '.join([name, WHY[name].purpose, ', '.join(parts), *facts])} |"


def megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f}"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(MARKED.sub(lambda found: f"{found[1]}\n{table()}\n\n{found[2]}", text), encoding="utf-8")
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
