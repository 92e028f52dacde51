"""Run the commands of the documentation: a folder with every file and model that the pages name, and a small shell.

In: lines of ```bash blocks. Out: what each command printed, run in this process with tiny settings. `NOT_RUN` is the
one table of what is not run, with the reason.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import pyarrow
import pytest
import torch
from click.testing import CliRunner
from pyarrow import parquet

from albertkit.albert import Albert
from albertkit.artifact import Artifact, ArtifactMetadata, write_artifact
from albertkit.builtin import resolve
from albertkit.cli.entry_point import app
from albertkit.data.corpus import CorpusSettings, build_corpus
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel
from albertkit.model.albert_model import build_head
from albertkit.tokenizer import Tokenizer
from tests import custom_heads
from tests.conftest import ROOT, SPIECE, tiny

LANCEDB_COMMANDS = {
    'albertkit index examples/notes.txt -o "lancedb': "needs LanceDB, and runs where it is installed",
    'albertkit index examples/notes-zh.txt -o "lancedb': "needs LanceDB, and runs where it is installed",
    'albertkit search "lancedb': "needs LanceDB, and runs where it is installed",
}
QDRANT_COMMANDS = {
    'albertkit index examples/notes.txt -o "qdrant://./': "needs qdrant-client, and runs where it is installed",
    'albertkit index examples/notes-zh.txt -o "qdrant://./': "needs qdrant-client, and runs where it is installed",
    'albertkit search "qdrant://./': "needs qdrant-client, and runs where it is installed",
}
NOT_RUN = {  # how a line begins → why no test types it
    "make ": "sets up .venv or runs the whole suite; .ci/run does both",
    ". .venv": "the shell's own",
    "pip install": "needs a package index; tests/test_wheel.py installs the wheel without one",
    "docker ": "needs a container engine; tests/serve/test_deploy.py checks the files it reads",
    "kubectl ": "needs a cluster; tests/serve/test_deploy.py checks the manifest",
    "torchrun ": "several processes; tests/train/test_distributed.py runs them",
    "albertkit distill gte/": "needs other encoders; tests/train/test_distill_vectors.py makes small ones",
    "albertkit embed --engine ray": "needs a cluster; tests/bulk starts a small one where Ray is installed",
    "ray start": "starts a cluster",
    "albertkit embed --device cuda": "needs a GPU; tests/gpu runs it where there is one",
    "pip download": "needs a package index",
    'albertkit index examples/notes.txt -o "pgvector': "needs a server at an address; tests/search starts one",
    'albertkit index examples/notes-zh.txt -o "pgvector': "needs a server at an address; tests/search starts one",
    'albertkit search "pgvector': "needs a server at an address; tests/search starts one",
    **({} if find_spec("lancedb") else LANCEDB_COMMANDS),
    'albertkit index examples/notes.txt -o "qdrant://localhost': "needs a server at an address",
    'albertkit index examples/notes-zh.txt -o "qdrant://localhost': "needs a server at an address",
    'albertkit search "qdrant://localhost': "needs a server at an address",
    **({} if find_spec("qdrant_client") else QDRANT_COMMANDS),
    "npm install": "needs a package index",
    "python -m http.server": "runs until it is stopped",
    **{
        f"albertkit export {name} --web": "needs onnxruntime-web; tests/web exports where it is installed"
        for name in ("small", "small-zh", "messages")
    },
}
FILTERS = ("sed", "grep", "head", "tail", "sort", "wc", "cut")  # run as they are
SHORTER: dict[str, tuple[dict[str, int], list[str]]] = {  # verb → options to drop (with how many values), and to add
    "pretrain": ({"--minutes": 1, "--steps": 1, "--tokens": 1, "--shape": 1, "--batch-size": 1, "--lengths": 1},
                 ["--steps", "2", "--batch-size", "4", "--lengths", "32", "--shape", "tiny-shape.json", "--no-tensorboard"]),
    "distill": ({"--minutes": 1, "--steps": 1, "--batch-size": 1}, ["--steps", "2", "--batch-size", "4", "--no-tensorboard", "--max-unknown", "1"]),
    "finetune": ({"--epochs": 1, "--seeds": 1}, ["--epochs", "1", "--batch-size", "8", "--restarts", "0", "--max-unknown", "1"]),
    "elastic": ({"--epochs": 1}, ["--epochs", "1", "--batch-size", "4", "--max-unknown", "1"]),
    "prune": ({"--minutes": 1, "--epochs": 1}, []),
    "quantize": ({"--minutes": 1, "--epochs": 1}, []),
    "static": ({"--dim": 1}, []),
    "tokenizer": ({"--vocab-size": 1}, ["--vocab-size", "120"]),
    "corpus": ({}, ["--min-tokens", "2", "--workers", "1"]),
    "cluster": ({"-k": 1}, ["-k", "2"]),
}  # fmt: skip
TINY = {"small-pretrained": "my-albert", "small-zh": "my-albert-zh", "small-zh-pretrained": "my-albert-zh"}
ANEW = ("convert", "quantize", "prune", "static", "distill")  # verbs that refuse what is there
TEXTS = (ROOT / "examples" / "notes.txt").read_text(encoding="utf-8").splitlines()
GOOD, BAD = ("lovely", "fine", "a joy", "warm and clever"), ("dull", "a bore", "slow and cold", "a waste")
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
MODELS: dict[str, tuple[ArtifactMetadata, dict[str, int]]] = {
    "my-albert": (ArtifactMetadata(task="embed"), {"mlm": 0, "sop": 0}),
    "my-albert-zh": (ArtifactMetadata(task="embed"), {"mlm": 0, "sop": 0}),
    "my-domain": (ArtifactMetadata(task="embed"), {"mlm": 0, "sop": 0}),
    "vectors": (ArtifactMetadata(task="embed"), {}),
    "my-vectors": (ArtifactMetadata(task="embed"), {}),
    "MODEL": (ArtifactMetadata(task="embed"), {}),
    "IN": (ArtifactMetadata(task="embed"), {"mlm": 0}),
    "FOLDER": (ArtifactMetadata(task="embed"), {}),
    "words/model": (ArtifactMetadata(), {"mlm": 0, "sop": 0}),
    "sentiment/model": (ArtifactMetadata(task="classify", labels=("bad", "good"), details={"kind": "single"}), {"classify": 2}),
    "runs/sentiment/model": (ArtifactMetadata(task="classify", labels=("bad", "good")), {"classify": 2}),
    "ner/model": (ArtifactMetadata(task="tag", labels=TAGS), {"tag": 5}),
    "restaurants/model": (ArtifactMetadata(task="dialogue", labels=("food=<named>", "price=<named>"), details={"known": ["food=thai", "price=cheap"]}), {"classify": 2}),
    "qa/model": (ArtifactMetadata(task="answer", details={"stride": 16}), {"answer": 0}),
}  # fmt: skip


# Files and models ------------------------------------------------------------------------------------------


def write_files(folder: Path) -> Path:
    """Every file and model that the pages name."""
    english, chinese = Tokenizer.from_spiece(SPIECE), Tokenizer.load(resolve("small-zh"))
    for name, (meta, heads) in MODELS.items():
        save(folder / name, meta, heads, chinese if name.endswith("-zh") else english)
    custom_heads.save(folder / "stars" / "model", "classify")
    (folder / "stars" / ".lock").touch()  # as `finetune` leaves it
    quantise(folder / "sentiment", folder / "sentiment-int8")
    foreign(folder)
    shutil.copytree(ROOT / "examples", folder / "examples")
    for name in ("notes.txt", "texts.txt", "domain.txt", "reviews.txt", "book.txt", "mine.txt", "my-texts.txt"):
        (folder / name).write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    for name in ("notes", "texts", "wiki", "my-texts", "domain"):
        (folder / name).mkdir()
        for part in ("new.txt", "old.txt"):
            (folder / name / part).write_text("\n\n".join(f"{a}\n{b}" for a in TEXTS for b in TEXTS[:3]), "utf-8")
    build_corpus(
        [str(folder / "texts")],
        folder / "shards",
        english,
        CorpusSettings(min_tokens=2),
        workers=1,
    )
    for name, count in {"train": 3, "dev": 3, "test": 3, "fresh": 75}.items():  # limits need some hundred texts
        (folder / f"{name}.tsv").write_text(reviews(count), encoding="utf-8")
    rows = [{"id": str(n), "text": text, "body": text, "title": f"note {n}"} for n, text in enumerate(TEXTS)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    for name in ("faq.jsonl", "rows.jsonl", "documents.jsonl"):
        (folder / name).write_text(lines, encoding="utf-8")
    (folder / "texts" / "rows.jsonl").write_text(lines, encoding="utf-8")
    parquet.write_table(pyarrow.table({"text": TEXTS}), folder / "reviews.parquet")
    (folder / "mails").mkdir()
    (folder / "mails" / "one.txt").write_text("Angela Merkel visited Paris.\n", encoding="utf-8")
    (folder / "books.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "runs" / "tiny.txt.xz").write_bytes(lzma.compress((folder / "texts" / "new.txt").read_bytes()))
    wide = shape().replace(hidden_size=64, num_attention_heads=1)  # heads as wide as those of real shapes
    (folder / "tiny-shape.json").write_text(json.dumps(wide.to_dict()), encoding="utf-8")
    return folder


def shape() -> Any:
    return tiny(vocab_size=30000, embedding_size=8, hidden_size=16, num_attention_heads=2, num_hidden_layers=4,
                max_position_embeddings=160)  # fmt: skip


def save(folder: Path, meta: ArtifactMetadata, heads: dict[str, int], tokenizer: Tokenizer) -> None:
    config = shape().replace(vocab_size=tokenizer.vocab_size)
    torch.manual_seed(4)
    model = AlbertModel(config, {name: build_head(name, config, labels or 2) for name, labels in heads.items()})
    write_artifact(Artifact(config, model.weights(), tokenizer, meta), folder)


def quantise(source: Path, target: Path) -> None:
    from albertkit.compress.quantize import quantize

    quantize(source, target, bits=8)


def foreign(folder: Path) -> None:
    """Checkpoints in the layouts of others."""
    from albertkit.interop.layouts import export_layout
    from tests.interop.bundle_writer import to_variables, write_bundle
    from tests.interop.test_foreign_layouts import google_config

    config = shape().replace(classifier_dropout_prob=0.1)
    heads = {name: build_head(name, config) for name in ("mlm", "sop")}
    weights = AlbertModel(config, heads).weights()
    tensorflow = folder / "albert_base"
    tensorflow.mkdir()
    write_bundle(tensorflow / "model.ckpt-best", to_variables(Artifact(config, weights)))
    (tensorflow / "albert_config.json").write_text(json.dumps(google_config(config)))
    shutil.copy(SPIECE, tensorflow / "30k-clean.model")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"今天天气很好我喜欢北京的春"]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(words)) + "\n", encoding="utf-8")
    chinese = Tokenizer.from_vocab(folder / "vocab.txt")
    small = shape().replace(vocab_size=chinese.vocab_size)
    AlbertModel(small, {"mlm": build_head("mlm", small)}).save(folder / "albert_tiny_zh", chinese)
    encoder = AlbertModel(config, {}, pooler=False).weights()
    vectors = Artifact(config, encoder, Tokenizer.from_spiece(SPIECE), ArtifactMetadata(task="embed", pooling="mean"))
    with tempfile.TemporaryDirectory() as place:
        write_artifact(vectors, Path(place) / "source")
        export_layout(Path(place) / "source", folder / "st-albert", "sentence-transformers")
    plain = AlbertModel(config, {"mlm": build_head("mlm", config)})
    plain.save(folder / "albert-base-v2", Tokenizer.from_spiece(SPIECE))
    (folder / "albert-base-v2" / "albertkit.json").unlink()  # as transformers writes it


def reviews(things: int) -> str:
    rows = [(f"film {thing} was {word}", label) for thing in range(things) for word, label in
            [*((w, "good") for w in GOOD), *((w, "bad") for w in BAD)]]  # fmt: skip
    return "sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)


# The shell ---------------------------------------------------------------------------------------------------------


@dataclass
class DocShell:
    """Runs lines as a shell would, in the current folder: `cat FILE |`, `< FILE`, `> FILE`, `&&`, comments and long
    lines.
    """

    clients: dict[int, Any] = field(default_factory=dict)
    """By port, clients of the servers that `albertkit serve` would have started."""
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    given_names: set[str] = field(default_factory=lambda: {path.name for path in Path().iterdir()})
    count: int = 0
    printed: str = ""
    """What `albertkit` printed, with its notes."""

    def block(self, text: str) -> None:
        for line in joined(text):
            self.line(line)

    def line(self, line: str) -> None:
        if any(line.startswith(start) for start in NOT_RUN):
            return
        signs = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        signs.whitespace_split = True
        for part in split(list(signs), "&&"):
            self.pipe(part, line)

    def pipe(self, words: list[str], line: str) -> None:
        given = ""
        for part in split(words, "|"):
            part, source, target = redirected(part)
            given = Path(source).read_text(encoding="utf-8") if source else given
            given = self.command(part, given, line)
            if target:
                Path(target).write_text(given, encoding="utf-8")

    def command(self, words: list[str], given: str, line: str) -> str:
        if variable := re.fullmatch(r"([A-Z_]+)=(.*)", words[0]):
            with pytest.MonkeyPatch.context() as patch:  # for this command only, as in a shell
                patch.setenv(*variable.groups())
                return self.command(words[1:], given, line)
        self.count += 1
        name, *rest = words
        known: dict[str, Callable[[], str]] = {
            "albertkit": lambda: self.albertkit(rest, given, line),
            "curl": lambda: self.curl(rest, line),
            "cat": lambda: "".join(Path(path).read_text(encoding="utf-8") for path in rest),
            "echo": lambda: " ".join(rest) + "\n",
            "printf": lambda: " ".join(rest).replace("\\n", "\n"),
            "mkdir": lambda: str(Path(rest[-1]).mkdir(parents=True, exist_ok=True) or ""),
            "cd": lambda: "",
        }
        if name in FILTERS:
            return subprocess.run(words, input=given, capture_output=True, text=True, check=True).stdout
        if name not in known:
            raise AssertionError(
                f"no test can type {name!r} in  {line}  : run it in doc_commands.py, or say in NOT_RUN why not"
            )
        return known[name]()

    def albertkit(self, words: list[str], given: str, line: str) -> str:
        self.make_room(words)
        try:
            done = CliRunner().invoke(app, shorter(words), input=given, catch_exceptions=False)
        except AlbertkitError as error:
            raise AssertionError(f"{line}\nended with an error: {error}") from error
        self.printed += done.output
        assert done.exit_code == 0, f"{line}\nended with {done.exit_code}:\n{done.output[-3000:]}"
        return done.stdout

    def make_room(self, words: list[str]) -> None:
        """A page that makes what other pages only use begins without it, and of two ways to make something each begins
        anew.
        """
        command = app.get_command(click.Context(app), words[0]) if words else None
        if command is None or "--help" in words:
            return
        given = command.make_context(words[0], words[1:], parent=click.Context(app, **app.context_settings)).params
        keys = [one.name for one in command.params if {"-o", "--output"} & set(one.opts)]
        for key in {*keys, "output"}:
            name = Path(given[key]).parts[0] if given.get(key) and Path(given[key]).parts else ""
            again = words[0] in ANEW and Path(name).is_dir() and name != ""
            if name in self.given_names or again:
                shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink()
                shutil.rmtree(f"{name}.run", ignore_errors=True)
                self.given_names.discard(name)

    def curl(self, words: list[str], line: str) -> str:
        address = next(word for word in words if "://" in word)
        data = words[words.index("-d") + 1] if "-d" in words else None
        headers = dict(words[at + 1].split(": ", 1) for at, word in enumerate(words) if word == "-H")
        port, path = re.fullmatch(r"http://[^/]+:(\d+)(/.*)", address).groups()
        client = self.clients.get(int(port))
        assert client is not None, f"{line}: nothing was served there before"
        answer = client.post(path, content=data, headers=headers) if data else client.get(path)
        assert answer.status_code == 200, f"{line}\n{answer.status_code}: {answer.text}"
        return answer.text

    def served(self, service: Any, listener: Any, on_ready: Callable[[], None]) -> None:
        """Stands in for `serve.server.listen`: the same app, without a socket."""
        from starlette.testclient import TestClient

        from albertkit.serve.app import make_app

        port = service.settings.port
        client = TestClient(make_app(service), base_url=f"http://127.0.0.1:{port}")
        self.clients[port] = self.closing.enter_context(client)
        on_ready()


def joined(text: str) -> Iterator[str]:
    """Lines to type, with long ones put together; prompts and comments alone are none."""
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip().removeprefix("$ ")
        if line and not line.startswith("#"):
            yield line


def split(words: list[str], sign: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == sign:
            parts.append([])
        else:
            parts[-1].append(word)
    return [part for part in parts if part]


def redirected(words: list[str]) -> tuple[list[str], str | None, str | None]:
    found: dict[str, str | None] = {"<": None, ">": None}
    for sign in found:
        if sign in words:
            at = words.index(sign)
            found[sign] = words[at + 1]
            words = words[:at] + words[at + 2 :]
    return words, found["<"], found[">"]


def shorter(words: list[str]) -> list[str]:
    """The same command at tiny settings. Classifiers on frozen vectors are trained as the page says."""
    if {"--freeze", "--nearest"} & set(words):
        return words
    drop, add = SHORTER.get(words[0], ({}, [])) if words else ({}, [])
    kept: list[str] = []
    skip = 0
    if words and words[0] in ("pretrain", "finetune"):  # built-in models take ten times as long to train
        words = [TINY.get(word, word) for word in words]
    for word in words:
        if skip:
            skip -= 1
        elif word in drop:
            skip = drop[word]
        else:
            kept.append(word)
    if words and words[0] == "finetune" and not {"-m", "--model"} & set(words):
        add = [*add, "--model", "my-albert"]
    if words and words[0] == "elastic" and "train.tsv" in words:
        add = [*add, "--dev", "fresh.tsv"]  # dev.tsv is too short for a calibration
    if words and words[0] in ("quantize", "prune") and not {"-f", "--file"} & set(words):
        add = [*add, "-f", "texts.txt"]  # without, the model writes its own
    if "--train" in words:
        add = [*add, "--epochs", "1", "--batch-size", "8"]
    if "--engine" in words:
        add = [*add, "--workers", "1"]
    if "--check" in words and words[0] == "quantize":
        add = [*add, "--tolerance", "1"]  # a model that has learnt nothing loses much
    if {"--latency", "--memory"} & set(words):
        add = [*add, "--count", "1", *([] if {"-f", "--file"} & set(words) else ["-f", "texts.txt"])]
    return kept if "--dry-run" in words else [*kept, *add]


def once(call: Callable[[], object], seconds: float = 0.0, least: int = 1) -> float:
    """Stands in for `benchmark.typical_seconds`: the time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def here(folder: Path | None, length: int, threads: int) -> dict[str, float]:
    """Stands in for `benchmark.measure_folder`: the model opens and runs, in this process."""
    latency = once(lambda: Albert(folder, threads=threads).embed("a text"))
    return {"latency": min(latency, 0.001), "memory": 1e6, "process": 1e8}
