"""The folder of `export --web`: complete, each weight once, hashed; and its errors. No browser."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner

from albertkit.albert import Albert
from albertkit.artifact import ArtifactMetadata, read_stored, write_artifact
from albertkit.builtin import resolve
from albertkit.cli.entry_point import app
from albertkit.config import Options
from albertkit.errors import AlbertkitError
from albertkit.explain.activations import ActivationEncoder
from albertkit.interop.character_tables import word_classes
from albertkit.interop.web_export import (
    WEB,
    WEIGHTS_FILE,
    check_supported,
    export_web,
    quantize_to_int8,
    runtime_files,
    write_model,
)
from tests.conftest import ROOT, tiny
from tests.test_albert import make


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """The folder `model` of two built-in models."""
    folder = tmp_path_factory.mktemp("written")
    for name in ("small", "small-pretrained"):
        write_model(folder / name, read_stored(resolve(name)), name)
    return folder


def tensors(folder: Path) -> list[tuple[str, int, int]]:
    """(part, offset, length) of each tensor in the file of weights."""
    found = []
    for path in sorted(folder.glob("*.onnx")):
        for tensor in onnx.load(path, load_external_data=False).graph.initializer:
            place = {entry.key: entry.value for entry in tensor.external_data}
            if place:
                assert place["location"] == WEIGHTS_FILE
                found.append((path.stem, int(place["offset"]), int(place["length"])))
    return found


def test_each_weight_is_stored_once(written):
    for name in ("small", "small-pretrained"):
        data = (written / name / WEIGHTS_FILE).read_bytes()
        places = sorted({(offset, length) for _, offset, length in tensors(written / name)})
        assert all(a + b <= c for (a, b), (c, _) in itertools.pairwise(places))
        assert len(data) - sum(length for _, length in places) < 64 * len(places)
        blocks = [hashlib.sha256(data[a : a + b]).digest() for a, b in places]
        assert len(set(blocks)) == len(blocks)
        stored = sum(path.stat().st_size for path in resolve(name).glob("*.safetensors"))
        assert len(data) < 1.08 * stored
    parts = {part for part, offset, length in tensors(written / "small-pretrained") if length > 3_000_000}
    assert parts == {"embedding", "mlm"}  # both read the same word table


def test_files_are_hashed_and_named(written):
    about = json.loads((written / "small" / "model.json").read_text())
    files = {path.name for path in (written / "small").iterdir()} - {"model.json"}
    assert set(about["files"]) == files and about["parts"] == ["embedding", "layer", "attention"]
    for name, expected in about["files"].items():
        data = (written / "small" / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (expected["bytes"], expected["sha256"])
    assert about["depths"] == [3, 6, 9, 12] and about["dim"] == 384 and about["language"] == "English"


def test_the_graphs_compute_the_vector_of_python(written, monkeypatch):
    """Both computed by onnxruntime; compiled layers round attention to bfloat16."""
    monkeypatch.setenv("ALBERTKIT_LAYERS", "onnxruntime")
    folder, albert = written / "small", Albert("small", threads=1)
    sessions = [ort.InferenceSession(str(folder / f"{part}.onnx"), providers=["CPUExecutionProvider"]) for part in ("embedding", "layer")]  # fmt: skip
    ids = np.array([albert.tokenizer.encode("a man plays the guitar").ids], np.int64)
    (hidden,) = sessions[0].run(None, {"ids": ids, "segments": np.zeros_like(ids)})
    for _ in range(3):
        (hidden,) = sessions[1].run(None, {"hidden": hidden, "lengths": np.array([ids.shape[1]], np.int32)})
    vector = hidden[0].mean(axis=0)
    wanted = albert.embed("a man plays the guitar", depth=3)
    if albert.engine.max_level < 255:
        pytest.skip("this processor has 7-bit activations, browsers have 8 bits")
    assert vector / np.linalg.norm(vector) == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize(
    "options", [{}, {"attention_bias": "relative"}, {"low_rank": 4}, {"shared_heads": True}, {"value_size": 4}], ids=str
)
def test_attention_equals_pythons(options, tmp_path):
    """Of the first layer; Python computes attention in floats, the page with 8-bit products."""
    write_artifact(make(tiny(vocab_size=3000, options=Options(**options))), tmp_path / "m")
    stored = read_stored(tmp_path / "m")
    write_model(tmp_path / "web", quantize_to_int8(stored), "tiny")
    encoder = ActivationEncoder(stored.config, stored.weights)
    ids = np.array([2, 25, 48, 21, 1289, 3], np.int64)
    wanted = encoder.run(ids, np.zeros_like(ids), 1).attention[0]
    sessions = [ort.InferenceSession(str(tmp_path / "web" / f"{part}.onnx"), providers=["CPUExecutionProvider"]) for part in ("embedding", "attention")]  # fmt: skip
    (hidden,) = sessions[0].run(None, {"ids": ids[None], "segments": np.zeros_like(ids)[None]})
    (found,) = sessions[1].run(None, {"hidden": hidden})
    assert found.shape == (1, *wanted.shape) and np.abs(found[0] - wanted).max() < 0.02


def test_the_folder_is_a_package(tmp_path, onnxruntime_web):
    result = export_web("small", tmp_path / "out")
    there = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert set(result.files) == there and sum(result.files.values()) > result.transfer_bytes
    assert result.transfer_bytes < 10_000_000  # model, onnxruntime-web, tokenizer and page
    package = json.loads((tmp_path / "out" / "package.json").read_text())
    assert re.fullmatch(r"[a-z0-9-]+", package["name"]) and package["type"] == "module"
    named = [package["main"], package["types"], *package["exports"]["."].values()]
    assert {name.removeprefix("./") for name in named} <= there
    worker = (tmp_path / "out" / "service-worker.js").read_text()
    assert re.search(r'const VERSION = "[0-9a-f]{16}";', worker)
    assert "FILES_OF_THIS_EXPORT" not in worker and '"model/weights.bin"' in worker and '"index.html"' not in worker
    kept = re.search(r"const PAGE = (\[.*?\]);", worker, re.S)
    assert kept and set(json.loads(kept[1])) - {"./"} <= there
    for path in (tmp_path / "out").glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert "http://" not in text and "https://" not in text, path.name
        imported = re.findall(r'(?:from|import|new URL\()\s*\(?"\./([\w./-]+)"', text)
        assert {name for name in imported if "." in name} <= there, path.name
        copied = re.findall(r'new URL\("\./([^"]*)", import\.meta\.url\)', text)
        assert set(copied) <= there, path.name  # bundlers copy files, not folders
    with pytest.raises(AlbertkitError, match="exists and is not empty"):
        export_web("small", tmp_path / "out")
    export_web("small-zh", tmp_path / "out", overwrite=True)


def test_files_of_users_are_not_overwritten(tmp_path, monkeypatch):
    (tmp_path / "ort.wasm").write_bytes(b"wasm")
    monkeypatch.setattr("albertkit.interop.web_export.runtime_files", lambda folder: [tmp_path / "ort.wasm"])
    page = tmp_path / "page"
    export_web("small", page)
    export_web("small", page, overwrite=True)
    (page / "img").mkdir()
    (page / "img" / "logo.svg").write_text("<svg/>")
    (page / "index.html").write_text("<p>mine</p>")
    (page / "package.json").write_text("{}")
    (page / "link").symlink_to(tmp_path)
    with pytest.raises(
        AlbertkitError, match=r"img/logo\.svg, index\.html, link, package\.json\. Overwriting would delete"
    ):
        export_web("small", page, overwrite=True)
    with pytest.raises(AlbertkitError, match="added or changed since it was written"):
        write_artifact(make(tiny(vocab_size=3000)), page, overwrite=True)
    assert (page / "index.html").read_text() == "<p>mine</p>" and (page / "img" / "logo.svg").exists()
    for name in ("img/logo.svg", "link", "package.json"):
        (page / name).unlink()
    (page / "index.html").unlink()  # users may delete the demo page
    export_web("small", page, overwrite=True)
    assert (page / "index.html").read_text() == (WEB / "index.html").read_text()
    (page / "albertkit-files.json").unlink()  # then nothing says whose files they are
    with pytest.raises(AlbertkitError, match="is not a model folder, so it is not replaced"):
        export_web("small", page, overwrite=True)


def test_a_model_of_entities_has_the_classes_of_characters(tmp_path):
    artifact = make(tiny(vocab_size=3000), ("tag",), labels=3)
    metadata = ArtifactMetadata(task="tag", labels=("O", "B-X", "I-X"))
    write_artifact(replace(artifact, metadata=metadata), tmp_path / "m")
    write_model(tmp_path / "web", quantize_to_int8(read_stored(tmp_path / "m")), "tiny")
    about = json.loads((tmp_path / "web" / "model.json").read_text())
    assert about["word_classes"] == [*word_classes()]


def test_the_wheel_has_no_webassembly():
    assert [path for path in (ROOT / "src").rglob("*") if path.suffix in (".wasm", ".mjs")] == []
    assert sum(path.stat().st_size for path in WEB.iterdir()) < 150_000


def test_unsupported_models_are_errors(tmp_path):
    def stored(**changes):
        write_artifact(make(tiny(vocab_size=3000, **changes)), tmp_path / "m", overwrite=True)
        return read_stored(tmp_path / "m")

    fine = stored()
    check_supported(fine)
    cases = {
        "no tokenizer for text": replace(fine, tokenizer=None),
        "task 'answer' is not available in the browser": replace(fine, metadata=ArtifactMetadata(task="answer")),
        "several layers": stored(num_hidden_groups=2, num_hidden_layers=4),
        "the option window": stored(options=Options(window=4)),
    }
    for message, one in cases.items():
        with pytest.raises(AlbertkitError, match=message):
            check_supported(one)


def test_a_float_model_is_quantized(tmp_path, onnxruntime_web):
    write_artifact(make(tiny(vocab_size=3000)), tmp_path / "m")
    export_web(tmp_path / "m", tmp_path / "out")
    (layer,) = [onnx.load(p, load_external_data=False) for p in (tmp_path / "out/model").glob("layer.onnx")]
    assert any(t.data_type == onnx.TensorProto.INT8 for t in layer.graph.initializer)


def test_onnxruntime_web_is_checked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("albertkit.interop.web_export.CLONE_FOLDER", tmp_path / "clone")
    install = r"npm install onnxruntime-web@\d+\.\d+\.\d+"
    with pytest.raises(AlbertkitError, match=rf"node_modules/onnxruntime-web does not exist, .* {install}"):
        runtime_files()
    with pytest.raises(AlbertkitError, match=f"nowhere does not exist, .* {install}"):
        runtime_files("nowhere")
    (tmp_path / "clone").mkdir()
    with pytest.raises(AlbertkitError, match="ort.wasm.min.mjs does not exist"):
        runtime_files()
    (tmp_path / "clone" / "ort.wasm.min.mjs").write_text("")
    with pytest.raises(AlbertkitError, match=f"differs from the file of onnxruntime-web .* {install}"):
        runtime_files()


def test_the_command(tmp_path, onnxruntime_web):
    def run(*arguments: str):
        return CliRunner().invoke(app, ["export", "small", *arguments])

    done = run("--web", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert "depths 3, 6, 9, 12" in done.output and "python -m http.server --directory" in done.output
    assert json.loads(run("--web", str(tmp_path / "out"), "--force", "--json").output)["model_bytes"] < 7_000_000
    for arguments, message in (
        (["out.onnx", "--web", "x"], "OUTPUT out.onnx cannot be combined with --web"),
        (["--web", "x", "--depth", "3"], "--depth cannot be combined with --web"),
        (["--onnxruntime-web", "x"], "--onnxruntime-web was passed without --web"),
    ):
        assert message in str(run(*arguments).exception)
