"""`Explainer`: a model that explains itself; `explain` for a single text.

In: a model and texts. Out: `Explanation`s. Before this file: everything that computes; after it: `explanation.py` shows the result.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from albertkit import builtin
from albertkit.albert import Albert
from albertkit.artifact import Stored, read_stored
from albertkit.errors import AlbertkitError, nearest, need
from albertkit.explain.activations import NumpyEncoder
from albertkit.explain.attention_maps import AttentionMap, rollout
from albertkit.explain.attribution import METHODS, Attribution, attention_attribution, occlusion, shapley
from albertkit.explain.explained_input import ExplainInput, TokenizedInput, tokenize_input
from albertkit.explain.explanation import Explanation
from albertkit.explain.layer_predictions import early_exit_of, layers_of, prediction_at, stable_depth, states_of
from albertkit.explain.target import ExplainTarget, TargetChoice, target_of
from albertkit.explain.variants import InputVariants, filler_token


@dataclass(frozen=True)
class ExplainSettings:
    """How to explain."""

    methods: tuple[str, ...] = ("occlusion",)
    """occlusion, shapley, gradients (needs torch), rollout, attention."""
    target: str | None = None
    """The class, label, choice or word to explain; default what the model says."""
    at: str | None = None
    """tag: a word or its number from 1; fill: the number of a mask; answer: start or end."""
    hide: str | None = None
    """How a word is hidden: mask, drop or pad; default mask, but for vectors, whose models have never seen masks, drop (pad for gradients)."""
    depth: int | None = None
    """Layers to apply; default the model's."""
    k: int = 3
    """Words for each mask."""
    samples: int = 16
    """Orders of words for shapley; each is used backwards too."""
    steps: int = 64
    """Points on the way for gradients."""
    seed: int = 0

    @classmethod
    def of(cls, settings: dict[str, Any]) -> ExplainSettings:
        """From keywords; `methods` may be one name."""
        names = [field.name for field in dataclasses.fields(cls)]
        for name in settings:
            if name not in names:
                raise AlbertkitError(f"unknown setting {name!r}{nearest(name, names)}; choose among {', '.join(names)}")
        methods = settings.get("methods", ("occlusion",))
        methods = (methods,) if isinstance(methods, str) else tuple(dict.fromkeys(methods))
        for method in methods:
            if method not in METHODS:
                raise AlbertkitError(
                    f"unknown method {method!r}{nearest(method, METHODS)}; choose among {', '.join(METHODS)}"
                )
        at = settings.get("at")
        return cls(**{**settings, "methods": methods, "at": None if at is None else str(at)})


@dataclass(frozen=True)
class ExplainContext:
    """A text and what is explained about it."""

    subject: TokenizedInput
    target: ExplainTarget
    prediction: Any
    states: dict[int, list[Any]]
    """What is read at each depth."""
    depth: int


