"""Everybody's names for the same tensors: one reversible table for each foreign layout.

In: a config. Out: lists of `TensorName(ours, torch, tf, transpose)`, used for reading and, the other way round, for writing. The
left column is `weights.py`. `torch` is the name in a PyTorch file of that layout, `tf` the variable in a TensorFlow
checkpoint; a TF kernel is the transpose of a torch weight.
"""

from __future__ import annotations

from dataclasses import dataclass

from albertkit.config import AlbertConfig


@dataclass(frozen=True)
class TensorName:
    """One tensor in three languages."""

    ours: str
    torch: str
    tf: str
    transpose: bool = False
    """The TF array is the transpose of ours."""


# kind, ours, torch, tf. A `dense` has a kernel and a bias, a `norm` gamma and beta, a `table` is a bare matrix.
_Row = tuple[str, str, str, str]

_GROUP = "albert.encoder.albert_layer_groups.{g}.albert_layers.{i}"
_TF_GROUP = "bert/encoder/transformer/group_{g}/inner_group_{i}"

# Hugging Face transformers and Google's original code.
PUBLIC: list[_Row] = [
    ("table", "encoder.embeddings.word", "albert.embeddings.word_embeddings", "bert/embeddings/word_embeddings"),
    ("table", "encoder.embeddings.position", "albert.embeddings.position_embeddings", "bert/embeddings/position_embeddings"),
    ("table", "encoder.embeddings.segment", "albert.embeddings.token_type_embeddings", "bert/embeddings/token_type_embeddings"),
    ("norm", "encoder.embeddings.norm", "albert.embeddings.LayerNorm", "bert/embeddings/LayerNorm"),
    ("dense", "encoder.embeddings.projection", "albert.encoder.embedding_hidden_mapping_in", "bert/encoder/embedding_hidden_mapping_in"),
    ("dense", "encoder.groups.{g}.{i}.attention.query", f"{_GROUP}.attention.query", f"{_TF_GROUP}/attention_1/self/query"),
    ("dense", "encoder.groups.{g}.{i}.attention.key", f"{_GROUP}.attention.key", f"{_TF_GROUP}/attention_1/self/key"),
    ("dense", "encoder.groups.{g}.{i}.attention.value", f"{_GROUP}.attention.value", f"{_TF_GROUP}/attention_1/self/value"),
    ("dense", "encoder.groups.{g}.{i}.attention.output", f"{_GROUP}.attention.dense", f"{_TF_GROUP}/attention_1/output/dense"),
    ("norm", "encoder.groups.{g}.{i}.attention_norm", f"{_GROUP}.attention.LayerNorm", f"{_TF_GROUP}/LayerNorm"),
    ("dense", "encoder.groups.{g}.{i}.ffn.up", f"{_GROUP}.ffn", f"{_TF_GROUP}/ffn_1/intermediate/dense"),
    ("dense", "encoder.groups.{g}.{i}.ffn.down", f"{_GROUP}.ffn_output", f"{_TF_GROUP}/ffn_1/intermediate/output/dense"),
    ("norm", "encoder.groups.{g}.{i}.ffn_norm", f"{_GROUP}.full_layer_layer_norm", f"{_TF_GROUP}/LayerNorm_1"),
    ("dense", "encoder.pooler", "albert.pooler", "bert/pooler/dense"),
    ("dense", "heads.mlm.dense", "predictions.dense", "cls/predictions/transform/dense"),
    ("norm", "heads.mlm.norm", "predictions.LayerNorm", "cls/predictions/transform/LayerNorm"),
    ("bias", "heads.mlm.bias", "predictions.bias", "cls/predictions/output_bias"),
    ("output", "heads.sop.linear", "sop_classifier.classifier", "cls/seq_relationship"),
    ("output", "heads.answer.linear", "qa_outputs", "cls/squad"),
]  # fmt: skip

# One PyTorch name serves three heads; which one is meant stands in the folder's config.json or albertkit.json.
CLASSIFIERS = ("classify", "tag", "choose")

