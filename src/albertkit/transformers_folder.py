"""The part of an artifact folder that transformers reads: config.json, the public names of the weights, and README.md.

In: an artifact. Out: `public_config`, `public_tensors` and `model_card`, which `artifact.py` writes. `for_transformers`
changes a model so that transformers computes the same probabilities; `convert` and `export` use it.

A folder names a class of transformers only if this class computes the same. Otherwise its `model_type` is `albertkit`,
which transformers rejects, and `transformers_difference` has the reason.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.head_graph import head_file
from albertkit.weights import CLASSIFIERS, size, tensor_names

if TYPE_CHECKING:
    from albertkit.artifact import Artifact, ArtifactMetadata, StoredModel

Model = TypeVar("Model", "Artifact", "StoredModel")

LAYOUTS = ("transformers.js", "sentence-transformers")  # folders of other libraries (`interop/layouts.py`)
OWN_TYPE = "albertkit"  # a `model_type` that transformers does not know
# Head → the class of transformers that reads the folder.
ARCHITECTURES = {
    "classify": "AlbertForSequenceClassification",
    "tag": "AlbertForTokenClassification",
    "choose": "AlbertForMultipleChoice",
    "answer": "AlbertForQuestionAnswering",
    "sop": "AlbertForPreTraining",
    "mlm": "AlbertForMaskedLM",
}
POOLER_HEADS = ("classify", "choose", "sop")
# Kind of labels (`tasks/classify.py`) → the function that transformers applies to the scores.
PROBLEM_TYPES = {
    "single": "single_label_classification",
    "multi": "multi_label_classification",
    "regression": "regression",
}


# Names ---------------------------------------------------------------------------------------------------------------


def public_classifier(artifact: Artifact) -> str:
    """The head that is written under the public name `classifier`: the task's head, else the first one."""
    heads = [head for head in CLASSIFIERS if head in artifact.heads]
    if artifact.metadata.task in heads:
        return artifact.metadata.task
    return heads[0] if heads else "classify"


def public_head(artifact: Artifact) -> str | None:
    """The head whose class of transformers opens the folder; None without heads that transformers has."""
    heads = artifact.heads
    if "encoder.pooler.weight" not in artifact.weights and "mlm" in heads:
        heads = [head for head in heads if head != "sop"]  # the masked words need no pooler
    return next((head for head in (public_classifier(artifact), *ARCHITECTURES) if head in heads), None)


def public_tensors(artifact: Artifact) -> dict[str, np.ndarray]:
    """The weights under their public names; heads that transformers would compute differently keep our names."""
    classifier = public_classifier(artifact) if transformers_difference(artifact) is None else None
    theirs = {name.ours: name.torch for name in tensor_names(artifact.config, classifier=classifier)}
    return {theirs.get(n, n): a for n, a in artifact.weights.items()}


def public_config(artifact: Artifact, is_quantized: bool = False) -> dict[str, Any]:
    """`config.json`; with the class, labels and kind of problem if transformers computes the same."""
    data, head = artifact.config.to_dict(), public_head(artifact)
    if is_quantized or transformers_difference(artifact) is not None:
        return {**data, "model_type": OWN_TYPE}
    data["architectures"] = ["AlbertModel" if head is None else ARCHITECTURES[head]]
    labels = artifact.metadata.labels
    if head in ("classify", "tag"):
        labels = labels or tuple(f"LABEL_{row}" for row in range(len(artifact.weights[f"heads.{head}.linear.bias"])))
    if labels:
        data["id2label"] = {str(i): label for i, label in enumerate(labels)}
        data["label2id"] = {label: i for i, label in enumerate(labels)}
    if head == "classify":
        data["problem_type"] = PROBLEM_TYPES[label_kind(artifact.metadata)]
    return data


def label_kind(metadata: ArtifactMetadata) -> str:
    """Kind of the labels of a classifier: single, multi or regression."""
    kind = "multi" if metadata.task == "dialogue" else metadata.details.get("kind", "single")
    return str(kind) if kind in PROBLEM_TYPES else "single"


# Differences ---------------------------------------------------------------------------------------------------------


