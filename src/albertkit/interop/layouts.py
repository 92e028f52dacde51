"""`export --layout`: a model of vectors as the folder that another library opens.

In: any ALBERT checkpoint. Out: a folder and a `LayoutResult`. Both libraries then compute the vectors of
`Albert.embed(texts, long_texts="truncate")`. Before this file: `onnx_export.py` writes the graphs,
`transformers_js.py` the tokenizer for JavaScript, `sentence_transformers.py` the modules.

    transformers.js         config.json, tokenizer.json, onnx/model.onnx (float32) and onnx/model_quantized.onnx (q8)
    sentence-transformers   model.safetensors for torch; the two ONNX files instead if torch cannot compute the model
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from albertkit.artifact import Artifact, StoredModel
from albertkit.errors import AlbertkitError, check_choice
from albertkit.file_io import check_new_folder, new_folder, write_json
from albertkit.interop import sentence_transformers
from albertkit.interop.convert import open_stored
from albertkit.interop.onnx_export import ExportResult, ExportSettings, export_stored, exported_heads
from albertkit.interop.transformers_js import tokenizer_json
from albertkit.runtime.graph_builder import as_float
from albertkit.runtime.runtime_model import check_trained_depth, quantize_stored
from albertkit.transformers_folder import LAYOUTS, for_transformers, transformers_difference

FLOAT_FILE, INT8_FILE = "onnx/model.onnx", "onnx/model_quantized.onnx"
JS_POOLINGS = ("mean", "cls")


@dataclass(frozen=True)
class LayoutResult:
    """The folder that `export_layout` wrote.

    >>> from albertkit.interop.layouts import export_layout
    >>> export_layout("small", "folder", "sentence-transformers").models
    {}
    """

    path: str
    layout: str
    files: dict[str, int]
    """Bytes of each file."""
    models: dict[str, ExportResult] = field(default_factory=dict)
    """The ONNX files, compared with the source; empty if torch computes the vectors."""
    usage: str = ""
    """Code that computes vectors with the folder."""
    notes: tuple[str, ...] = ()
    """What the library does differently."""


def export_layout(
    source: Path | str | None,
    target: Path | str,
    layout: str,
    settings: ExportSettings | None = None,
    overwrite: bool = False,
    texts: Sequence[str] | None = None,
) -> LayoutResult:
    """Write the folder that another library opens. layout: transformers.js or sentence-transformers.

    settings: `depth`, and `head="vector"` for the vectors of a fine-tuned model. texts: as in `export`.

    >>> from albertkit.interop.layouts import export_layout
    >>> export_layout("small", "folder", "sentence-transformers").path
    'folder'
    """
    check_choice("layout", layout, LAYOUTS)
    for flag, is_set in (("tokenizer", settings.tokenizer), ("full-range", settings.full_range)) if settings else ():
        if is_set:
            raise AlbertkitError(
                f"--{flag} is for one ONNX file: a layout always has its tokenizer and 8-bit activations. Omit it."
            )
    target, settings = Path(target), settings or ExportSettings()
    check_new_folder(target, overwrite)
    stored = vector_model(open_stored(source), settings)
    settings = ExportSettings(head="vector", unsigned=True)  # the CPU or browser is not known
    floats = replace(
        stored,
        weights={name: as_float(weight) for name, weight in stored.weights.items()},
        metadata=replace(stored.metadata, quantization=None),
    )
    with new_folder(target, overwrite) as scratch:
        if layout == "transformers.js":
            models, usage, notes = write_transformers_js(stored, floats, scratch, settings, texts)
        else:
            models, usage, notes = write_sentence_transformers(stored, floats, scratch, settings, texts)
        (scratch / "README.md").write_text(model_card(layout, usage, notes), encoding="utf-8")
        paths = sorted(path for path in scratch.rglob("*") if path.is_file())
        sizes = {path.relative_to(scratch).as_posix(): path.stat().st_size for path in paths}
    models = {name: replace(model, path=str(target / name)) for name, model in models.items()}
    return LayoutResult(str(target), layout, sizes, models, usage.replace("FOLDER", str(target)), tuple(notes))


def vector_model(stored: StoredModel, settings: ExportSettings) -> StoredModel:
    """The part of a model that computes vectors, with the depth of the settings."""
    meta = stored.metadata
    if settings.head not in (None, "vector") or exported_heads(stored, settings.head) not in (("vector",), ("mlm",)):
        raise AlbertkitError(
            f"a layout contains the vectors of a model, and the output here is that of {settings.head or meta.task!r}. "
            "Pass --head vector for the vectors, or export one ONNX file (omit --layout)."
        )
    if stored.config.options.static:
        raise AlbertkitError(
            "a static model has no layers and no special tokens, which both layouts add. "
            "Export one ONNX file (omit --layout)."
        )
    depth = stored.config.num_hidden_layers if settings.depth == "full" else settings.depth or meta.depth
    if depth is not None:
        check_trained_depth(stored.config, meta, depth)
    return sentence_transformers.encoder_only(replace(stored, metadata=replace(meta, depth=depth)))


Written = tuple[dict[str, ExportResult], str, list[str]]  # ONNX files, usage, notes


def write_transformers_js(
    stored: StoredModel, floats: StoredModel, folder: Path, settings: ExportSettings, texts: Sequence[str] | None
) -> Written:
    """Write the files of transformers.js."""
    meta, room = stored.metadata, stored.config.max_position_embeddings
    if meta.pooling not in JS_POOLINGS:
        raise AlbertkitError(
            f"pooling {meta.pooling!r} is unknown to transformers.js, which has mean and cls. "
            "Export one ONNX file (omit --layout): its output sentence_embedding is the vector."
        )
    if stored.tokenizer is None:
        raise AlbertkitError("transformers.js needs a tokenizer, and this model has none. Export one ONNX file.")
    content, notes = tokenizer_json(stored.tokenizer)
    stored.tokenizer.save(folder, model_max_length=room)
    for name in ("spiece.model", "vocab.txt"):
        (folder / name).unlink(missing_ok=True)
    (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    notes.append(f"a text of over {room} tokens loses its last [SEP]; split such texts")
    notes += [f"put {text!r} before each text for the prompt {name!r}" for name, text in meta.prompts.items()]
    usage = (
        'const embed = await pipeline("feature-extraction", "FOLDER", { dtype: "q8" });\n'
        f'await embed(texts, {{ pooling: "{meta.pooling}", normalize: {str(meta.normalize).lower()} }});\n'
    )
    return write_onnx(stored, floats, folder, settings, texts), usage, notes


def write_sentence_transformers(
    stored: StoredModel, floats: StoredModel, folder: Path, settings: ExportSettings, texts: Sequence[str] | None
) -> Written:
    """Write the files of sentence-transformers: weights for torch if it computes the same, otherwise ONNX files."""
    sentence_transformers.check_pooling(stored)
    weights = {name: as_float(weight) for name, weight in floats.weights.items()}
    artifact = for_transformers(Artifact(floats.config, weights, floats.tokenizer, floats.metadata))
    difference = transformers_difference(artifact)
    sentence_transformers.write_modules(artifact, folder)
    if difference is None:
        sentence_transformers.write_weights(artifact, folder)
        return {}, 'SentenceTransformer("FOLDER").encode(texts)\n', []
    models = write_onnx(stored, floats, folder, settings, texts)
    usage = (
        'SentenceTransformer("FOLDER", backend="onnx").encode(texts)\n'
        f'SentenceTransformer("FOLDER", backend="onnx", model_kwargs={{"file_name": "{INT8_FILE}"}}).encode(texts)\n'
    )
    return models, usage, [f'needs backend="onnx" (pip install "sentence-transformers[onnx]"): {difference}']


def write_onnx(
    stored: StoredModel, floats: StoredModel, folder: Path, settings: ExportSettings, texts: Sequence[str] | None
) -> dict[str, ExportResult]:
    """Write config.json and the model in float32 and in int8, each compared with the source."""
    write_json(
        folder / "config.json",
        {**stored.config.to_dict(), "model_type": "albert", "architectures": ["AlbertModel"]},
    )
    int8 = stored
    if stored.metadata.quantization is None:
        int8 = replace(
            stored, weights=quantize_stored(stored, 8), metadata=replace(stored.metadata, quantization="int8")
        )
    return {
        name: export_stored(model, folder / name, settings, texts=texts, reference=stored)
        for name, model in ((FLOAT_FILE, floats), (INT8_FILE, int8))
    }


def model_card(layout: str, usage: str, notes: Sequence[str]) -> str:
    """README.md of the folder."""
    is_js = layout == "transformers.js"
    head = 'import { pipeline } from "@huggingface/transformers";\n' if is_js else ""
    head = head or "from sentence_transformers import SentenceTransformer\n"
    lines = ["---", f"library_name: {layout}", "tags: [albert]", "pipeline_tag: feature-extraction", "---"]
    lines += ["# ALBERT sentence vectors", "", f"Written by `albertkit export --layout {layout}`.", ""]
    lines += ["```js" if is_js else "```python", (head + usage).strip(), "```", ""]
    return "\n".join([*lines, *(f"- {note}" for note in notes), ""])
