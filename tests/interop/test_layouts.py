"""Folders for other libraries: the real transformers.js and sentence-transformers compute the vectors of albertkit."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from albertkit.albert import Albert
from albertkit.artifact import Artifact, ArtifactMetadata, write_artifact
from albertkit.cli.entry_point import app
from albertkit.compress.static_model import make_static_model
from albertkit.config import Options
from albertkit.errors import AlbertkitError
from albertkit.interop.layouts import INT8_FILE, export_layout
from albertkit.interop.onnx_export import ExportSettings
from albertkit.interop.transformers_js import tokenizer_json
from albertkit.model import AlbertModel
from albertkit.runtime.activation_moments import random_tokens, token_moments
from albertkit.tokenizer import Tokenizer
from tests.conftest import ROOT, english, tiny
from tests.test_albert import TEXTS, make
from tests.web.node import run_node

WORDS = [text for text in TEXTS if text]
CHINESE = ["我想退货，什么时候到账？", "今天天气很好，適合去公園散步。", "ALBERT是2019年發佈的模型。", "好"]
EXPECTED = ROOT / "tests" / "tokenizer" / "expected_tokens.jsonl"
PACKAGE, LIBRARY = "@huggingface/transformers", "dist/transformers.node.mjs"
RELATIVE = {"options": Options(attention_bias="relative")}


def find_library() -> Path:
    """transformers.js, or a skip."""
    places = [os.environ.get("ALBERTKIT_TRANSFORMERS_JS"), ROOT / "node_modules" / PACKAGE]
    found = next((Path(place) / LIBRARY for place in places if place and (Path(place) / LIBRARY).is_file()), None)
    if found is None:
        pytest.skip(
            f"{PACKAGE} is not installed; run  npm install --no-save {PACKAGE}  or set ALBERTKIT_TRANSFORMERS_JS"
        )
    return found


def call_js(folder: Path, texts: list[str], dtype: str | None = None, **settings: Any) -> list[Any]:
    """The ids (dtype None) or vectors of transformers.js."""
    library, request, result = find_library(), folder / "request.json", folder / "result.json"
    request.write_text(json.dumps({"folder": str(folder), "texts": texts, "dtype": dtype, **settings}))
    run_node(Path(__file__).parent / "transformers_js.mjs", library, request, result)
    rows: list[Any] = json.loads(result.read_text())
    return rows


def write(folder: Path, config: Any, bits: int | None = None, tokenizer: Tokenizer | None = None, **meta: Any) -> Path:
    """A model with lively random weights; in 8 bits with measured activations."""
    artifact = make(config, heads=())
    artifact = dataclasses.replace(artifact, metadata=ArtifactMetadata(**{"task": "embed", **meta}))
    artifact = dataclasses.replace(artifact, tokenizer=tokenizer or artifact.tokenizer)
    moments = token_moments(config, dict(artifact.weights), random_tokens(config, 16)) if bits else None
    write_artifact(artifact, folder, bits=bits, moments=moments)
    return folder


def trained_like(folder: Path, bits: int | None = None, **changes: Any) -> Path:
    """A model with small random weights, whose int8 vectors rounding hardly changes, as those of a trained model."""
    config = tiny(vocab_size=3000, **changes)
    artifact = Artifact(config, AlbertModel(config).weights(), english(), ArtifactMetadata(task="embed"))
    moments = token_moments(config, dict(artifact.weights), random_tokens(config, 16)) if bits else None
    write_artifact(artifact, folder, bits=bits, moments=moments)
    return folder


def cosines(first: Any, second: Any) -> np.ndarray:
    a, b = (np.asarray(rows, np.float64) for rows in (first, second))
    return np.asarray((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1))


# transformers.js -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pooling", "normalize"), [("mean", True), ("cls", False)])
@pytest.mark.parametrize("shape", [{}, RELATIVE], ids=["canonical", "relative"])
def test_transformers_js_computes_the_vectors(shape, pooling, normalize, tmp_path):
    model = write(tmp_path / "m", tiny(vocab_size=3000, **shape), pooling=pooling, normalize=normalize, depth=2)
    result = export_layout(model, tmp_path / "js", "transformers.js")
    assert f'pooling: "{pooling}", normalize: {str(normalize).lower()}' in (tmp_path / "js" / "README.md").read_text()
    assert f'pooling: "{pooling}", normalize: {str(normalize).lower()}' in result.usage
    found = call_js(tmp_path / "js", WORDS, "fp32", pooling=pooling, normalize=normalize)
    assert np.abs(np.asarray(found) - Albert(model).embed(WORDS)).max() <= 1e-4
    assert cosines(found, Albert(model).embed(WORDS)).min() >= 0.9999


@pytest.mark.parametrize("shape", [{}, RELATIVE], ids=["canonical", "relative"])
@pytest.mark.parametrize("bits", [None, 8])
def test_transformers_js_computes_the_int8_vectors(shape, bits, tmp_path):
    model = trained_like(tmp_path / "m", bits, **shape)
    result = export_layout(model, tmp_path / "js", "transformers.js")
    assert result.models[INT8_FILE].agreement_least >= 0.999
    found = call_js(tmp_path / "js", WORDS, "q8", pooling="mean", normalize=True)
    assert cosines(found, Albert(model, bits=8).embed(WORDS)).min() >= 0.999


@pytest.mark.parametrize("name", ["small", "small-zh"])
def test_transformers_js_computes_the_vectors_of_built_in_models(name, tmp_path, monkeypatch):
    """Both computed by onnxruntime; compiled layers round attention to bfloat16."""
    monkeypatch.setenv("ALBERTKIT_LAYERS", "onnxruntime")
    texts = WORDS if name == "small" else CHINESE
    find_library()
    export_layout(name, tmp_path / "js", "transformers.js", ExportSettings(depth=3))
    found = call_js(tmp_path / "js", texts, "q8", pooling="mean", normalize=True)
    assert cosines(found, Albert(name).embed(texts, depth=3)).min() >= 0.999


def tokenizers(tmp_path: Path) -> dict[str, Tokenizer]:
    lines = [*CHINESE, *WORDS, *(json.loads(line)["text"] for line in EXPECTED.read_text().splitlines())]
    return {
        "english": Albert("small").tokenizer,
        "chinese": Albert("small-zh").tokenizer,
        "wordpiece": Tokenizer.train(lines, "wordpiece", 800, min_count=1),
        "wordpiece, cased": Tokenizer.train(lines, "wordpiece", 800, min_count=1, lower=False, keep_accents=True),
        "trained": Tokenizer.train(lines * 3, "unigram", 400),
    }


@pytest.mark.parametrize("kind", ["english", "chinese", "wordpiece", "wordpiece, cased", "trained"])
def test_transformers_js_gives_our_ids(kind, tmp_path):
    """For the texts of the golden file and every character, but for what the notes name."""
    tokenizer = tokenizers(tmp_path)[kind]
    content, notes = tokenizer_json(tokenizer)
    tokenizer.save(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    golden = [json.loads(line)["text"] for line in EXPECTED.read_text(encoding="utf-8").splitlines()]
    special = [tokenizer.vocabulary.tokens[i] for i in tokenizer.vocabulary.hidden]
    golden = [text for text in golden if not any(name in text for name in special)]
    characters = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    lines = [f"a{c}b {c}" for c in characters]
    if tokenizer.kind == "unigram":  # the many replacements of the Chinese one take 0.7 ms for each text
        lines = [" ".join(lines[start : start + 20]) for start in range(0, len(lines), 20)]
    texts = [*golden, *lines]
    found = call_js(tmp_path, texts)
    wanted = [row.ids for row in tokenizer.encode_batch(texts)]
    wrong = [(text, ours, theirs) for text, ours, theirs in zip(texts, wanted, found, strict=True) if ours != theirs]
    if any("neighbouring words" in note for note in notes):
        wrong = [
            (t, a, b) for t, a, b in wrong if merge_unknown(a, tokenizer.unk_id) != merge_unknown(b, tokenizer.unk_id)
        ]
    if any("▁" in note for note in notes):
        wrong = [row for row in wrong if "▁" not in row[0]]
    if kind == "trained":  # on the golden texts, so that it has many tokens of digits and a comma
        assert any("digit before a comma" in note for note in notes)
        wrong = [row for row in wrong if not re.search(r"\d,", unicodedata.normalize("NFKC", row[0]))]
    if any("Unicode 8" in note for note in notes):
        assert len(wrong) < 0.01 * len(characters)
        wrong = [row for row in wrong if row[0] in golden]
    assert wrong == []


def merge_unknown(ids: list[int], unknown: int | None) -> list[int]:
    return [token for at, token in enumerate(ids) if token != unknown or at == 0 or ids[at - 1] != unknown]


# sentence-transformers -------------------------------------------------------------------------------------------


def test_canonical_model_is_opened_with_torch(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    model = write(tmp_path / "m", tiny(vocab_size=3000), prompts={"query": "ask: "})
    result = export_layout(model, tmp_path / "st", "sentence-transformers")
    assert result.models == {} and "model.safetensors" in result.files and "backend" not in result.usage
    theirs = library.SentenceTransformer(str(tmp_path / "st"), device="cpu")
    assert cosines(theirs.encode(WORDS), Albert(model).embed(WORDS)).min() >= 0.9999
    ours = Albert(model).embed(WORDS, prompt="query")
    assert cosines(theirs.encode(WORDS, prompt_name="query"), ours).min() >= 0.9999


def test_model_with_options_is_opened_with_onnx(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    pytest.importorskip("optimum.onnxruntime", reason="optimum-onnx is not installed (see CONTRIBUTING.md)")
    model = trained_like(tmp_path / "m", **RELATIVE)
    result = export_layout(model, tmp_path / "st", "sentence-transformers")
    assert "attention_bias" in result.notes[0] and 'backend="onnx"' in result.usage
    theirs = library.SentenceTransformer(str(tmp_path / "st"), device="cpu", backend="onnx")
    assert cosines(theirs.encode(WORDS), Albert(model).embed(WORDS)).min() >= 0.9999
    quantized = library.SentenceTransformer(
        str(tmp_path / "st"), device="cpu", backend="onnx", model_kwargs={"file_name": INT8_FILE}
    )
    assert cosines(quantized.encode(WORDS), Albert(model, bits=8).embed(WORDS)).min() >= 0.999


def test_torch_refuses_a_model_with_options(tmp_path):
    """There are no weights for torch, which would compute something else from them."""
    library = pytest.importorskip("sentence_transformers")
    model = write(tmp_path / "m", tiny(vocab_size=3000, **RELATIVE))
    export_layout(model, tmp_path / "st", "sentence-transformers")
    with pytest.raises(OSError, match=r"model\.safetensors"):
        library.SentenceTransformer(str(tmp_path / "st"), device="cpu")


# What cannot be written ------------------------------------------------------------------------------------------


def test_what_a_library_cannot_compute_is_refused(tmp_path):
    def refused(
        words: str, layout: str, settings: ExportSettings | None = None, source: Path | None = None, **meta: Any
    ):
        folder = source or write(tmp_path / f"m{len(list(tmp_path.iterdir()))}", tiny(vocab_size=3000), **meta)
        with pytest.raises(AlbertkitError, match=words):
            export_layout(folder, tmp_path / "out", layout, settings)
        assert not (tmp_path / "out").exists()

    refused("'max' is unknown to transformers.js.*sentence_embedding", "transformers.js", pooling="max")
    refused("'pooler' is unknown to sentence-transformers", "sentence-transformers", pooling="pooler")
    refused("layout", "spacy")
    refused("Omit it", "transformers.js", ExportSettings(full_range=True))
    symbols = Tokenizer.from_symbols(["$", *"abcdefgh"])
    phonemes = write(tmp_path / "phonemes", tiny(vocab_size=9), tokenizer=symbols)
    refused("phonemes", "transformers.js", source=phonemes)
    make_static_model(write(tmp_path / "m", tiny(vocab_size=3000)), tmp_path / "static")
    refused("static", "transformers.js", source=tmp_path / "static")


def test_a_classifier_needs_the_head_of_vectors(tmp_path):
    made = dataclasses.replace(
        make(tiny(vocab_size=3000), ("classify",)), metadata=ArtifactMetadata(task="classify", labels=("a", "b"))
    )
    write_artifact(made, tmp_path / "m")
    with pytest.raises(AlbertkitError, match="--head vector"):
        export_layout(tmp_path / "m", tmp_path / "out", "sentence-transformers")
    result = export_layout(tmp_path / "m", tmp_path / "out", "sentence-transformers", ExportSettings(head="vector"))
    assert "model.safetensors" in result.files


def test_command_prints_code_and_differences(tmp_path):
    model = write(tmp_path / "m", tiny(vocab_size=3000), prompts={"query": "ask: "})
    arguments = ["export", str(model), str(tmp_path / "js"), "--layout", "transformers.js"]
    ran = CliRunner().invoke(app, arguments)
    assert ran.exit_code == 0, ran.output
    assert 'pipeline("feature-extraction"' in ran.output and str(tmp_path / "js") in ran.output
    assert "loses its last [SEP]" in ran.output and "'ask: '" in ran.output
    assert isinstance(CliRunner().invoke(app, arguments).exception, AlbertkitError)  # the folder exists
    ran = CliRunner().invoke(app, [*arguments, "--force", "--json"])
    assert set(json.loads(ran.stdout)["models"]) == {"onnx/model.onnx", INT8_FILE}
