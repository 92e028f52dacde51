"""`Explainer` explains the predictions of one model; `Explanation` is its result.

In: an `Albert` and texts. Out: `Explanation`s, as arrays, JSON, an HTML page or a picture. Before: all files that
compute;
next: `views.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from albertkit.artifact import StoredModel
from albertkit.errors import AlbertkitError, nearest, need
from albertkit.explain.activations import NumpyEncoder
from albertkit.explain.attribution import (
    METHODS,
    AttentionMap,
    Attribution,
    InputVariants,
    attention_attribution,
    filler_token,
    occlusion,
    rollout,
    shapley,
)
from albertkit.explain.explain_input import ExplainedWord, ExplainInput, Prediction, TokenizedInput, tokenize_input
from albertkit.explain.layer_predictions import (
    EarlyExitTrace,
    LayerPrediction,
    layer_predictions,
    prediction_from,
    read_depths,
    stable_depth,
    trace_early_exit,
)
from albertkit.explain.target import ExplainTarget, TargetChoice, choose_target
from albertkit.interop.convert import open_stored

if TYPE_CHECKING:
    from albertkit.model import AlbertModel
    from albertkit.runtime.runtime_model import RuntimeModel


@dataclass(frozen=True)
class ExplainSettings:
    """What to explain, and how."""

    methods: Sequence[str] = ("occlusion",)
    """occlusion, shapley, gradients (needs torch), rollout, attention; one name or several."""
    target: str | None = None
    """The class, label, choice or word to explain; default the predicted one."""
    at: str | int | None = None
    """tag: a word or its number from 1; fill: the number of a mask; answer: start or end."""
    hide: str | None = None
    """How a word is hidden: mask, drop or pad; default mask, but for vectors drop (pad for gradients)."""
    depth: int | None = None
    """Layers to apply; default the model's."""
    k: int = 3
    """Words for each mask."""
    samples: int = 16
    """Random orders of words for shapley; each is also used in reverse."""
    steps: int = 64
    """Interpolation steps for gradients."""
    seed: int = 0

    def __post_init__(self) -> None:
        methods = (self.methods,) if isinstance(self.methods, str) else tuple(dict.fromkeys(self.methods))
        for method in methods:
            if method not in METHODS:
                hint = nearest(method, METHODS)
                raise AlbertkitError(f"method {method!r} is unknown{hint}; choose one of {', '.join(METHODS)}")
        object.__setattr__(self, "methods", methods)


class ExplainKeywords(TypedDict, total=False):
    """The fields of `ExplainSettings` as keywords of `Albert.explain`."""

    methods: str | Sequence[str]
    target: str | None
    at: str | int | None
    hide: str | None
    depth: int | None
    k: int
    samples: int
    steps: int
    seed: int


