"""`Explainer` explains the predictions of one model; `Explanation` is its result.

In: an `Albert` and texts. Out: `Explanation`s, as arrays, JSON or an HTML page. `views.py` renders the page.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from albertkit.artifact import StoredModel
from albertkit.errors import AlbertkitError, check_finite, need
from albertkit.explain.activations import ActivationEncoder, AttentionMap, rollout
from albertkit.explain.attribution import (
    Attribution,
    ExplainTarget,
    InputVariants,
    choose_target,
    filler_token,
    occlusion,
)
from albertkit.explain.explain_input import (
    ExplainedWord,
    ExplainInput,
    ExplainSettings,
    Prediction,
    TokenizedInput,
    tokenize_input,
)
from albertkit.explain.layer_predictions import (
    EarlyExitTrace,
    LayerPrediction,
    layer_predictions,
    prediction_from,
    read_depths,
    stable_depth,
    trace_early_exit,
)
from albertkit.file_io import write_file
from albertkit.interop.convert import open_stored
from albertkit.runtime.predict import report_untrained_depth
from albertkit.runtime.runtime_model import RuntimeModel, check_trained_depth, trained_depths

if TYPE_CHECKING:
    from albertkit.model import AlbertModel


@dataclass(frozen=True)
class Explanation:
    """The explanation of one prediction.

    >>> from albertkit import Albert
    >>> explanation = Albert().explain("a cat sat on the mat")
    >>> [word.text for word in explanation.words][:3]
    ['a', 'cat', 'sat']
    """

    model: str
    """Hash and settings of the model."""
    kind: str
    """fill, classify, tag, intent, answer, similar or embed."""
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
    """The first depth after which the prediction no longer changes; None for the vector of one text."""
    early_exit: EarlyExitTrace | None
    """Trace of early exit; None for masks and pairs of vectors."""

    def attribution(self, method: str) -> np.ndarray:
        """(words,) the values by one method."""
        return next(attribution.values for attribution in self.attributions if attribution.method == method)

    @property
    def uncertainty(self) -> dict[int, float]:
        """The uncertainty at each exit depth and at the last depth; empty without early exit."""
        if self.early_exit is None:
            return {}
        depths = (*self.early_exit.exit_depths, self.early_exit.last_depth)
        pairs = zip(depths, self.early_exit.uncertainty, strict=True)
        return {depth: value for depth, value in pairs if value is not None}

    def to_dict(self, attention: bool = False) -> dict[str, Any]:
        """Plain values for JSON; attention by layer and head only on request, because it is large."""
        words = []
        for number, word in enumerate(self.words):
            values = {a.method: round(float(a.values[number]), 6) for a in self.attributions}
            words.append({**dataclasses.asdict(word), "values": values})
        maps = []
        for part in self.maps:
            data: dict[str, Any] = {"tokens": list(part.tokens), "rollout": part.rollout.round(5).tolist()}
            maps.append({**data, "attention": part.attention.round(5).tolist()} if attention else data)
        sums = {a.method: {"full": a.full, "empty": a.empty} for a in self.attributions}
        plain = dataclasses.asdict(dataclasses.replace(self, attributions=(), maps=()))
        del plain["attributions"]
        return plain | {"words": words, "sums": sums, "maps": maps}

    def to_html(self, path: Path | str, overwrite: bool = False) -> Path:
        """Write one self-contained HTML page."""
        from albertkit.explain.views import render_page

        return write_file(Path(path), render_page(self).encode(), overwrite)


@dataclass(frozen=True)
class ExplainState:
    """A tokenized input, its target, and the outputs that it reads at each depth."""

    input: TokenizedInput
    target: ExplainTarget
    prediction: Prediction
    outputs: dict[int, list[Any]]
    depth: int


class Explainer:
    """Explains a model's predictions. Attention and gradients read the model's folder again, on first use.

    >>> from albertkit import Albert, Explainer
    >>> from albertkit.explain import ExplainInput
    >>> Explainer(Albert()).explain(ExplainInput("a cat sat")).kind
    'embed'
    """

    def __init__(self, albert: RuntimeModel) -> None:
        self.albert = albert

    @cached_property
    def stored(self) -> StoredModel:
        stored = open_stored(self.albert.source)
        if not self.albert.name.startswith(stored.identity[:16]):
            raise AlbertkitError(f"the files of {self.albert.source} have changed since it was opened. Open it again.")
        return stored

    @cached_property
    def encoder(self) -> ActivationEncoder:
        """The encoder in floats, for attention."""
        return ActivationEncoder(self.stored.config, self.stored.weights, self.stored.metadata.depth)

    @cached_property
    def torch_model(self) -> AlbertModel:
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
        layers = layer_predictions(albert, tokenized, target, state.outputs, settings.k)
        can_exit = tokenized.kind not in ("fill", "similar") and state.depth == albert.depth
        first = tokenized.rows[0]
        matches = {layer.depth: layer.matches_full_depth for layer in layers}
        stable = None if tokenized.kind == "embed" else stable_depth(matches)
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
            attributions=tuple(self.attribute(state, method, settings) for method in settings.methods),
            maps=self.attention_maps(state),
            layers=layers,
            stable_depth=stable,
            early_exit=trace_early_exit(albert, tokenized.example, first.ids, first.segments) if can_exit else None,
        )

    def prepare(self, texts: ExplainInput, settings: ExplainSettings) -> ExplainState:
        """Tokenize a text, compute it to every trained depth and choose the target."""
        albert = self.albert
        filler_token(albert, settings.hide or "drop")  # checks `hide`
        tokenized = tokenize_input(albert, texts)
        if tokenized.example is not None:  # the prediction of a task
            report_untrained_depth(albert, settings.depth)
        depth = albert.layers_to_apply(settings.depth)
        check_trained_depth(albert.config, albert.metadata, depth)
        outputs = read_depths(albert, tokenized, trained_depths(albert.config, albert.metadata, depth))
        prediction = prediction_from(albert, tokenized, outputs[depth], settings.k)
        target = choose_target(albert, tokenized, outputs[depth], prediction, settings)
        return ExplainState(tokenized, target, prediction, outputs, depth)

    def attribute(self, state: ExplainState, method: str, settings: ExplainSettings) -> Attribution:
        """The values of the words by one method."""
        hide = settings.hide or default_hide(self.albert, state.input, method)
        variants = InputVariants(self.albert, state.input, state.target, hide, state.depth)
        if method == "occlusion":
            return occlusion(variants)
        model = self.torch_model
        from albertkit.explain.gradients import integrated_gradients

        contributions = integrated_gradients(variants, model, settings.steps)
        check_finite("gradients", contributions.values)
        return contributions

    def attention_maps(self, state: ExplainState) -> tuple[AttentionMap, ...]:
        """Attention of each row."""
        reader = min(state.target.tokens, default=0)
        maps = []
        for number, row in enumerate(state.input.rows):
            attention = self.encoder.run(row.ids, row.segments, state.depth).attention
            tokens = tuple(self.albert.tokenizer.tokens(row.ids))
            maps.append(AttentionMap(number, tokens, attention, rollout(attention), reader))
        return tuple(maps)


def default_hide(albert: RuntimeModel, tokenized: TokenizedInput, method: str) -> str:
    """How words are hidden by default: models for vectors were not trained with masks."""
    if tokenized.kind not in ("embed", "similar") and albert.tokenizer.mask_id is not None:
        return "mask"
    return "pad" if method == "gradients" else "drop"