# The Chinese albert_zh checkpoints. Tables and the first norm are at H; the head goes down to E through the embedding's matrix.
_SHARED = "bert.encoder.layer_shared"
_TF_SHARED = "bert/encoder/layer_shared"
BRIGHTMART: list[_Row] = [
    ("table", "encoder.embeddings.word", "bert.embeddings.word_embeddings", "bert/embeddings/word_embeddings"),
    ("turned", "encoder.embeddings.projection", "bert.embeddings.word_embeddings_2", "bert/embeddings/word_embeddings_2"),
    ("table", "encoder.embeddings.position", "bert.embeddings.position_embeddings", "bert/embeddings/position_embeddings"),
    ("table", "encoder.embeddings.segment", "bert.embeddings.token_type_embeddings", "bert/embeddings/token_type_embeddings"),
    ("norm", "encoder.embeddings.norm", "bert.embeddings.LayerNorm", "bert/embeddings/LayerNorm"),
    ("dense", "encoder.groups.{g}.{i}.attention.query", f"{_SHARED}.attention.self.query", f"{_TF_SHARED}/attention/self/query"),
    ("dense", "encoder.groups.{g}.{i}.attention.key", f"{_SHARED}.attention.self.key", f"{_TF_SHARED}/attention/self/key"),
    ("dense", "encoder.groups.{g}.{i}.attention.value", f"{_SHARED}.attention.self.value", f"{_TF_SHARED}/attention/self/value"),
    ("dense", "encoder.groups.{g}.{i}.attention.output", f"{_SHARED}.attention.output.dense", f"{_TF_SHARED}/attention/output/dense"),
    ("norm", "encoder.groups.{g}.{i}.attention_norm", f"{_SHARED}.attention.output.LayerNorm", f"{_TF_SHARED}/attention/output/LayerNorm"),
    ("dense", "encoder.groups.{g}.{i}.ffn.up", f"{_SHARED}.intermediate.dense", f"{_TF_SHARED}/intermediate/dense"),
    ("dense", "encoder.groups.{g}.{i}.ffn.down", f"{_SHARED}.output.dense", f"{_TF_SHARED}/output/dense"),
    ("norm", "encoder.groups.{g}.{i}.ffn_norm", f"{_SHARED}.output.LayerNorm", f"{_TF_SHARED}/output/LayerNorm"),
    ("dense", "encoder.pooler", "bert.pooler.dense", "bert/pooler/dense"),
    ("dense", "heads.mlm.dense", "cls.predictions.transform.dense", "cls/predictions/transform/dense"),
    ("norm", "heads.mlm.norm", "cls.predictions.transform.LayerNorm", "cls/predictions/transform/LayerNorm"),
    ("bias", "heads.mlm.bias", "cls.predictions.bias", "cls/predictions/output_bias"),
    ("output", "heads.sop.linear", "cls.seq_relationship", "cls/seq_relationship"),
]  # fmt: skip

# kind → (suffix of ours, of torch, of tf, transposed in tf)
_PARTS: dict[str, list[tuple[str, str, str, bool]]] = {
    "table": [(".weight", ".weight", "", False)],
    "turned": [(".weight", ".weight", "", True)],
    "bias": [("", "", "", False)],
    "norm": [(".weight", ".weight", "/gamma", False), (".bias", ".bias", "/beta", False)],
    "dense": [(".weight", ".weight", "/kernel", True), (".bias", ".bias", "/bias", False)],
    "output": [(".weight", ".weight", "/output_weights", False), (".bias", ".bias", "/output_bias", False)],
}


def tensor_names(config: AlbertConfig, rows: list[_Row] = PUBLIC, classifier: str | None = None) -> list[TensorName]:
    """The table written out for a config; `classifier` says which head the public name `classifier` stands for.

    Artifacts always use the public names, whatever the options; `BRIGHTMART` is for reading foreign files.
    """
    if classifier is not None:
        rows = [*rows, ("output", f"heads.{classifier}.linear", "classifier", "classifier")]
    out: list[TensorName] = []
    for kind, ours, torch, tf in rows:
        repeated = "{g}" in ours
        for g in range(config.num_hidden_groups if repeated else 1):
            for i in range(config.inner_group_num if repeated else 1):
                place = {"g": g, "i": i}
                for mine, theirs, variable, transpose in _PARTS[kind]:
                    out.append(
                        TensorName(
                            ours.format(**place) + mine,
                            torch.format(**place) + theirs,
                            tf.format(**place) + variable,
                            transpose,
                        )
                    )
    return out
