"""Faithfulness: hiding the words with the highest values must change the prediction more than hiding random words.

In: an `Explainer`, texts and methods. Out: one `Faithfulness` per method. Before: `explainer.py`. Measured as in
ERASER (DeYoung et al., 2020):

comprehensiveness   p(text) - p(text without the best words); high if these words mattered
sufficiency         p(text) - p(the best words alone); low if they were enough

Both are means over several shares of the words (area over the perturbation curve); p is the probability of the
prediction. Random orders of words are the baseline. By default words are dropped here but masked by the methods, so
that no method is evaluated with its own operation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from albertkit.errors import AlbertkitError
from albertkit.explain.attribution import InputVariants, filler_token
from albertkit.explain.explain_input import ExplainInput
from albertkit.explain.explainer import Explainer, ExplainSettings, ExplainState

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
MAX_TEXTS = 10_000
MAX_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Faithfulness:
    """How much the words matter that a method ranks highest, over some texts."""

    method: str
    texts: int
    comprehensiveness: float
    """Mean decrease of the probability without the best words."""
    sufficiency: float
    """Mean decrease with the best words alone."""
    random_comprehensiveness: float
    """The same for words in random order."""
    random_sufficiency: float
    gain: float
    """comprehensiveness - random_comprehensiveness."""
    gain_error: float
    """Standard error of the gain over texts."""
    wins: float
    """Share of texts where the method's comprehensiveness exceeds the random one."""
    curve: tuple[float, ...]
    """Comprehensiveness at each of `shares`."""
    random_curve: tuple[float, ...]
    shares: tuple[float, ...] = SHARES


def measure_faithfulness(
    explainer: Explainer,
    texts: Sequence[ExplainInput],
    settings: ExplainSettings | None = None,
    hide: str = "drop",
    orders: int = 8,
) -> list[Faithfulness]:
    """Evaluate the methods of `settings`. `hide`: how words are hidden; `orders`: random orders per text."""
    settings = settings or ExplainSettings(methods=("occlusion", "rollout"))
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise AlbertkitError(f"there are {len(texts)} texts; pass 1 to {MAX_TEXTS:,}")
    if not 1 <= orders <= 1000:
        raise AlbertkitError(f"orders={orders} is out of range; choose 1 to 1000")
    filler_token(explainer.albert, hide)
    rng = np.random.default_rng(settings.seed)
    decreases: dict[str, list[np.ndarray]] = {method: [] for method in settings.methods}
    for number, text in enumerate(texts, 1):
        try:
            state = explainer.prepare(text, settings, every_depth=False)
        except AlbertkitError as error:
            raise AlbertkitError(f"text {number}, {text.text[:30]!r}: {error}") from None
        words = len(state.input.words)
        if words < 2:
            continue
        rankings = {method: _rank_words(explainer, state, method, settings) for method in settings.methods}
        random_orders = [rng.permutation(words) for _ in range(orders)]
        found = _probability_decreases(explainer, state, [*rankings.values(), *random_orders], hide)
        for place, method in enumerate(rankings):
            decreases[method].append(np.stack([found[place], found[len(rankings) :].mean(axis=0)]))
    if not decreases[settings.methods[0]]:
        raise AlbertkitError("no text has two words, so there is nothing to compare; pass longer texts")
    return [_summarize(method, np.stack(found)) for method, found in decreases.items()]


def _rank_words(explainer: Explainer, state: ExplainState, method: str, settings: ExplainSettings) -> np.ndarray:
    """Words by their value, the highest first; for a regression, by the absolute value."""
    values = explainer.attribute(state, method, settings).values
    return np.argsort(-(np.abs(values) if state.target.unit == "value" else values), kind="stable")


def _probability_decreases(
    explainer: Explainer, state: ExplainState, orders: Sequence[np.ndarray], hide: str
) -> np.ndarray:
    """(orders, 2, shares): the decrease without the first words of each order, and with these words alone."""
    words = len(state.input.words)
    kept = []
    for order in orders:
        for share in SHARES:
            best = np.zeros(words, bool)
            best[order[: math.ceil(share * words)]] = True
            kept += [~best, best]
    variants = InputVariants(explainer.albert, state.input, state.target, hide, state.depth)
    _, probabilities = variants.values(np.concatenate([np.ones((1, words), bool), np.array(kept)]))
    decreases = probabilities[0] - probabilities[1:]
    if state.target.unit == "value":
        decreases = np.abs(decreases)
    return decreases.reshape(len(orders), len(SHARES), 2).transpose(0, 2, 1)


def _summarize(method: str, decreases: np.ndarray) -> Faithfulness:
    """(texts, method and random, 2 measures, shares) → one result."""
    means = decreases.mean(axis=3)  # (texts, 2, 2)
    gains = means[:, 0, 0] - means[:, 1, 0]
    (comprehensiveness, sufficiency), (random_comprehensiveness, random_sufficiency) = means.mean(axis=0).tolist()
    curve, random_curve = decreases[:, :, 0].mean(axis=0).tolist()
    return Faithfulness(
        method=method,
        texts=len(decreases),
        comprehensiveness=comprehensiveness,
        sufficiency=sufficiency,
        random_comprehensiveness=random_comprehensiveness,
        random_sufficiency=random_sufficiency,
        gain=float(gains.mean()),
        gain_error=float(gains.std(ddof=1) / math.sqrt(len(gains))) if len(gains) > 1 else math.nan,
        wins=float((gains > 0).mean()),
        curve=tuple(curve),
        random_curve=tuple(random_curve),
    )


def read_inputs(path: Path, most: int | None = None) -> list[ExplainInput]:
    """Texts of a file, one per line; in a .jsonl file objects with text, pair, question and choices."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise AlbertkitError(f"{path} has {size:,} bytes; at most {MAX_BYTES:,} are read, so shorten it")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AlbertkitError(f"{path} cannot be read as text: {error}") from None
    inputs = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            is_json = path.suffix == ".jsonl"
            inputs.append(_input_from_json(line, f"{path}:{number}") if is_json else ExplainInput(line))
        if len(inputs) == (most or MAX_TEXTS):
            break
    return inputs


def _input_from_json(line: str, where: str) -> ExplainInput:
    try:
        data = json.loads(line)
        is_valid = isinstance(data, dict) and isinstance(data.get("text"), str)
        is_valid = is_valid and all(isinstance(data.get(name), str | None) for name in ("pair", "question"))
        choices = data.get("choices", []) if is_valid else []
        is_valid = is_valid and isinstance(choices, list) and all(isinstance(choice, str) for choice in choices)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise AlbertkitError(
            f'{where} is not {{"text": …}} with optional pair, question or choices; write one such object per line'
        )
    return ExplainInput(data["text"], data.get("pair"), data.get("question"), tuple(choices))
