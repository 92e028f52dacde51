"""The results page: what fine-tuning gives on real data, beside published numbers; for `generate.py`.

In: `studies/results/tasks/NAME/*.json` (studies/tasks.py), `fewshot.json`, `finetuning.json`, `precision.json`,
`published.json`. Out: the text of docs/results.md. No number is written here; what was not measured yet is left out.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
TRAINER = Path(__file__).parent.parent / "bench" / "results" / "finetuning.json"
TITLES = {
    "en": {
        "sst-2": "SST-2", "cola": "CoLA", "mrpc": "MRPC", "rte": "RTE", "sts-b": "STS-B", "squad": "SQuAD 1.1", "race-middle": "RACE-M",
        "conll2003": "CoNLL-2003", "clinc150-small": "CLINC150 small", "clinc150-full": "CLINC150 OOS+", "atis": "ATIS", "snips": "Snips",
        "woz2": "WoZ 2.0",
    },
    "zh": {"chnsenticorp": "ChnSentiCorp", "afqmc": "AFQMC", "cluener": "CLUENER", "cmrc2018": "CMRC 2018"},
}  # fmt: skip
LANGUAGES = {"en": "English", "zh": "Chinese"}
METRICS = {
    "accuracy": "accuracy", "mcc": "Matthews", "f1": "F1", "exact": "exact", "spearman": "Spearman", "pearson": "Pearson",
    "joint_goal": "joint goal", "requests": "requests", "in_scope_accuracy": "in-scope accuracy",
    "out_of_scope_recall": "out-of-scope recall", "out_of_scope_f1": "out-of-scope F1",
}  # fmt: skip
NAMES = {  # where the metric's name alone is not clear
    ("intent", "accuracy"): "intent accuracy",
    ("intent", "f1"): "slot F1",
    ("intent", "exact"): "whole frame",
    ("tag", "f1"): "entity F1",
    ("answer", "exact"): "exact match",
}


def page(folder: Path = RESULTS) -> str:
    """The whole page, from what lies in the folder of results."""
    published = read(folder / "published.json")
    lines = ["<!-- Written by `make docs`; do not edit. -->\n", "# Results", "",
             "What `albertkit finetune` gives on labelled data that others publish numbers for, run by `studies/tasks.py` with the defaults of",
             "[fine-tuning](finetuning.md) but for the few options in `studies/tasksets.py`. Scores are in percent: mean ± standard deviation over seeds. The best epoch is",
             "chosen on dev; where dev is also what is reported, that flatters a little, as in most published dev numbers.", ""]  # fmt: skip
    names = sorted(path.name for path in (folder / "tasks").glob("*") if any(path.glob("*.json")))
    for name in names:
        records = {path.stem: read(path) for path in sorted((folder / "tasks" / name).glob("*.json"))}
        for language in LANGUAGES:
            lines += table(language, records, published)
    if not names:
        lines += ["No run has been recorded yet.", ""]
    lines += few_shots(folder / "fewshot.json") + trainer(TRAINER) + precision(folder / "precision.json")
    lines += ["## Where the published numbers come from", "",
              "They were trained by others, with other settings, and some on other parts of the data, as said here; a dash means that we found no number we could check.", ""]  # fmt: skip
    for model, about in published["models"].items():
        lines.append(f"- {model}, {about['parameters']:g} M parameters: {about['source']}")
    return "\n".join([*lines, ""])


def read(path: Path) -> Any:
    """A file of results."""
    return json.loads(path.read_text(encoding="utf-8"))


# Fine-tuning -------------------------------------------------------------------------------------------------------


def table(language: str, records: dict[str, Any], published: dict[str, Any]) -> list[str]:
    """The table of one starting model and language."""
    ours = [records[key] for key in TITLES[language] if key in records and scored(records[key])]
    if not ours:
        return []
    peers = {m: about for m, about in published["models"].items() if about["language"] == language}
    start, machines = ours[0]["start"], sorted({one["device"] for one in ours})
    seeds = sorted({len(one["runs"]) for one in ours})
    lines = [f"## {LANGUAGES[language]}: {start['name']}", "",
             f"A model to start from has {start['parameters'] / 1e6:.1f} M parameters in {start['layers']} layers of width {start['hidden']}. "
             f"{' or '.join(map(str, seeds))} seeds on {', '.join(machines)}, torch {ours[0]['versions']['torch']}, {' or '.join(map(str, sorted({one['jobs'] for one in ours})))} data sets at a time; seconds are of one seed, evaluations included.{begun(ours)}{restarted(ours)}", ""]  # fmt: skip
    heads = [f"{model} ({about['parameters']:g} M)" for model, about in peers.items()]
    lines += ["| data | metric | albertkit | " + " | ".join(heads) + " | learnt from | measured on | seconds |",
              "|---" * (len(heads) + 6) + "|"]  # fmt: skip
    for one in ours:
        for number, metric in enumerate(one["metrics"]):
            if metric in METRICS:
                lines.append(row(one, metric, list(peers), published, first=number == 0))
    return [*lines, "", below(ours, published), ""]


def begun(records: list[dict[str, Any]]) -> str:
    """Which data sets began with which model, where there are several."""
    models: dict[str, list[str]] = {}
    for record in records:
        models.setdefault(record["start"].get("model", "small-pretrained"), []).append(title(record["data"]))
    if len(models) == 1:
        return ""
    return " Begun with: " + "; ".join(f"`{model}` {', '.join(data)}" for model, data in models.items()) + "."


def restarted(records: list[dict[str, Any]]) -> str:
    """Where a seed collapsed and was begun anew with half the rate."""
    found = {r["data"]: [one.get("collapsed", 0) for one in r["runs"]] for r in records}
    told = [f"{title(data)} {', '.join(map(str, counts))}" for data, counts in found.items() if any(counts)]
    return f" New starts after a collapse, by seed: {'; '.join(told)}; seconds are of the last start." if told else ""


def scored(record: dict[str, Any]) -> bool:
    """Whether the metrics are there, and of all the data."""
    return record["cap"] is None and all(one["metrics"] for one in record["runs"])


def row(record: dict[str, Any], metric: str, peers: list[str], published: dict[str, Any], first: bool) -> str:
    """One metric of a data set."""
    data, others = record["data"], published["scores"].get(record["data"], {}).get(metric, {})
    cells = [f"{others[peer]:g}" if peer in others else "–" for peer in peers]
    count, seconds = record["examples"], statistics.fmean(one["seconds"] for one in record["runs"])
    held = f"{count[record['held']]:,} ({record['note']})"
    last = [f"{count['train']:,}", held, f"{seconds:,.0f}"] if first else ["", "", ""]
    return (
        f"| {' | '.join([title(data) if first else '', label(record, metric), score(record, metric), *cells, *last])} |"
    )


def label(record: dict[str, Any], metric: str) -> str:
    """A metric's name; that of an intent with slots is not that of an intent alone."""
    joint = record["task"] != "intent" or "exact" in record["metrics"]
    return (NAMES.get((record["task"], metric)) if joint else None) or METRICS[metric]


