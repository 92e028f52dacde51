"""Google's TensorFlow checkpoints (and albert_zh's), without TensorFlow.

In: a checkpoint prefix, or a folder with one, plus its albert_config.json and vocabulary. Out: an `Artifact`.
Before this file: `tensor_bundle.py` reads the file format, `tensor_names.py` has the names.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from albertkit.artifact import Artifact, ArtifactMetadata
from albertkit.config import AlbertConfig, Options
from albertkit.errors import AlbertkitError
from albertkit.interop.huggingface import layout_name, read_config, translate
from albertkit.interop.tensor_bundle import list_bundle, read_bundle
from albertkit.tensor_names import BRIGHTMART, PUBLIC, tensor_names
from albertkit.tokenizer import Tokenizer, check_size

# Variables of the optimizer, beside the weights.
SLOTS = ("/adam_m", "/adam_v", "/lamb_m", "/lamb_v", "/Adam", "/Adam_1", "/LAMB", "/LAMB_1", "/m", "/v")
COUNTERS = ("global_step", "beta1_power", "beta2_power", "_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter")


def read_checkpoint(prefix: Path) -> Artifact:
    """Open a checkpoint by its prefix (`model.ckpt-best` for model.ckpt-best.index)."""
    entries = list_bundle(prefix)
    variables = {n for n in entries if not n.endswith(SLOTS) and n.split("/")[-1] not in COUNTERS}
    name_prefix = _name_prefix(variables)
    brightmart = any("/layer_shared/" in name for name in variables)
    if not brightmart and not any("/transformer/group_0/" in name for name in variables):
        raise AlbertkitError(
            f"{prefix} is a TensorFlow checkpoint, but not an ALBERT: it has no variable 'transformer/group_0/…' or "
            f"'layer_shared/…' (first variables: {', '.join(sorted(variables)[:2])} …)"
        )
    settings = read_config(prefix.parent)
    if settings.get("hidden_act", "gelu") == "gelu":
        settings["hidden_act"] = "gelu_new"  # the tanh form, which that code calls `gelu`
    settings.setdefault("embedding_size", entries[f"{name_prefix}bert/embeddings/word_embeddings"].shape[-1])
    config = AlbertConfig.from_dict(settings)
    if brightmart:
        config = config.replace(options=Options(brightmart_layout=True))
    arrays = {n.removeprefix(name_prefix): a.astype(np.float32) for n, a in read_bundle(prefix, variables).items()}
    table = tensor_names(config, BRIGHTMART if brightmart else PUBLIC)
    weights = translate(arrays, table, lambda name: name.tf)
    for name in table:
        if name.transpose and name.ours in weights:
            weights[name.ours] = np.ascontiguousarray(weights[name.ours].T)
    task = "answer" if "heads.answer.linear.weight" in weights else "pretrain"
    meta = ArtifactMetadata(
        task=task,
        history=({"step": "convert", "from": prefix.name, "layout": f"{layout_name(config)} (TensorFlow)"},),
    )
    return Artifact(config, weights, read_tokenizer(prefix.parent, config.vocab_size), meta)


def read_tokenizer(folder: Path, vocab_size: int) -> Tokenizer:
    """The vocabulary beside a checkpoint: Google's releases call it 30k-clean.model or vocab_chinese.txt."""
    models = sorted([*folder.glob("*.model"), *folder.glob("assets/*.model")])
    lists = sorted([*folder.glob("vocab*.txt"), *folder.glob("assets/vocab*.txt")])
    has_common_name = any((folder / name).is_file() for name in ("tokenizer.json", "spiece.model", "vocab.txt"))
    if has_common_name or len(models) + len(lists) != 1:
        return Tokenizer.load(folder, vocab_size=vocab_size)
    tokenizer = Tokenizer.from_spiece(models[0]) if models else Tokenizer.from_vocab(lists[0])
    check_size(models[0] if models else lists[0], tokenizer.vocabulary, vocab_size)
    return tokenizer


def to_variables(artifact: Artifact) -> dict[str, np.ndarray]:
    """The weights under Google's variable names."""
    out = {}
    for name in tensor_names(artifact.config, BRIGHTMART if artifact.config.options.brightmart_layout else PUBLIC):
        if name.ours in artifact.weights:
            array = artifact.weights[name.ours]
            out[name.tf] = np.ascontiguousarray(array.T) if name.transpose else array
    return out


def _name_prefix(variables: set[str]) -> str:
    """The prefix of all names: TF-Hub exports have `module/`."""
    tail = "bert/embeddings/word_embeddings"
    roots = [name.removesuffix(tail) for name in variables if name.endswith(tail)]
    if len(roots) != 1:
        raise AlbertkitError(f"the checkpoint has {len(roots)} variables named …{tail}; exactly one is needed")
    return roots[0]