class Explainer:
    """A model that can be looked into, opened once for many texts. Attention and gradients read its folder again, when they are asked for."""

    def __init__(self, model: Albert | str | Path | None = None, threads: int | None = None) -> None:
        self.albert = model if isinstance(model, Albert) else Albert(model, threads=threads)

    @cached_property
    def stored(self) -> Stored:
        """The model as its folder holds it."""
        stored = read_stored(self.albert.source)
        if not self.albert.name.startswith(stored.identity[:16]):
            raise AlbertkitError(f"the files of {self.albert.source} have changed since it was opened; open it again")
        return stored

    @cached_property
    def inside(self) -> NumpyEncoder:
        """Its weights as floats, for attention."""
        return NumpyEncoder.of(self.stored)

    @cached_property
    def torch_model(self) -> Any:
        """Its weights in torch, for gradients."""
        need("torch", "explain", "integrated gradients")
        from albertkit.explain.gradients import torch_model

        return torch_model(self.stored)

    def prepare(self, given: ExplainInput, how: ExplainSettings, every: bool = True) -> ExplainContext:
        """What is explained about a text; with `every`, its state at every depth."""
        albert = self.albert
        filler_token(albert, how.hide or "drop")  # or says what is wrong with it
        subject = tokenize_input(albert, given)
        depth = albert._layers_to_apply(None, how.depth, "mean")
        states = states_of(albert, subject, range(1, depth + 1) if every else [depth])
        prediction = prediction_at(albert, subject, states[depth], how.k)
        target = target_of(albert, subject, states[depth], prediction, TargetChoice(how.target, how.at))
        return ExplainContext(subject, target, prediction, states, depth)

    def explain(
        self,
        text: str,
        pair: str | None = None,
        question: str | None = None,
        choices: Iterable[str] = (),
        **settings: Any,
    ) -> Explanation:
        """Look into one text; the settings are those of `ExplainSettings`."""
        given, how = ExplainInput(text, pair, question, tuple(choices)), ExplainSettings.of(settings)
        albert = self.albert
        if "[MASK]" in text and albert._asks_another:  # as `fill_mask`: the built-in model for words
            return Explainer(builtin.WORDS, albert.engine.threads).explain(text, pair, question, choices, **settings)
        ready = self.prepare(given, how)
        subject, target = ready.subject, ready.target
        maps = self.maps(ready)
        layers = layers_of(albert, subject, target, ready.states, how.k)
        whole = subject.kind not in ("fill", "similar") and ready.depth == albert.depth
        return Explanation(
            model=albert.name,
            kind=subject.kind,
            parts=subject.parts,
            prediction=ready.prediction,
            target=target.name,
            unit=target.unit,
            value=layers[-1].value,
            chance=layers[-1].chance,
            words=subject.words,
            attributions=tuple(self.attribute(ready, method, how, maps) for method in how.methods),
            maps=maps,
            layers=layers,
            stable_depth=None if subject.kind == "embed" else stable_depth([layer.same for layer in layers]),
            early_exit=early_exit_of(albert, subject.example, subject.rows[0].ids, subject.rows[0].segments)
            if whole
            else None,
        )

    def attribute(
        self, ready: ExplainContext, method: str, how: ExplainSettings, maps: Sequence[AttentionMap] | None = None
    ) -> Attribution:
        """The words' values by one method."""
        subject, target = ready.subject, ready.target
        hide = how.hide or hiding(self.albert, subject, method)
        variants = InputVariants(self.albert, subject, target, hide, ready.depth)
        if method == "occlusion":
            return occlusion(variants)
        if method == "shapley":
            return shapley(variants, how.samples, how.seed)
        if method == "gradients":
            model = self.torch_model
            from albertkit.explain.gradients import integrated_gradients

            return integrated_gradients(self.albert, model, subject, target, ready.depth, hide, how.steps)
        maps = self.maps(ready) if maps is None else maps
        return attention_attribution(method, maps, [self._readers(target, one) for one in maps], len(subject.words))

    def maps(self, ready: ExplainContext) -> tuple[AttentionMap, ...]:
        """Attention of the rows that matter: of choices, that of the chosen one."""
        chosen = [ready.target.index] if ready.target.form == "choice" else range(len(ready.subject.rows))
        found = []
        for number in chosen:
            row = ready.subject.rows[number]
            seen = self.inside.run(row.ids, row.segments, ready.depth).attention
            tokens = tuple(self.albert.tokenizer.tokens(row.ids))
            reader = min(ready.target.tokens, default=0)
            found.append(AttentionMap(number, tokens, seen, rollout(seen), row.owner, reader))
        return tuple(found)

    def _readers(self, target: ExplainTarget, one: AttentionMap) -> list[int]:
        """The tokens that the target reads in a row: the first for classes; for a mean, all."""
        if target.tokens:
            return sorted(set(target.tokens))
        albert = self.albert
        if target.form == "cosine" or albert.meta.details.get("reads") == "vector":
            everywhere = albert.meta.pooling in ("mean", "max")
        else:
            everywhere = albert.config.options.classifier == "mean"
        return list(range(len(one.tokens))) if everywhere else [0]


def hiding(albert: Albert, subject: TokenizedInput, method: str) -> str:
    """How words are hidden where nobody has chosen."""
    if subject.kind not in ("embed", "similar") and albert.tokenizer.mask_id is not None:
        return "mask"
    return "pad" if method == "gradients" else "drop"


def explain(model: Albert | str | Path | None, text: str, **settings: Any) -> Explanation:
    """Look into one text: `explain("sentiment", "what a lovely film")`. See `Explainer.explain`."""
    return Explainer(model).explain(text, **settings)