def values(record: dict[str, Any], metric: str) -> list[float]:
    """In percent, one for each seed."""
    return [100 * one["metrics"][metric] for one in record["runs"]]


def score(record: dict[str, Any], metric: str) -> str:
    """Mean and spread."""
    found = values(record, metric)
    spread = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
    return f"**{statistics.fmean(found):.1f}**{spread}"


def below(records: list[dict[str, Any]], published: dict[str, Any]) -> str:
    """Which published numbers are above ours, in a sentence for each model that has any."""
    lower: dict[str, list[str]] = {}
    count = 0
    for record in records:
        for metric, others in published["scores"].get(record["data"], {}).items():
            for model, value in others.items():
                count += 1
                gap = value - statistics.fmean(values(record, metric))
                if gap > 0:
                    lower.setdefault(model, []).append(f"{title(record['data'])} {label(record, metric)} by {gap:.1f}")
    if not lower:
        return f"No published number of this table is above ours ({count} compared)."
    shown = [f"{model} on {', '.join(lower[model])}" for model in published["models"] if model in lower]
    return f"Of {count} published numbers, {sum(map(len, lower.values()))} are above ours: {'; '.join(shown)}."


# Other runs --------------------------------------------------------------------------------------------------------


def few_shots(path: Path) -> list[str]:
    """Eight examples of each intent."""
    if not path.exists():
        return []
    found = read(path)
    lines = ["## A few examples of each class", "",
             f"{found['shots']} texts of each of {found['classes']} intents of CLINC150 (small) and {found['shots']} out-of-scope texts, measured on {found['examples']['test']:,} "
             f"texts of its test split, by `studies/fewshot.py`: mean over {found['seeds']} draws, {found['machine']['processor']}. Ours is a head on the frozen vectors of "
             f"{found['model']}. Closed: out of scope cannot be said. setfit's training is capped at {found['setfit_steps']} updates.", "",
             "| program | seconds to learn | closed accuracy | in-scope accuracy | out-of-scope F1 |",
             "|---|---|---|---|---|"]  # fmt: skip
    for name, side in found["sides"].items():
        if "error" in side:
            lines.append(f"| {name} | did not run: {side['error']} | – | – | – |")
            continue
        cells = [f"{100 * side[key]:.1f}" for key in ("closed_accuracy", "in_scope_accuracy", "out_of_scope_f1")]
        lines.append(f"| {name} | {side['seconds']:.1f} | {' | '.join(cells)} |")
    return [*lines, ""]