def transformers_difference(artifact: Artifact) -> str | None:
    """The reason why transformers would compute something else from these weights; None if it computes the same."""
    config, meta, head = artifact.config, artifact.metadata, public_head(artifact)
    layers, groups = config.num_hidden_layers, config.num_hidden_groups
    if artifact.head_graphs:
        return f"it has a custom head ({', '.join(artifact.head_graphs)}), which no class of transformers has"
    if config.options.active():
        return f"it uses options that ALBERT does not have ({', '.join(config.options.active())})"
    if any(int(i / (layers / groups)) != config.group_of(i) for i in range(layers)):
        return f"transformers applies its {groups} groups of weights to other layers"
    if meta.depth not in (None, layers):
        return f"it applies {meta.depth} layers by default, and transformers applies all {layers}"
    if meta.task == "generate":
        return "it generates text, and no class of transformers has its attention mask"
    if meta.task == "intent":
        return "it has two heads, one for intents and one for slots, and a class of transformers has one"
    if head in POOLER_HEADS and meta.details.get("reads") == "vector":
        return f"its head reads the sentence vector ({meta.pooling}), and transformers reads the pooler of [CLS]"
    if head in POOLER_HEADS and "encoder.pooler.weight" not in artifact.weights:
        return "it has no pooler, which the class of transformers needs"
    if score_scale(meta) != (1.0, 0.0):
        return "its scores have a temperature, a mean or a standard deviation that is not in the weights"
    return None


def transformers_remedy(artifact: Artifact) -> str:
    """The command that makes the model available to other programs, for a model with a difference."""
    config, meta = artifact.config, artifact.metadata
    has_plain_layers = config.num_hidden_groups == 1 and not config.options.active()
    if meta.task == "embed" and meta.depth is not None and has_plain_layers:
        return "Run  albertkit export FOLDER OUT --layout sentence-transformers  and open OUT"
    if transformers_difference(for_transformers(artifact)) is None:
        return "Run  albertkit convert FOLDER OUT  and open OUT"
    if artifact.metadata.task == "generate":
        return "Use albertkit"
    return "Export it to ONNX (albertkit export), or use albertkit"


def transformers_notes(artifact: Artifact) -> list[str]:
    """What users of the class of transformers must do themselves to get the results of albertkit."""
    meta, head = artifact.metadata, public_head(artifact)
    details, notes = meta.details, []
    if head == "classify" and details.get("min_probability"):
        notes.append(
            f"a text whose best class has a probability below {details['min_probability']:.4g} is out of scope"
        )
    if head == "classify" and label_kind(meta) == "multi":
        notes.append(f"labels with a probability of at least {details.get('threshold', 0.5):.4g} are predicted")
    if head == "answer" and details.get("threshold") is not None:
        notes.append(f"an answer counts if its score exceeds that of [CLS] by {details['threshold']:.4g}")
    if head == "tag":
        notes.append("punctuation directly before a word or inside it may have other tokens than in albertkit")
    if "max_length" in details:
        notes.append(f"truncate texts (truncation=True) to {max_tokens(artifact)} tokens")
    if head is None:
        notes.append("use last_hidden_state; pooler_output is not trained")
    return notes


def describe_transformers(artifact: Artifact) -> str:
    """Whether transformers computes the same as albertkit from this folder, and what it does not know."""
    if artifact.metadata.quantization is not None:
        return "cannot open quantized weights"
    difference = transformers_difference(artifact)
    if difference is not None:
        return f"cannot open this folder: {difference}. {transformers_remedy(artifact)}."
    notes = transformers_notes(artifact)
    return f"{public_config(artifact)['architectures'][0]}" + (f"; {'; '.join(notes)}" if notes else "")


def max_tokens(model: Artifact | StoredModel) -> int:
    """Maximum tokens of a text: of the task's training, or of the position table."""
    length = model.metadata.details.get("max_length")
    room = model.config.max_position_embeddings
    return min(length, room) if isinstance(length, int) and length > 0 else room


# Scores --------------------------------------------------------------------------------------------------------------


