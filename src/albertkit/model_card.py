"""The model card: README.md of an artifact folder, from the artifact's metadata. `artifact.py` writes it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from albertkit.head_graph import head_file
from albertkit.transformers_folder import describe_transformers
from albertkit.weights import size

if TYPE_CHECKING:
    from albertkit.artifact import Artifact


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
        f"- layers {config.num_hidden_layers} (weights of {config.num_hidden_groups * config.inner_group_num}), "
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
