"""Extensions of canonical ALBERT: `Options`, one field per extension; and `setting`, a field with its help text.

In: the key `albertkit` of a `config.json`, or `name=value` from a command line. Out: validated `Options`, all off by
default. `config.py` contains them. `model/optional_modules.py` (torch) and `runtime/graph.py` (ONNX) implement them.
docs/reference/artifact.md lists the formula, the cost and the test of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from albertkit.errors import AlbertkitError, check_keys

LARGEST = {
    "low_rank": 65_536, "value_size": 65_536, "output_rank": 65_536, "window": 2_048, "global_every": 1_024,
    "relative_reach": 65_536, "head_size": 65_536, "prelude_layers": 1_024, "coda_layers": 1_024,
    "outer_intermediate_size": 262_144, "ffn_groups": 1_024,
}  # fmt: skip
MAX_GRU_LAYERS = 16
CHOICES = {"attention_bias": ("", "head", "relative"), "norm": ("", "document"), "classifier": ("", "mean")}
REACH = 64
ADVANCED = "Advanced options"
T = TypeVar("T")


def setting(default: T, help_text: str, advanced: bool = False) -> T:
    """A dataclass field with a default and a help text; `--help` lists advanced fields at the end."""
    heading = {"heading": ADVANCED} if advanced else {}
    return dataclasses.field(default=default, metadata={"help": help_text, **heading})


@dataclass(frozen=True)
class Options:
    """Extensions of canonical ALBERT. All are off by default."""

    brightmart_layout: bool = False
    """Position and segment embeddings and the first LayerNorm have size H, after the projection, as in albert_zh."""
    scale_embedding: bool = False
    """Word embeddings are multiplied by √E before positions and segments are added."""
    head_size: int = 0
    """Size of one attention head after heads were pruned; 0: H divided by the number of heads."""
    static: bool = False
    """A static model: the mean of one vector of size H per token, without layers (`compress/static_model.py`)."""
    low_rank: int = 0
    """Width (d_a) to which the queries, keys and values of each head are projected; 0: no projection."""
    value_size: int = 0
    """Size of a head's values (d_v), where queries and keys have the head size d: the context of a head,
    softmax(QKᵀ/√d)·V, has d_v numbers. 0: the head size."""
    output_rank: int = 0
    """Rank r of the output of attention: context·A·B + b, with A (heads · d_v, r) and B (r, H); 0: one full matrix."""
    window: int = 0
    """A token attends to tokens up to this distance and to the first token, which attends to all; 0: full attention."""
    global_every: int = 0
    """With a window, every n-th layer is global; 0: none."""
    shared_heads: bool = False
    """All heads share one key and one value matrix (multi-query attention)."""
    attention_bias: str = ""
    """Learnable bias θ on the scores: "head", one per head, for the first token; "relative", per head and distance."""
    relative_reach: int = REACH
    """With relative bias, the largest distance; larger distances are clipped to it."""
    gru: bool = False
    """The output of a GRU over the embeddings is added to them before the first layer: x + GRU(x)."""
    gru_layers: int = 1
    """With a GRU, its layers: GRUₙ(… GRU₁(x)), each of size H."""
    gru_residual: bool = True
    """With a GRU, whether its output is added to the embeddings, or replaces them: GRU(x) instead of x + GRU(x)."""
    gated_ffn: bool = False
    """A gated feed-forward part: (activation(x·G + g) ⊙ (x·U + u))·D + d; with GELU it is GeGLU, with SiLU SwiGLU."""
    prelude_layers: int = 0
    """Number of first layers with their own weights. The layers between prelude and coda, the core, share weights.
    `num_hidden_layers` counts all layers. At a lower depth, the core is applied less often."""
    coda_layers: int = 0
    """Number of last layers with their own weights. They are the last at every depth."""
    outer_intermediate_size: int = 0
    """Size of the feed-forward part in prelude and coda; 0: the `intermediate_size`."""
    ffn_groups: int = 0
    """Number N of feed-forward parts of the core, whose layers share attention: layer i of n uses part i·N // n, with
    its own norm. A multiple of `num_hidden_groups`; 0: one per group."""
    pre_norm: bool = False
    """LayerNorm before attention and feed-forward instead of after them: x + f(norm(x)). One more, `output_norm`,
    normalises what is read after the last layer, at every depth."""
    norm: str = ""
    """"document" divides by σ + ε, where LayerNorm divides by √(variance + ε)."""
    classifier: str = ""
    """"mean": heads for whole texts use the mean of the token vectors instead of the tanh pooler."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value: Any = getattr(self, field.name)
            has_right_type = type(value) is type(field.default)
            if not has_right_type:
                raise AlbertkitError(
                    f"option {field.name} is {value!r}; it must be of type {type(field.default).__name__}"
                )
            if field.name in CHOICES and value not in CHOICES[field.name]:
                shown = " or ".join(repr(choice) for choice in CHOICES[field.name])
                raise AlbertkitError(f"option {field.name} is {value!r}; choose {shown}")
            if field.name in LARGEST and not 0 <= value <= LARGEST[field.name]:
                raise AlbertkitError(f"option {field.name} is {value}; it must be 0 to {LARGEST[field.name]:,}")
        if self.global_every and not self.window:
            raise AlbertkitError("option global_every is set without a window. Set the window too.")
        if self.global_every == 1:
            raise AlbertkitError("option global_every is 1, which makes every layer global. Omit the window instead.")
        if self.relative_reach < 1 or (self.relative_reach != REACH and self.attention_bias != "relative"):
            reach = self.relative_reach
            raise AlbertkitError(f"option relative_reach is {reach}; pass 1 or more, and attention_bias=relative")
        if not 1 <= self.gru_layers <= MAX_GRU_LAYERS:
            raise AlbertkitError(f"option gru_layers is {self.gru_layers}; it must be 1 to {MAX_GRU_LAYERS}")
        for name in ("gru_layers", "gru_residual"):
            if name in self.active() and not self.gru:
                raise AlbertkitError(f"option {name} is set without a GRU. Set gru=true too, or omit it.")
        if self.outer_intermediate_size and not (self.prelude_layers or self.coda_layers):
            raise AlbertkitError(
                f"option outer_intermediate_size is {self.outer_intermediate_size} without outer layers. "
                "Set prelude_layers or coda_layers too."
            )
        beside = [name for name in self.active() if name != "static"]
        if self.static and beside:
            raise AlbertkitError(f"a static model is a table without layers. Omit the options {', '.join(beside)}.")

    def active(self) -> list[str]:
        """Names of the enabled options. transformers cannot open a model with enabled options."""
        return [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]

    @property
    def has_attention_options(self) -> bool:
        """Whether attention differs from that of canonical ALBERT."""
        options = (
            self.low_rank,
            self.value_size,
            self.output_rank,
            self.window,
            self.shared_heads,
            self.attention_bias,
        )
        return any(options)

    def local(self, layer: int) -> bool:
        """Whether layer number `layer` (from 0) attends only within a window."""
        return self.window > 0 and not (self.global_every and (layer + 1) % self.global_every == 0)


