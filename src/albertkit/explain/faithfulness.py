"""Whether words' values mean something: hiding the words with the highest ones must change the prediction more than hiding others.

In: a model, texts, and methods. Out: a `Faithfulness` for each method. As ERASER (DeYoung and others, 2020) measures it:

comprehensiveness   p(text) - p(text without the best words), high if these words mattered
sufficiency         p(text) - p(the best words alone), low if they were enough

each a mean over several shares of the words (the area over the perturbation curve), p the probability of what the model says. Beside it, the
same for words in random orders. Before this file: `explainer.py`. By default words are dropped here and masked by the
methods, so that no method is graded by its own operation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.explain.explained_input import ExplainInput
from albertkit.explain.explainer import ExplainContext, Explainer, ExplainSettings
from albertkit.explain.variants import InputVariants, filler_token

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
MOST_TEXTS = 10_000
MOST_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Faithfulness:
    """How much the words matter that a method calls important, over some texts."""

    method: str
    texts: int
    comprehensiveness: float
    """Mean fall of the probability without the best words."""
    sufficiency: float
    """Mean fall with the best words alone."""
    random_comprehensiveness: float
    """The same for words in random orders."""
    random_sufficiency: float
    gain: float
    """comprehensiveness - random_comprehensiveness."""
    gain_error: float
    """Standard error of the gain over texts."""
    wins: float
    """Share of texts where the method's comprehensiveness is above the random one."""
    curve: tuple[float, ...]
    """Comprehensiveness at each of `shares`."""
    random_curve: tuple[float, ...]
    shares: tuple[float, ...] = SHARES


def faithfulness(
    explainer: Explainer,
    texts: Sequence[ExplainInput],
    methods: Sequence[str] = ("occlusion", "rollout"),
    hide: str = "drop",
    orders: int = 8,
    **settings: Any,
) -> list[Faithfulness]:
    """Check methods over texts. `hide`: how the check hides words; `orders`: random orders a text; settings as in `ExplainSettings`."""
    if not 1 <= len(texts) <= MOST_TEXTS:
        raise AlbertkitError(f"there are {len(texts)} texts; give 1 to {MOST_TEXTS:,}")
    if not 1 <= orders <= 1000:
        raise AlbertkitError(f"orders is {orders}; choose 1 to 1000")
    how = ExplainSettings.of({**settings, "methods": tuple(methods)})
    filler_token(explainer.albert, hide)
    rng = np.random.default_rng(how.seed)
    falls: dict[str, list[np.ndarray]] = {method: [] for method in how.methods}
    for number, given in enumerate(texts, 1):
        try:
            ready = explainer.prepare(given, how, every=False)
        except AlbertkitError as error:
            raise AlbertkitError(f"text {number}, {given.text[:30]!r}: {error}") from None
        if len(ready.subject.words) < 2:
            continue  # nothing to choose between
        ranked = {method: _ranked(explainer, ready, method, how) for method in how.methods}
        drawn = [rng.permutation(len(ready.subject.words)) for _ in range(orders)]
        found = _falls(explainer, ready, [*ranked.values(), *drawn], hide)
        for place, method in enumerate(ranked):
            falls[method].append(np.stack([found[place], found[len(ranked) :].mean(axis=0)]))
    if not falls[how.methods[0]]:
        raise AlbertkitError("no text has two words, so there is nothing to compare; give longer texts")
    return [_summed(method, np.stack(found)) for method, found in falls.items()]


def _ranked(explainer: Explainer, ready: ExplainContext, method: str, how: ExplainSettings) -> np.ndarray:
    """Words, the most important first: those that speak most for the target; of a value, those that move it most."""
    values = explainer.attribute(ready, method, how).values
    return np.argsort(-(np.abs(values) if ready.target.unit == "value" else values), kind="stable")


def _falls(explainer: Explainer, ready: ExplainContext, orders: Sequence[np.ndarray], hide: str) -> np.ndarray:
    """(orders, 2, shares): how far the probability falls without the first words of each order, and with these alone."""
    words = len(ready.subject.words)
    kept = []
    for order in orders:
        for share in SHARES:
            best = np.zeros(words, bool)
            best[order[: math.ceil(share * words)]] = True
            kept += [~best, best]
    variants = InputVariants(explainer.albert, ready.subject, ready.target, hide, ready.depth)
    _, chances = variants.values(np.concatenate([np.ones((1, words), bool), np.array(kept)]))
    moved = chances[0] - chances[1:]
    if ready.target.unit == "value":
        moved = np.abs(moved)
    return moved.reshape(len(orders), len(SHARES), 2).transpose(0, 2, 1)


def _summed(method: str, found: np.ndarray) -> Faithfulness:
    """(texts, 2 method and random, 2 measures, shares) → one result."""
    means = found.mean(axis=3)  # (texts, 2, 2)
    gains = means[:, 0, 0] - means[:, 1, 0]
    error = float(gains.std(ddof=1) / math.sqrt(len(gains))) if len(gains) > 1 else math.nan
    whole = means.mean(axis=0)
    curves = found[:, :, 0].mean(axis=0)
    return Faithfulness(
        method, len(found), float(whole[0, 0]), float(whole[0, 1]), float(whole[1, 0]), float(whole[1, 1]),
        float(gains.mean()), error, float((gains > 0).mean()), tuple(curves[0].tolist()), tuple(curves[1].tolist()),
    )  # fmt: skip


def read_inputs(path: Path, most: int | None = None) -> list[ExplainInput]:
    """Texts of a file: a line each, or `{"text": …, "pair": …, "question": …, "choices": […]}` a line in a .jsonl file."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise AlbertkitError(f"{path} has {path.stat().st_size:,} bytes; the check reads {MOST_BYTES:,} at most")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AlbertkitError(f"{path} cannot be read as text: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            found.append(_given(line, f"{path}:{number}") if path.suffix == ".jsonl" else ExplainInput(line))
        if len(found) == (most or MOST_TEXTS):
            break
    return found


def _given(line: str, where: str) -> ExplainInput:
    try:
        data = json.loads(line)
        good = isinstance(data, dict) and isinstance(data.get("text"), str)
        good = good and all(isinstance(data.get(name), str | None) for name in ("pair", "question"))
        choices = data.get("choices", []) if good else []
        good = good and isinstance(choices, list) and all(isinstance(choice, str) for choice in choices)
    except ValueError:
        good = False
    if not good:
        raise AlbertkitError(
            f'{where} is not {{"text": …}} with pair, question or choices; write one such object a line'
        )
    return ExplainInput(data["text"], data.get("pair"), data.get("question"), tuple(choices))