@dataclass(frozen=True)
class Explanation:
    """The explanation of one prediction."""

    model: str
    """Hash and settings of the model."""
    kind: str
    """fill, classify, tag, intent, answer, choose, similar or embed."""
    parts: dict[str, str]
    """The texts by name; words refer to their characters."""
    prediction: Prediction
    target: str
    """What is explained."""
    unit: str
    """log-odds, cosine or value."""
    value: float
    probability: float
    """The value as a probability; values and cosines are not converted."""
    words: tuple[ExplainedWord, ...]
    attributions: tuple[Attribution, ...]
    """The values of the words, one entry per method."""
    maps: tuple[AttentionMap, ...]
    """Attention of each row of tokens."""
    layers: tuple[LayerPrediction, ...]
    stable_depth: int | None
    """The first depth from which on the prediction equals that of the last; None for the vector of one text."""
    early_exit: EarlyExitTrace | None
    """Where the text could exit early; None for masks and pairs of vectors."""

    def attribution(self, method: str) -> np.ndarray:
        """(words,) the values by one method."""
        return next(one.values for one in self.attributions if one.method == method)

    @property
    def uncertainty(self) -> dict[int, float]:
        """The uncertainty at each depth where the text could exit early, and at the last; empty if it cannot."""
        if self.early_exit is None:
            return {}
        depths = (*self.early_exit.exit_depths, self.layers[-1].depth)
        pairs = zip(depths, self.early_exit.uncertainty, strict=True)
        return {depth: value for depth, value in pairs if value is not None}

    def to_dict(self, attention: bool = False) -> dict[str, Any]:
        """Plain values for JSON; attention by layer and head only on request, because it is large."""
        words = []
        for number, word in enumerate(self.words):
            values = {one.method: round(float(one.values[number]), 6) for one in self.attributions}
            words.append({**dataclasses.asdict(word), "values": values})
        maps = []
        for one in self.maps:
            data: dict[str, Any] = {"tokens": list(one.tokens), "rollout": one.rollout.round(5).tolist()}
            maps.append({**data, "attention": one.attention.round(5).tolist()} if attention else data)
        replaced = {
            "words": words,
            "sums": {one.method: {"full": one.full, "empty": one.empty} for one in self.attributions},
            "maps": maps,
        }
        names = [field.name for field in dataclasses.fields(self) if field.name not in ("attributions", *replaced)]
        return {name: to_json(getattr(self, name)) for name in names} | replaced

    def to_html(self, path: Path | str, overwrite: bool = False) -> Path:
        """Write one HTML page that needs no other file."""
        from albertkit.explain.views import render_page, write_file

        return write_file(Path(path), render_page(self).encode("utf-8"), overwrite)

    def to_png(self, path: Path | str, overwrite: bool = False, attention: bool = False) -> Path:
        """Write a picture, optionally with the attention of every head; needs matplotlib."""
        from albertkit.explain.views import render_png, write_file

        return write_file(Path(path), render_png(self, attention), overwrite)