def read_options(value: object) -> Options:
    """The key `albertkit` of a config.json."""
    if not isinstance(value, Mapping):
        raise AlbertkitError(f"the key 'albertkit' in config.json is {value!r}; it must be an object of options")
    check_keys("option", value, [field.name for field in dataclasses.fields(Options)], " in config.json")
    return Options(**value)


def given_options(pairs: Iterable[str], before: Options | None = None) -> Options:
    """Options from command-line values: ["low_rank=32", "gru=true"]."""
    defaults = {field.name: field.default for field in dataclasses.fields(Options)}
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = (part.strip() for part in pair.partition("="))
        if not equals:
            raise AlbertkitError(f"option {pair!r} has no value. Write NAME=VALUE, such as low_rank=32 or gru=true.")
        check_keys("option", [name], defaults)
        if name in values:
            raise AlbertkitError(f"option {name} was passed twice. Pass it once.")
        values[name] = _parse(name, text, type(defaults[name]))
    return dataclasses.replace(before or Options(), **values)


def _parse(name: str, text: str, kind: type) -> bool | int | str:
    if kind is bool:
        if text.lower() not in ("true", "false", "yes", "no"):
            raise AlbertkitError(f"option {name} is {text!r}. Write true or false.")
        return text.lower() in ("true", "yes")
    if kind is int and (len(text) > 18 or not text.removeprefix("-").isdecimal()):
        raise AlbertkitError(f"option {name} is {text!r:.40}. Write a whole number.")
    return int(text) if kind is int else text
