"""Faithfulness of each method of `albertkit explain`, measured on your texts.

    python studies/faithfulness.py MODEL TEXTS [--out studies/results/faithfulness.json] [--most 300]
    [--methods occlusion,gradients]

MODEL is a fine-tuned model, TEXTS a file with one text per line, or .jsonl with text, pair and question. Hiding
the words with the highest values must change the prediction more than hiding random words. Measured as in ERASER
(DeYoung et al., 2020):

comprehensiveness   p(text) - p(text without the best words); high if these words mattered
sufficiency         p(text) - p(the best words alone); low if they were enough

Both are means over several shares of the words (area over the perturbation curve); p is the probability of the
prediction. Random orders of words are the baseline. Every method is checked with words dropped, masked and replaced by
[PAD], since no single kind of removal is right. Earlier results of other models are kept in the file. gradients needs
torch and captum; it is omitted if they are missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "bench", "studies")]

from inference import machine, versions  # noqa: E402

from albertkit.albert import Albert  # noqa: E402
from albertkit.errors import AlbertkitError  # noqa: E402
from albertkit.explain import Explainer, ExplainInput, ExplainSettings  # noqa: E402
from albertkit.explain.attribution import InputVariants  # noqa: E402
from albertkit.explain.explain_input import HIDE_MODES, METHODS  # noqa: E402
from albertkit.explain.explainer import ExplainState  # noqa: E402

RESULT = Path(__file__).parent / "results" / "faithfulness.json"
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)


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
    settings: ExplainSettings,
    hide: str,
    orders: int = 8,
) -> list[Faithfulness]:
    """Evaluate the methods of `settings`. `hide`: how words are hidden; `orders`: random orders per text."""
    rng = np.random.default_rng(0)
    decreases: dict[str, list[np.ndarray]] = {method: [] for method in settings.methods}
    for number, text in enumerate(texts, 1):
        try:
            state = explainer.prepare(text, settings)
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
    pairs = variants.read(np.concatenate([np.ones((1, words), bool), np.array(kept)]))
    probabilities = np.array([target.probability(read) for target, read in pairs])
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


def read_inputs(path: Path, most: int) -> list[ExplainInput]:
    """Texts of a file, one per line; in a .jsonl file objects with text, pair and question."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()][:most]
    if path.suffix != ".jsonl":
        return [ExplainInput(line) for line in lines]
    return [ExplainInput(**json.loads(line)) for line in lines]


def measure(args: argparse.Namespace) -> dict:
    """All methods, with every way of hiding."""
    explainer = Explainer(Albert(args.model, threads=args.threads))
    texts = read_inputs(args.texts, args.most)
    rows = []
    for method in args.methods.split(","):
        if method == "gradients" and any(importlib.util.find_spec(name) is None for name in ("torch", "captum")):
            continue
        for hide in HIDE_MODES:
            start = time.perf_counter()
            settings = ExplainSettings(methods=(method,), steps=args.steps)
            (faithfulness,) = measure_faithfulness(explainer, texts, settings, hide)
            row = {"hide": hide, **dataclasses.asdict(faithfulness), "seconds": round(time.perf_counter() - start, 2)}
            rows.append(row)
            print(
                f"{method:<10} {hide:<5} comprehensiveness {faithfulness.comprehensiveness:.3f} (random {faithfulness.random_comprehensiveness:.3f}), "
                f"sufficiency {faithfulness.sufficiency:.3f} (random {faithfulness.random_sufficiency:.3f}), gain {faithfulness.gain:+.3f} ± {faithfulness.gain_error:.3f}"
            )
    return {
        "texts_file": args.texts.name,
        "steps": args.steps,
        "machine": machine(args.threads),
        "versions": versions(),
        "rows": rows,
    }


def main() -> None:
    """Measure, and keep the result beside those of other models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--name", help="what to call the model in the file; default its folder's name")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--most", type=int, default=300)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    recorded = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {}
    recorded[args.name or args.model.name] = measure(args)
    part = args.out.with_suffix(".part")
    part.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    part.replace(args.out)


if __name__ == "__main__":
    main()
