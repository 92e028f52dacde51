"""Names of the same tensors in albertkit, PyTorch and TensorFlow: one table per layout.

In: a config. Out: lists of `TensorName(ours, torch, tf, transpose)`, for reading and for writing. `ours` is the name in
`weights.py`, `torch` the name in a PyTorch file of that layout, `tf` the variable in a TensorFlow checkpoint. A TF
kernel is the transpose of a torch weight.
"""

from __future__ import annotations

from dataclasses import dataclass

from albertkit.config import AlbertConfig


@dataclass(frozen=True)
class TensorName:
    """The three names of one tensor."""

    ours: str
    torch: str
    tf: str
    transpose: bool = False
    """The TF array is the transpose of ours."""


# kind, ours, torch, tf. A `dense` has a kernel and a bias, a `norm` gamma and beta, a `table` is a bare matrix.
_Row = tuple[str, str, str, str]

_TABLES, _ZH_TABLES, _TF_TABLES = "albert.embeddings", "bert.embeddings", "bert/embeddings"
_OUR_TABLES = "encoder.embeddings"
_PROJECTION = "embedding_hidden_mapping_in"
_OURS = "encoder.groups.{g}.{i}"
_GROUP = "albert.encoder.albert_layer_groups.{g}.albert_layers.{i}"
_TF_GROUP = "bert/encoder/transformer/group_{g}/inner_group_{i}"

# Hugging Face transformers and Google's original code.
PUBLIC: list[_Row] = [
    ("table", f"{_OUR_TABLES}.word", f"{_TABLES}.word_embeddings", f"{_TF_TABLES}/word_embeddings"),
    ("table", f"{_OUR_TABLES}.position", f"{_TABLES}.position_embeddings", f"{_TF_TABLES}/position_embeddings"),
    ("table", f"{_OUR_TABLES}.segment", f"{_TABLES}.token_type_embeddings", f"{_TF_TABLES}/token_type_embeddings"),
    ("norm", f"{_OUR_TABLES}.norm", f"{_TABLES}.LayerNorm", f"{_TF_TABLES}/LayerNorm"),
    ("dense", f"{_OUR_TABLES}.projection", f"albert.encoder.{_PROJECTION}", f"bert/encoder/{_PROJECTION}"),
    ("dense", f"{_OURS}.attention.query", f"{_GROUP}.attention.query", f"{_TF_GROUP}/attention_1/self/query"),
    ("dense", f"{_OURS}.attention.key", f"{_GROUP}.attention.key", f"{_TF_GROUP}/attention_1/self/key"),
    ("dense", f"{_OURS}.attention.value", f"{_GROUP}.attention.value", f"{_TF_GROUP}/attention_1/self/value"),
    ("dense", f"{_OURS}.attention.output", f"{_GROUP}.attention.dense", f"{_TF_GROUP}/attention_1/output/dense"),
    ("norm", f"{_OURS}.attention_norm", f"{_GROUP}.attention.LayerNorm", f"{_TF_GROUP}/LayerNorm"),
    ("dense", f"{_OURS}.ffn.up", f"{_GROUP}.ffn", f"{_TF_GROUP}/ffn_1/intermediate/dense"),
    ("dense", f"{_OURS}.ffn.down", f"{_GROUP}.ffn_output", f"{_TF_GROUP}/ffn_1/intermediate/output/dense"),
    ("norm", f"{_OURS}.ffn_norm", f"{_GROUP}.full_layer_layer_norm", f"{_TF_GROUP}/LayerNorm_1"),
    ("dense", "encoder.pooler", "albert.pooler", "bert/pooler/dense"),
    ("dense", "heads.mlm.dense", "predictions.dense", "cls/predictions/transform/dense"),
    ("norm", "heads.mlm.norm", "predictions.LayerNorm", "cls/predictions/transform/LayerNorm"),
    ("bias", "heads.mlm.bias", "predictions.bias", "cls/predictions/output_bias"),
    ("output", "heads.sop.linear", "sop_classifier.classifier", "cls/seq_relationship"),
    ("output", "heads.answer.linear", "qa_outputs", "cls/squad"),
]  # fmt: skip

# One PyTorch name serves three heads; config.json or albertkit.json of the folder says which.
CLASSIFIERS = ("classify", "tag", "choose")

# The Chinese albert_zh checkpoints. Tables and the first norm have size H; the head projects to E with the matrix of
# the embedding.
_SHARED = "bert.encoder.layer_shared"
_TF_SHARED = "bert/encoder/layer_shared"
BRIGHTMART: list[_Row] = [
    ("table", f"{_OUR_TABLES}.word", f"{_ZH_TABLES}.word_embeddings", f"{_TF_TABLES}/word_embeddings"),
    ("transposed", f"{_OUR_TABLES}.projection", f"{_ZH_TABLES}.word_embeddings_2", f"{_TF_TABLES}/word_embeddings_2"),
    ("table", f"{_OUR_TABLES}.position", f"{_ZH_TABLES}.position_embeddings", f"{_TF_TABLES}/position_embeddings"),
    ("table", f"{_OUR_TABLES}.segment", f"{_ZH_TABLES}.token_type_embeddings", f"{_TF_TABLES}/token_type_embeddings"),
    ("norm", f"{_OUR_TABLES}.norm", f"{_ZH_TABLES}.LayerNorm", f"{_TF_TABLES}/LayerNorm"),
    ("dense", f"{_OURS}.attention.query", f"{_SHARED}.attention.self.query", f"{_TF_SHARED}/attention/self/query"),
    ("dense", f"{_OURS}.attention.key", f"{_SHARED}.attention.self.key", f"{_TF_SHARED}/attention/self/key"),
    ("dense", f"{_OURS}.attention.value", f"{_SHARED}.attention.self.value", f"{_TF_SHARED}/attention/self/value"),
    ("dense", f"{_OURS}.attention.output", f"{_SHARED}.attention.output.dense", f"{_TF_SHARED}/attention/output/dense"),
    ("norm", f"{_OURS}.attention_norm",
     f"{_SHARED}.attention.output.LayerNorm", f"{_TF_SHARED}/attention/output/LayerNorm"),
    ("dense", f"{_OURS}.ffn.up", f"{_SHARED}.intermediate.dense", f"{_TF_SHARED}/intermediate/dense"),
    ("dense", f"{_OURS}.ffn.down", f"{_SHARED}.output.dense", f"{_TF_SHARED}/output/dense"),
    ("norm", f"{_OURS}.ffn_norm", f"{_SHARED}.output.LayerNorm", f"{_TF_SHARED}/output/LayerNorm"),
    ("dense", "encoder.pooler", "bert.pooler.dense", "bert/pooler/dense"),
    ("dense", "heads.mlm.dense", "cls.predictions.transform.dense", "cls/predictions/transform/dense"),
    ("norm", "heads.mlm.norm", "cls.predictions.transform.LayerNorm", "cls/predictions/transform/LayerNorm"),
    ("bias", "heads.mlm.bias", "cls.predictions.bias", "cls/predictions/output_bias"),
    ("output", "heads.sop.linear", "cls.seq_relationship", "cls/seq_relationship"),
]  # fmt: skip

# kind → (suffix of ours, of torch, of tf, transposed in tf)
_PARTS: dict[str, list[tuple[str, str, str, bool]]] = {
    "table": [(".weight", ".weight", "", False)],
    "transposed": [(".weight", ".weight", "", True)],
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