def score_scale(metadata: ArtifactMetadata) -> tuple[float, float]:
    """(factor, offset): the scores of a classifier are multiplied by the factor, then the offset is added."""
    if metadata.task != "classify":
        return 1.0, 0.0
    values = {"temperature": 1.0, "std": 1.0, "mean": 0.0}
    for name, default in values.items():
        value: Any = metadata.details.get(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or (name != "mean" and value <= 0):
            raise AlbertkitError(f"{name} is {value!r} in albertkit.json; it must be a number. Use another copy.")
        values[name] = float(value)
    return values["std"] / values["temperature"], values["mean"]


def fold_scores(model: Model) -> Model:
    """The model with temperature, mean and standard deviation of its scores in the weights of its head.

    The softmax (or sigmoid) of its scores are the probabilities; a regression's score is the value.
    """
    factor, offset = score_scale(model.metadata)
    names = ("heads.classify.linear.weight", "heads.classify.linear.bias")
    if (factor, offset) == (1.0, 0.0) or names[0] not in model.weights:
        return model
    weights: Mapping[str, Any] = model.weights
    weight, bias = (np.asarray(weights[name], np.float64) for name in names)
    scaled = (weight * factor).astype(np.float32), (bias * factor + offset).astype(np.float32)
    details = model.metadata.details
    unit = {"temperature": 1.0, "mean": 0.0, "std": 1.0, "score_scale": details.get("score_scale", 1.0) / factor}
    metadata = dataclasses.replace(model.metadata, details={**details, **unit})
    return dataclasses.replace(model, weights={**weights, **dict(zip(names, scaled, strict=True))}, metadata=metadata)


def for_transformers(artifact: Artifact) -> Artifact:
    """The model in a form that transformers computes: scores folded, layers as many as are applied by default.

    A model that transformers cannot compute is returned unchanged.
    """
    folded, depth = fold_scores(artifact), artifact.metadata.depth
    if depth is not None and depth >= artifact.config.layer_groups:
        config = artifact.config.replace(num_hidden_layers=depth)
        if all(config.group_of(layer) == artifact.config.group_of(layer) for layer in range(depth)):
            metadata = dataclasses.replace(folded.metadata, depth=None)
            folded = dataclasses.replace(folded, config=config, metadata=metadata)
    return folded if transformers_difference(folded) is None else artifact


def model_card(artifact: Artifact) -> str:
    """README.md of the folder, from the artifact's metadata."""
    config, meta = artifact.config, artifact.metadata
    encoder = {n: a.shape for n, a in artifact.weights.items() if n.startswith("encoder.")}
    lines = [
        "---",
        "library_name: albertkit",
        "tags: [albert]",
        "---",
        f"# ALBERT, {size(encoder):,} parameters",
        "",
        f"- layers {config.num_hidden_layers} (weights of {config.layer_groups * config.inner_group_num}), "
        f"hidden {config.hidden_size}, heads {config.num_attention_heads}, "
        f"embedding {config.embedding_size}, vocabulary {config.vocab_size:,}, length {config.max_position_embeddings}",
        f"- task: {meta.task}; heads: {', '.join(artifact.heads) or 'none'}",
    ]
    if artifact.tokenizer is not None:
        lines.append(f"- tokenizer: {artifact.tokenizer.kind}, {artifact.tokenizer.vocab_size:,} tokens")
    for head in artifact.head_graphs:
        lines.append(f"- the head {head} is a custom one, in float, computed by the graph {head_file(head)}")
    if meta.labels:
        shown = ", ".join(meta.labels[:20]) + (" …" if len(meta.labels) > 20 else "")
        lines.append(f"- labels: {shown}")
    if config.options.active():
        lines.append(f"- options beyond canonical ALBERT: {', '.join(config.options.active())}")
    lines.append(f"- transformers: {describe_transformers(artifact)}")
    for title, entries in (("Scores", meta.metrics.items()), ("How it was made", enumerate(meta.history, 1))):
        rows = [f"- {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in entries]
        lines += ["", f"## {title}", "", *rows] if rows else []
    usage = '```python\nfrom albertkit import Albert\nAlbert("FOLDER").embed(["a text", "another"])\n```\n'
    return "\n".join([*lines, "", usage])
