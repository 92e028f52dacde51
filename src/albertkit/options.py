"""What goes beyond canonical ALBERT: `Options`, one field per idea; and `setting`, a field with its help text.

In: the key `albertkit` of a `config.json`, or `name=value` from a command line. Out: checked `Options`, all off by
default. After this file: `config.py` contains them; `model/optional_modules.py` (torch) and `runtime/graph.py` (ONNX)
compute them. docs/reference/artifact.md has the formula, the cost and the test of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from albertkit.errors import AlbertkitError, check_keys

LARGEST = {"low_rank": 65_536, "window": 2_048, "global_every": 1_024, "relative_reach": 65_536, "head_size": 65_536}
CHOICES = {"attention_bias": ("", "head", "relative"), "norm": ("", "document"), "classifier": ("", "mean")}
REACH = 64
ADVANCED = "Advanced options"
T = TypeVar("T")


def setting(default: T, help_text: str, advanced: bool = False) -> T:
    """A dataclass field with a default and the sentence that explains it; `--help` lists advanced ones at the end."""
    heading = {"heading": ADVANCED} if advanced else {}
    return dataclasses.field(default=default, metadata={"help": help_text, **heading})


@dataclass(frozen=True)
class Options:
    """What goes beyond canonical ALBERT. Every default is off."""

    brightmart_layout: bool = False
    """Position and segment embeddings and the first LayerNorm at size H, after the projection, as in albert_zh."""
    scale_embedding: bool = False
    """Word embeddings are multiplied by √E before positions and segments are added."""
    head_size: int = 0
    """Size of one attention head after heads were pruned; 0: H divided by the number of heads."""
    static: bool = False
    """One vector of size H per token, and their mean; there are no layers (`compress/static_model.py`)."""
    low_rank: int = 0
    """Width (d_a) to which the queries, keys and values of each head are projected; 0: no projection."""
    window: int = 0
    """A token sees tokens up to this distance and the first token, which sees all; 0: every token sees all."""
    global_every: int = 0
    """With a window, every n-th layer is global; 0: none."""
    shared_heads: bool = False
    """All heads share one key and one value matrix; each has its own queries."""
    attention_bias: str = ""
    """A learnable θ on the scores: "head", one per head on the first token; "relative", one per head and distance."""
    relative_reach: int = REACH
    """With relative bias, distances beyond this count as this."""
    gru: bool = False
    """The output of a GRU over the embeddings is added to them before the first layer."""
    norm: str = ""
    """"document" divides by σ + ε, where LayerNorm divides by √(variance + ε)."""
    classifier: str = ""
    """"mean": heads for whole texts read the mean of the tokens; there is no tanh pooler."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value: Any = getattr(self, field.name)
            has_right_type = type(value) is type(field.default)
            if not has_right_type:
                raise AlbertkitError(f"option {field.name} is {value!r}; it must be like {field.default!r}")
            if field.name in CHOICES and value not in CHOICES[field.name]:
                shown = " or ".join(repr(choice) for choice in CHOICES[field.name])
                raise AlbertkitError(f"option {field.name} is {value!r}; choose {shown}")
            if field.name in LARGEST and not 0 <= value <= LARGEST[field.name]:
                raise AlbertkitError(f"option {field.name} is {value}; it must be 0 to {LARGEST[field.name]:,}")
        if self.global_every and not self.window:
            raise AlbertkitError("option global_every is set without a window; set the window, too")
        if self.global_every == 1:
            raise AlbertkitError("option global_every is 1, which makes every layer global; omit the window instead")
        if self.relative_reach < 1 or (self.relative_reach != REACH and self.attention_bias != "relative"):
            reach = self.relative_reach
            raise AlbertkitError(f"option relative_reach is {reach}; pass 1 or more, and attention_bias=relative")
        beside = [name for name in self.active() if name != "static"]
        if self.static and beside:
            raise AlbertkitError(f"a static model is a table without layers; {', '.join(beside)} cannot apply to it")

    def active(self) -> list[str]:
        """Names of the options that are on; such a model cannot be opened by transformers."""
        return [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]

    @property
    def has_attention_options(self) -> bool:
        """Whether attention is computed in another way than ALBERT's."""
        return bool(self.low_rank or self.window or self.shared_heads or self.attention_bias)

    def local(self, layer: int) -> bool:
        """Whether layer number `layer` (from 0) sees a window alone."""
        return self.window > 0 and not (self.global_every and (layer + 1) % self.global_every == 0)


def read_options(value: object) -> Options:
    """The key `albertkit` of a config.json."""
    if not isinstance(value, Mapping):
        raise AlbertkitError(f"the key 'albertkit' in config.json holds {value!r}; it must be an object of options")
    check_keys("option", value, [field.name for field in dataclasses.fields(Options)], " in config.json")
    return Options(**value)


def given_options(pairs: Iterable[str], before: Options | None = None) -> Options:
    """Options as a command line gives them: ["low_rank=32", "gru=true"]."""
    defaults = {field.name: field.default for field in dataclasses.fields(Options)}
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = (part.strip() for part in pair.partition("="))
        if not equals:
            raise AlbertkitError(f"option {pair!r} has no value; write it like low_rank=32 or gru=true")
        check_keys("option", [name], defaults)
        if name in found:
            raise AlbertkitError(f"option {name} is given twice; give it once")
        found[name] = _parse(name, text, type(defaults[name]))
    return dataclasses.replace(before or Options(), **found)


def _parse(name: str, text: str, kind: type) -> bool | int | str:
    if kind is bool:
        if text.lower() not in ("true", "false", "yes", "no"):
            raise AlbertkitError(f"option {name} is {text!r}; write true or false")
        return text.lower() in ("true", "yes")
    if kind is int and (len(text) > 18 or not text.removeprefix("-").isdecimal()):
        raise AlbertkitError(f"option {name} is {text!r:.40}; write a whole number")
    return int(text) if kind is int else text
