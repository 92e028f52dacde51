"""PL-BERT: an ALBERT over phonemes, part of speech synthesisers.

In: its PyTorch file (`step_….t7`, or a synthesiser's `.pth`) or an ONNX file that contains it (Kokoro).
Out: an `Artifact` with the encoder and a tokenizer of 178 symbols, one character each. The symbols are those of
PL-BERT; Kokoro uses the ids of some capital letters for other symbols.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.artifact import Artifact, ArtifactMetadata
from albertkit.errors import AlbertkitError
from albertkit.interop.huggingface import WORD_TABLE, Tensors, encoder_prefix, from_state_dict, read_pickle
from albertkit.tokenizer import Tokenizer

SYMBOLS = [
    "$",
    *';:,.!?¡¿—…"«»“” ',
    *"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
    *"ɑɐɒæɓʙβɔɕçɗɖðʤəɘɚɛɜɝɞɟʄɡɠɢʛɦɧħɥʜɨɪʝɭɬɫɮʟɱɯɰŋɳɲɴøɵɸθœɶʘɹɺɾɻʀʁɽʂʃʈʧʉʊʋⱱʌɣɤʍχʎʏʑʐʒʔʡʕʢǀǁǂǃˈˌːˑʼʴʰʱʲʷˠˤ˞↓↑→↗↘",
    "'",
    "\u0329",
    "'",
    "ᵻ",
]
# The tensors do not show these; every published PL-BERT has them.
HEADS = 12
LAYERS = 12
MAX_ONNX_BYTES = 2 * 2**30


def read_file(path: Path) -> Artifact:
    """Open a PL-BERT by its file."""
    layers = LAYERS
    if path.suffix == ".onnx":
        tensors, layers = read_onnx(path)
    else:
        tensors = _flatten(read_pickle(path))
    shape = _shape(tensors)
    config, weights = from_state_dict(tensors, {**shape, "num_hidden_layers": layers, "num_attention_heads": HEADS})
    tokenizer = Tokenizer.from_symbols(SYMBOLS) if config.vocab_size == len(SYMBOLS) else None
    meta = ArtifactMetadata(task="embed", history=({"step": "convert", "from": path.name, "layout": "pl-bert"},))
    return Artifact(config, weights, tokenizer, meta)


def _flatten(data: dict[str, Any], prefix: str = "") -> Tensors:
    """Nested dicts (`{"net": {…}}`, `{"bert": {…}}`) to one level; only arrays are kept."""
    out: Tensors = {}
    for key, value in data.items():
        if isinstance(value, dict):
            out |= _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, np.ndarray):
            out[prefix + key] = value
    return out


def _shape(tensors: Tensors) -> dict[str, int]:
    prefix = encoder_prefix(tensors)
    words = tensors[prefix + WORD_TABLE]
    positions = tensors.get(f"{prefix}embeddings.position_embeddings.weight")
    up = tensors.get(f"{prefix}encoder.albert_layer_groups.0.albert_layers.0.ffn.weight")
    if positions is None or up is None or any(a.ndim != 2 for a in (words, positions, up)):
        raise AlbertkitError(
            "the ALBERT in this file has no position table or feed-forward matrix, so its shape is unknown; "
            "use a complete file"
        )
    return {
        "vocab_size": words.shape[0],
        "embedding_size": words.shape[1],
        "max_position_embeddings": positions.shape[0],
        "hidden_size": up.shape[1],
        "intermediate_size": up.shape[0],
    }


def read_onnx(path: Path) -> tuple[Tensors, int]:
    """The tensors under their PyTorch names, and the number of uses of the shared layer.

    ONNX files name biases and norms but not matrices: a matrix is found through the product its bias is added to.
    """
    import onnx
    from onnx import numpy_helper

    if path.stat().st_size > MAX_ONNX_BYTES:
        raise AlbertkitError(f"{path} has {path.stat().st_size:,} bytes; an ONNX file has at most {MAX_ONNX_BYTES:,}")
    try:
        graph = onnx.load(str(path), load_external_data=False).graph
        stored = {t.name: t for t in graph.initializer}
        if any(t.data_location == onnx.TensorProto.EXTERNAL for t in stored.values()):
            raise AlbertkitError(f"{path} has weights in other files, which are not read; save it as one file")
        tensors: Tensors = {}
        uses = 0
        for name, tensor in stored.items():
            if re.search(r"(embeddings|albert_layer|embedding_hidden|pooler).*\.(weight|bias)$", name):
                tensors[name] = numpy_helper.to_array(tensor)
        products = {output: node for node in graph.node if node.op_type == "MatMul" for output in node.output}
        for node in graph.node:
            bias = next((n for n in node.input if n in tensors and n.endswith(".bias")), None)
            if node.op_type != "Add" or bias is None:
                continue
            product = next((products[n] for n in node.input if n in products), None)
            matrix = next((n for n in product.input if n in stored), None) if product is not None else None
            if matrix is not None:
                # nn.Linear is exported as x·Wᵀ, with Wᵀ stored.
                tensors[bias.removesuffix("bias") + "weight"] = numpy_helper.to_array(stored[matrix]).T.copy()
                uses += bias.endswith("albert_layers.0.attention.query.bias")
    except AlbertkitError:
        raise
    except Exception as error:  # protobuf and onnx raise many types for a damaged file
        raise AlbertkitError(f"{path} is not a readable ONNX file: {str(error).splitlines()[0][:160]}") from None
    return tensors, max(uses, 1)
