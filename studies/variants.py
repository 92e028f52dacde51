"""The variants of ALBERT that `ablation.py` trains and `ablation_speed.py` times: what differs from canonical ALBERT."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from albertkit.config import AlbertConfig, Options, preset


@dataclass(frozen=True)
class Variant:
    """What differs from canonical ALBERT. Words such as "F/2" stand for numbers of the shape (`sizes`)."""

    options: dict[str, Any] = field(default_factory=dict)
    shape: dict[str, Any] = field(default_factory=dict)
    """Fields of the config."""
    goals: dict[str, Any] = field(default_factory=dict)
    """For `train/train_settings.py`."""

    def config(self, shape: str, length: int, layers: int | None = None) -> AlbertConfig:
        """The variant of a preset, or of one with another number of layers."""
        base = preset(shape)
        base = base.replace(num_hidden_layers=layers) if layers else base
        words = sizes(base, length)
        options, changes = ({n: words.get(v, v) for n, v in part.items()} for part in (self.options, self.shape))
        return base.replace(**changes, options=Options(**options))


def sizes(base: AlbertConfig, length: int) -> dict[Any, int]:
    """The words for numbers that depend on the shape or on the length of rows."""
    h, f = base.hidden_size, base.intermediate_size
    return {
        "H": h,
        "L": base.num_hidden_layers,
        "F/2": f // 2,
        "2F/3": f * 2 // 3,
        "d/2": base.head_size // 2,
        "length/4": length // 4,
    }


VARIANTS: dict[str, Variant] = {
    "canonical": Variant(),
    "low_rank": Variant({"low_rank": "d/2"}),
    "window": Variant({"window": "length/4"}),
    "window, every 3rd layer global": Variant({"window": "length/4", "global_every": 3}),
    "shared_heads": Variant({"shared_heads": True}),
    "attention_bias head": Variant({"attention_bias": "head"}),
    "attention_bias relative": Variant({"attention_bias": "relative"}),
    "gru": Variant({"gru": True}),
    "output_rank": Variant({"output_rank": 128}),  # as in document 000, the embedding size
    "value_size": Variant({"value_size": 32}),
    "gru, 2 layers": Variant({"gru": True, "gru_layers": 2}),
    "gru, no residual": Variant({"gru": True, "gru_residual": False}),
    "norm document": Variant({"norm": "document"}),
    "classifier mean": Variant({"classifier": "mean"}),
    "scale_embedding": Variant({"scale_embedding": True}),
    "layer_decay 0.9": Variant(goals={"layer_decay": 0.9}),
    "consistency cosine": Variant(goals={"consistency_weight": 0.1}),
    "consistency dot": Variant(goals={"consistency_weight": 0.1, "consistency_similarity": "dot"}),
    "groups 2": Variant(shape={"num_hidden_groups": 2}),
    "groups 4": Variant(shape={"num_hidden_groups": 4}),
    "no sharing": Variant(shape={"num_hidden_groups": "L"}),
    "no sharing, k = H": Variant(shape={"num_hidden_groups": "L", "embedding_size": "H"}),
    "k = 64": Variant(shape={"embedding_size": 64}),
    "k = 256": Variant(shape={"embedding_size": 256}),
    "k = H": Variant(shape={"embedding_size": "H"}),
}

# Blocks from other encoders, and training without sentence order (`blocks/README.md`). A name such as "relative, prelude 1, pre_norm" combines them.
BLOCKS: dict[str, Variant] = {
    "relative": Variant({"attention_bias": "relative"}),
    "prelude 1": Variant({"prelude_layers": 1}),
    "coda 1": Variant({"coda_layers": 1}),
    "outer F/2": Variant({"outer_intermediate_size": "F/2"}),
    "ffn_groups 2": Variant({"ffn_groups": 2}),
    "ffn_groups 3": Variant({"ffn_groups": 3}),
    "pre_norm": Variant({"pre_norm": True}),
    "gated_ffn": Variant({"gated_ffn": True}, {"intermediate_size": "2F/3"}),
    "groups 2": VARIANTS["groups 2"],
    "groups 3": Variant(shape={"num_hidden_groups": 3}),
    "gru": VARIANTS["gru"],
    "no order": Variant(goals={"sop_weight": 0.0}),
}


def variant(name: str) -> Variant:
    """A variant of the table, or a combination of blocks."""
    if name in VARIANTS:
        return VARIANTS[name]
    parts = name.split(", ")
    unknown = set(parts) - set(BLOCKS)
    if unknown:
        names = "; ".join(dict.fromkeys([*VARIANTS, *BLOCKS]))
        raise SystemExit(f"unknown variants: {'; '.join(sorted(unknown))}. Pass one of: {names}; or combine blocks")
    options, shape, goals = (
        {k: v for part in parts for k, v in getattr(BLOCKS[part], field).items()}
        for field in ("options", "shape", "goals")
    )
    return Variant(options, shape, goals)


def select_variants(only: str | None) -> list[str]:
    """The names in a list with ; between them, in its order, or all of the table."""
    names = [name.strip() for name in only.split(";")] if only else list(VARIANTS)
    for name in names:
        variant(name)
    return names
