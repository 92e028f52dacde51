"""The same fine-tuning from another start: how much of the distance to MiniLM is the start, and how much the recipe?

    python studies/other_start.py DATA MODEL OUT.jsonl [--only cola,rte] [--rates 5e-5,1e-4] [--seeds 2]

MODEL is a folder of transformers, such as all-MiniLM-L6-v2. Batches, steps, warm-up, examples and what is measured are
those of `curves.py --plan recipes`, so the scores can be compared with the recipe "preset" there.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "bench", "studies")]

from curves import RECIPE_SETS, parts_of  # noqa: E402

from albertkit.train.presets import preset_epochs, preset_steps  # noqa: E402

SETS = ("cola", "mrpc", "rte", "sst-2")


def encode(tokenizer: Any, examples: list[Any], length: int) -> list[list[list[int]]]:
    """Token ids and segments of each example."""
    texts, pairs = [e.text for e in examples], [e.pair for e in examples]
    encoded = tokenizer(texts, pairs if pairs[0] is not None else None, truncation=True, max_length=length)
    return [list(row) for row in zip(encoded["input_ids"], encoded["token_type_ids"], strict=True)]


def batch(rows: list[list[list[int]]], device: str) -> dict[str, torch.Tensor]:
    """Rows, padded."""
    longest = max(len(row[0]) for row in rows)
    ids, types, mask = np.zeros((3, len(rows), longest), np.int64)
    for at, (tokens, segments) in enumerate(rows):
        ids[at, : len(tokens)], types[at, : len(tokens)], mask[at, : len(tokens)] = tokens, segments, 1
    named = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    return {name: torch.from_numpy(array).to(device) for name, array in named.items()}


def scores(model: Any, rows: list[list[list[int]]], right: np.ndarray, device: str) -> dict[str, float]:
    """Accuracy and Matthews correlation."""
    model.eval()
    with torch.no_grad():
        parts = [model(**batch(rows[i : i + 256], device)).logits.argmax(1).cpu() for i in range(0, len(rows), 256)]
    predicted = torch.cat(parts).numpy()
    a, b = ((side[:, None] == np.unique(right)) * 1.0 for side in (right, predicted))
    a, b = a - a.mean(0), b - b.mean(0)
    mcc = (a * b).sum() / max(1e-9, np.sqrt((a * a).sum() * (b * b).sum()))
    return {"accuracy": float((predicted == right).mean()), "mcc": float(mcc)}


def finetune(name: str, args: argparse.Namespace, rate: float, seed: int) -> dict[str, Any]:
    """One run and its record."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, get_linear_schedule_with_warmup

    parts, began = parts_of(name, args.data), time.perf_counter()
    train = parts["train"][: RECIPE_SETS[name] or None]
    tenth = min(500, len(train) // 10)
    splits = {"train": train[:-tenth], "choose": train[-tenth:], "measure": parts["all"]}
    labels = sorted({e.label for e in train})
    tokenizer, length = AutoTokenizer.from_pretrained(args.model), 256 if name == "rte" else 128
    rows = {split: encode(tokenizer, examples, length) for split, examples in splits.items()}
    right = {split: np.array([labels.index(e.label) for e in examples]) for split, examples in splits.items()}
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForSequenceClassification.from_pretrained(args.model, num_labels=len(labels)).to(device)
    size, steps = preset_steps("classify", len(rows["train"]))
    per_epoch = -(-len(rows["train"]) // size)
    steps = args.steps or max(steps, round(preset_epochs(len(rows["train"])) * per_epoch))
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    rng, order, best = np.random.default_rng(seed), [], (-1.0, {})
    metric = "mcc" if name == "cola" else "accuracy"
    for step in range(steps):
        order = order or rng.permutation(len(rows["train"])).tolist()
        examples, order = order[:size], order[size:]
        model.train()
        with torch.autocast(device, torch.bfloat16):
            logits = model(**batch([rows["train"][i] for i in examples], device)).logits
        loss = torch.nn.functional.cross_entropy(logits.float(), torch.from_numpy(right["train"][examples]).to(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if (step + 1) % max(per_epoch, steps // 20) == 0 or step + 1 == steps:
            score = scores(model, rows["choose"], right["choose"], device)[metric]
            if score > best[0]:
                best = score, scores(model, rows["measure"], right["measure"], device)
    seconds = round(time.perf_counter() - began, 1)
    return {"data": name, "start": args.model.name, "learning_rate": rate, "seed": seed, "steps": steps,
            "examples": len(rows["train"]), "metrics": best[1], "seconds": seconds}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(SETS))
    parser.add_argument("--rates", default="1e-4,5e-5")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, help="instead of the preset's, to try it out")
    args = parser.parse_args()
    for seed in range(args.seeds):
        for rate in map(float, args.rates.split(",")):
            for name in args.only.split(","):
                row = finetune(name, args, rate, seed)
                with args.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print(row, flush=True)


if __name__ == "__main__":
    main()
