"""How faithful each method of `albertkit explain` is, on texts of yours; the numbers behind docs/explain.md.

    python studies/faithfulness.py MODEL TEXTS [--out studies/results/faithfulness.json] [--most 300] [--methods
    occlusion,shapley,gradients,rollout,attention]

MODEL is a fine-tuned model, TEXTS a file with a text a line, or .jsonl with text, pair, question, choices. Every method
is checked with words that are dropped, masked and replaced by [PAD], since no way of hiding is right by itself. Models
measured before stay in the file. gradients needs torch and captum; it is left out where they are missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "bench", "studies")]

from inference import machine, versions  # noqa: E402

from albertkit.albert import Albert  # noqa: E402
from albertkit.explain import Explainer, ExplainSettings, measure_faithfulness  # noqa: E402
from albertkit.explain.attribution import HIDE_MODES, METHODS  # noqa: E402
from albertkit.explain.faithfulness import read_inputs  # noqa: E402

RESULT = Path(__file__).parent / "results" / "faithfulness.json"


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
            settings = ExplainSettings(methods=(method,), samples=args.samples, steps=args.steps)
            (found,) = measure_faithfulness(explainer, texts, settings, hide)
            row = {"hide": hide, **dataclasses.asdict(found), "seconds": round(time.perf_counter() - start, 2)}
            rows.append(row)
            print(
                f"{method:<10} {hide:<5} comprehensiveness {found.comprehensiveness:.3f} (random {found.random_comprehensiveness:.3f}), "
                f"sufficiency {found.sufficiency:.3f} (random {found.random_sufficiency:.3f}), gain {found.gain:+.3f} ± {found.gain_error:.3f}"
            )
    return {
        "texts_file": args.texts.name,
        "samples": args.samples,
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
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    kept = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {}
    kept[args.name or args.model.name] = measure(args)
    part = args.out.with_suffix(".part")
    part.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    part.replace(args.out)


if __name__ == "__main__":
    main()