def trainer(path: Path) -> list[str]:
    """Beside transformers' Trainer."""
    if not path.exists():
        return []
    lines = ["## Beside transformers' Trainer", "",
             "The same checkpoint, examples, epochs, rate and batch, by `bench/finetuning.py`. The Trainer pads to the longest text of a batch; with group_by_length its batches "
             "hold texts of similar length, as ours do.", "",
             "| data | program | seconds | accuracy | albertkit is faster by |", "|---|---|---|---|---|"]  # fmt: skip
    for data, found in read(path).items():
        for name, runs in found["runs"].items():
            seconds, right = statistics.fmean(one["seconds"] for one in runs), [100 * one["accuracy"] for one in runs]
            spread = f" ± {statistics.stdev(right):.1f}" if len(right) > 1 else ""
            ratio = f"{found['ratios'][name]:.2f}" if name in found["ratios"] else ""
            lines.append(f"| {data} | {name} | {seconds:.1f} | {statistics.fmean(right):.1f}{spread} | {ratio} |")
    machines = {found["machine"]["processor"] for found in read(path).values()}
    lines += ["", f"Machine: {', '.join(sorted(machines))}. " + " ".join(
        f"{data}: {found['examples']:,} examples, {found['epochs']} epoch(s), {len(next(iter(found['runs'].values())))} run(s)."
        for data, found in read(path).items())]  # fmt: skip
    return [*lines, ""]


def precision(path: Path) -> list[str]:
    """The runtime beside torch, whole and in few bits."""
    if not path.exists():
        return []
    found = read(path)
    sets = {name: found["sets"][name] for titles in TITLES.values() for name in titles if name in found["sets"]}
    texts = sorted({str(one["calibration_texts"]) for one in sets.values()})
    lines = ["## The runtime against torch, and int8", "",
             "Fine-tuned models on held-out examples, in torch and in the torch-free runtime, both in float32, by `studies/precision.py`; each is a model of its own, of one seed, and not one of those above. For each text, the largest difference of a "
             "score of the head (logit) is taken; the table shows the median of these and the largest, and the largest difference of a probability.", "",
             "| data | measured on | logits, median | logits, largest | probabilities, largest | results unlike torch's |",
             "|---|---|---|---|---|---|"]  # fmt: skip
    lines += [apart(name, one) for name, one in sets.items()]
    lines += ["", *(swaying(name, one["difference"]) for name, one in sets.items() if one["difference"]["texts_above"])]
    lines += [f"Rounded by `albertkit quantize` with {' or '.join(texts)} texts of the training data to calibrate with, and without training afterwards; points are those of the runtime in few bits, "
              "less its own in float32:", "",
              "| data | metric | torch | runtime, float32 | 8 bits | 4 bits | 8 bits, points | 4 bits, points |",
              "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    lines += [rounded(name, one) for name, one in sets.items()]
    machine, libraries = found["machine"], found["libraries"]
    return [*lines, "", f"Machine: {machine['processor']}, onnxruntime {libraries['onnxruntime']}, torch {libraries['torch']}.", ""]  # fmt: skip


def apart(name: str, one: dict[str, Any]) -> str:
    """How far the runtime is from torch on a data set."""
    gap, part = one["difference"], "" if one["examples"] == one["of"] else f" of {one['of']:,}"
    cells = [f"{gap[key]:.1e}" for key in ("logits_median", "logits", "probabilities")]
    on = f"{one['examples']:,}{part} ({one['note']})"
    return f"| {' | '.join([title(name), on, *cells, str(one['unlike']['runtime'])])} |"


def swaying(name: str, gap: dict[str, Any]) -> str:
    """Why logits differ by more than 1e-4."""
    return (f"On {title(name)} a logit of {gap['texts_above']} of {gap['texts']:,} texts differs by more than 1e-4. Logits of the text that differs most move by up to {gap['sway']:.1e} in the runtime "
            "alone when its word weights are moved by their last bit.\n")  # fmt: skip


def rounded(name: str, one: dict[str, Any]) -> str:
    """What few bits cost on a data set, in its first metric."""
    metric = one["metric"]
    known = {"task": one["task"], "metrics": list(one["metrics"]["torch"])}
    scores = [f"{100 * one['metrics'][side][metric]:.2f}" for side in ("torch", "runtime", "int8", "4-bit")]
    points = [f"{one['points'][side]:+.2f}" for side in ("int8", "4-bit")]
    return f"| {' | '.join([title(name), label(known, metric), *scores, *points])} |"


def title(data: str) -> str:
    """A data set's name as people write it."""
    return next(titles[data] for titles in TITLES.values() if data in titles)