def to_json(value: object) -> object:
    """Dataclasses, tuples and arrays as JSON values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [to_json(one) for one in value]
    if isinstance(value, dict):
        return {name: to_json(one) for name, one in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


@dataclass(frozen=True)
class ExplainState:
    """A tokenized input, its target, and what was read at each depth."""

    input: TokenizedInput
    target: ExplainTarget
    prediction: Prediction
    states: dict[int, list[Any]]
    depth: int


class Explainer:
    """Explains a model's predictions. Attention and gradients read the model's folder again, on first use.

    >>> from albertkit import Albert
    >>> explainer = Explainer(Albert())
    >>> explainer.explain(ExplainInput("a cat sat")).kind
    'embed'
    """

    def __init__(self, albert: RuntimeModel) -> None:
        self.albert = albert

    @cached_property
    def stored(self) -> StoredModel:
        """The model as its folder holds it."""
        stored = open_stored(self.albert.source)
        if not self.albert.name.startswith(stored.identity[:16]):
            raise AlbertkitError(f"the files of {self.albert.source} have changed since it was opened; open it again")
        return stored

    @cached_property
    def encoder(self) -> NumpyEncoder:
        """The encoder in numpy, for attention."""
        return NumpyEncoder.from_stored(self.stored)

    @cached_property
    def torch_model(self) -> AlbertModel:
        """The model in torch, for gradients."""
        need("torch", "explain", "integrated gradients")
        from albertkit.explain.gradients import torch_model

        return torch_model(self.stored)

    def explain(self, texts: ExplainInput, settings: ExplainSettings | None = None) -> Explanation:
        """Explain what the model predicts about one text."""
        albert, settings = self.albert, settings or ExplainSettings()
        if "[MASK]" in texts.text and albert.mask_model is not albert:  # as `fill_mask`: the built-in model for masks
            return Explainer(albert.mask_model).explain(texts, settings)
        state = self.prepare(texts, settings)
        tokenized, target = state.input, state.target
        maps = self.attention_maps(state)
        layers = layer_predictions(albert, tokenized, target, state.states, settings.k)
        can_exit = tokenized.kind not in ("fill", "similar") and state.depth == albert.depth
        first = tokenized.rows[0]
        return Explanation(
            model=albert.name,
            kind=tokenized.kind,
            parts=tokenized.parts,
            prediction=state.prediction,
            target=target.name,
            unit=target.unit,
            value=layers[-1].value,
            probability=layers[-1].probability,
            words=tokenized.words,
            attributions=tuple(self.attribute(state, method, settings, maps) for method in settings.methods),
            maps=maps,
            layers=layers,
            stable_depth=None
            if tokenized.kind == "embed"
            else stable_depth([layer.matches_full_depth for layer in layers]),
            early_exit=trace_early_exit(albert, tokenized.example, first.ids, first.segments) if can_exit else None,
        )

    def prepare(self, texts: ExplainInput, settings: ExplainSettings, every_depth: bool = True) -> ExplainState:
        """Tokenize a text, compute it (to every depth if wanted) and choose the target."""
        albert = self.albert
        filler_token(albert, settings.hide or "drop")  # checks `hide`
        tokenized = tokenize_input(albert, texts)
        depth = albert.layers_to_apply(settings.depth)
        states = read_depths(albert, tokenized, range(1, depth + 1) if every_depth else [depth])
        prediction = prediction_from(albert, tokenized, states[depth], settings.k)
        choice = TargetChoice(settings.target, None if settings.at is None else str(settings.at))
        target = choose_target(albert, tokenized, states[depth], prediction, choice)
        return ExplainState(tokenized, target, prediction, states, depth)

    def attribute(
        self, state: ExplainState, method: str, settings: ExplainSettings, maps: Sequence[AttentionMap] | None = None
    ) -> Attribution:
        tokenized, target = state.input, state.target
        hide = settings.hide or default_hide(self.albert, tokenized, method)
        variants = InputVariants(self.albert, tokenized, target, hide, state.depth)
        if method == "occlusion":
            return occlusion(variants)
        if method == "shapley":
            return shapley(variants, settings.samples, settings.seed)
        if method == "gradients":
            model = self.torch_model
            from albertkit.explain.gradients import integrated_gradients

            return integrated_gradients(variants, model, settings.steps)
        maps = self.attention_maps(state) if maps is None else maps
        readers = [self._reading_tokens(target, one) for one in maps]
        return attention_attribution(method, maps, readers, len(tokenized.words))

    def attention_maps(self, state: ExplainState) -> tuple[AttentionMap, ...]:
        """Attention of each row; with choices, only of the explained one."""
        numbers = [state.target.index] if state.target.form == "choice" else range(len(state.input.rows))
        reader = min(state.target.tokens, default=0)
        maps = []
        for number in numbers:
            row = state.input.rows[number]
            attention = self.encoder.run(row.ids, row.segments, state.depth).attention
            tokens = tuple(self.albert.tokenizer.tokens(row.ids))
            maps.append(AttentionMap(number, tokens, attention, rollout(attention), row.owner, reader))
        return tuple(maps)

    def _reading_tokens(self, target: ExplainTarget, one: AttentionMap) -> list[int]:
        """The tokens that the target reads in a row: the first for classes, all for a mean."""
        if target.tokens:
            return sorted(set(target.tokens))
        albert = self.albert
        if target.form == "cosine" or albert.metadata.details.get("reads") == "vector":
            reads_all = albert.metadata.pooling in ("mean", "max")
        else:
            reads_all = albert.config.options.classifier == "mean"
        return list(range(len(one.tokens))) if reads_all else [0]


def default_hide(albert: RuntimeModel, tokenized: TokenizedInput, method: str) -> str:
    """How words are hidden by default: models for vectors were not trained with masks."""
    if tokenized.kind not in ("embed", "similar") and albert.tokenizer.mask_id is not None:
        return "mask"
    return "pad" if method == "gradients" else "drop"
