"""The model card of an artifact folder: README.md, from what the artifact itself records.

In: an `Artifact`. Out: Markdown. `artifact.py` writes it beside the weights.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from albertkit.weights import size

if TYPE_CHECKING:
    from albertkit.artifact import Artifact


def model_card(artifact: Artifact) -> str:
    """README.md of the folder, from what the artifact records."""
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
    if meta.labels:
        shown = ", ".join(meta.labels[:20]) + (" …" if len(meta.labels) > 20 else "")
        lines.append(f"- labels: {shown}")
    if config.options.active():
        lines.append(f"- options beyond canonical ALBERT: {', '.join(config.options.active())}")
    for title, entries in (("Scores", meta.metrics.items()), ("How it was made", enumerate(meta.history, 1))):
        rows = [f"- {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in entries]
        lines += ["", f"## {title}", "", *rows] if rows else []
    lines += [
        "",
        "```python",
        "from albertkit import Albert",
        'Albert("FOLDER").embed(["a text", "another"])',
        "```",
        "",
    ]
    return "\n".join(lines)
