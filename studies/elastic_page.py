"""The page about elastic depth, and its picture: for `generate.py`.

In: `studies/results/elastic.json` (studies/elastic.py) and `published-exits.json`. Out: the text of docs/elastic.md, and docs/elastic.png. No measured number is written here;
what was not measured yet is left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
RESULTS = Path(__file__).parent / "results"
SHORT = " So short a training shows how depths compare, not what they can reach."
OTHER = ("accuracy",)  # metrics that are shown beside the first one
TITLES = {"sst-2": "SST-2", "mrpc": "MRPC", "conll2003": "CoNLL-2003"}
TEXT = """# Elastic depth

ALBERT applies one layer again and again, so depth is a knob. `elastic` trains a fine-tuned model until every depth is a good model, with one head for
all; then apply fewer layers, or let each text leave as soon as it is sure:

```bash
albertkit elastic sentiment train.tsv --dev dev.tsv -o sentiment-elastic
albertkit classify -m sentiment-elastic 'what a lovely film' --depth 4
albertkit classify -m sentiment-elastic 'what a lovely film' --early-exit 99%
albertkit evaluate -m sentiment-elastic test.tsv --early-exit 99%   # also prints the mean depth
```

`Albert(FOLDER).classify(texts, depth=4)` and `early_exit="99%"` do the same, and so do `tag`, `understand`, `answer` and `choose`; a result says in `depth` where it left.
`albertkit finetune classify train.tsv -o OUT --elastic` trains a model so from the start. A pre-trained model learns masked words at every depth with
`albertkit pretrain SHARDS -m MODEL --depths 3,6,9 -o OUT`.

## How it is trained

One pass gives the hidden states after every layer. The head reads the full depth, and all shallower ones (or `--sampled-depths 3` of them, drawn for each update). A shallower depth
learns from the right answers and from what the full depth says (`--distill-weight`, half and half by default), softened (`--temperature`). The documents'
cross-layer consistency loss can be added (`--consistency-weight`). Each ingredient can be turned off; what each is worth is measured below.

**Begin with a model that knows its depths.** A pre-trained model that only ever learnt at its full depth has little to say after three layers, and fine-tuning is too short to mend it. So teach it
before, once for all tasks: `albertkit pretrain SHARDS -m small-pretrained --depths 3,6,9 -o words` (masked words at every depth, SHARDS from `albertkit corpus`), then `finetune` and `elastic` from
`words/model`. That costs a little at the full depth and gives much at the others. Models that `distill` made, as the built-in `small`, know their depths already.

**Labels are few, texts are not.** `--texts more.txt` adds lines without labels (a tab between the two of a pair), for classes, tags and intents: the model labels them at its full depth, and all depths learn from them. With `--teacher FOLDER` another model for the same task labels them, and MODEL may be one
without a task, which then begins afresh. Of all that was tried this helped shallow depths most; so do it where texts can be had:

```bash
albertkit elastic words train.tsv --texts reviews.txt --teacher sentiment -o better   # words knows its depths, sentiment the task
```

Good texts are like those to be labelled later: sentences of the same kind, the labelled ones with other names in them, or with words replaced that a masked-word model finds likely (`studies/more_texts.py` makes such). Where most labels are the teacher's, try `--distill-weight 0` as well. A model of
fewer layers learns as much from such texts; what elastic depth adds is that one model has all depths, and spends more of them where a text needs it.

## When texts leave

| `early_exit=` | a text leaves when |
|---|---|
| `"99%"` or `0.99` | it is sure enough that texts agree with the full depth 99 times in 100 |
| `"entropy:0.1"` | the entropy of its classes is at most a tenth of the highest possible one |
| `"cosine:0.99"` | its vector has at least this cosine with that of the last look (vectors, `match`) |
| `"change:0.05"` | its value changed by at most so many spreads of the training values (regression) |

The tables below also contain `patience`, the rule of PABEE: a text exits when that many looks in a row predict the same. It needs more layers for the same agreement, so it is measured here
and is not an option.

For tags the least sure word counts, for answers the less sure end of the least sure window, for several labels the least sure one; all windows and choices of an example leave together. Texts
that are left are packed into full batches again, so time follows the layers applied.

**What 99 % means.** `elastic` looks at its held-out examples after every layer: how sure is each text, and is the prediction there that of the full depth? A quarter of them draws for each
depth one line from uncertainty to the chance of disagreeing. The others test rules of the form "leave where that chance is at most r", from the most careful one on, and stop before the first rule whose
agreement is not above 99 % with 95 % confidence (Clopper and Pearson's lower bound). So the promise is: for texts like the held-out ones, with 95 % confidence in their draw. It
does not depend on the lines being right; bad lines only make texts leave later. 99 % needs 400 held-out texts at least. The same examples may have chosen the best epoch; for limits from texts that played no part in the
training, for texts of another kind, or after quantising:

```bash
albertkit calibrate sentiment-int8 fresh.tsv
```

Two vectors agree when their cosine is at least 0.95, two values when they differ by a tenth of the training values' spread.

## Vectors

Models that `albertkit distill` made are elastic as they come, at the depths they were trained at (3, 6, 9 and 12 for the built-in one; between them their vectors mean nothing, and another `depth=` is refused). A vector cannot
have stopped moving at the first look, so the second is the first at which a text can leave. `albertkit calibrate MODEL texts.txt` finds the limits for `early_exit="99%"`; the built-in
model has them.

```python
from albertkit import Albert

albert = Albert()
vectors, depths = albert.embed_early_exit(["a cat sat on the mat", "stocks fell again"], early_exit="cosine:0.9")
print(f"{depths.mean():.1f} of {albert.depth} layers")
```
"""


def page(folder: Path = RESULTS) -> str:
    """The whole page, from what lies in the folder of results."""
    lines = ["<!-- Written by `make docs`; do not edit. -->\n", TEXT]
    found = read(folder / "elastic.json")
    if found:
        lines += ["## Measured", "",
                  "By `studies/elastic.py`. Limits come from one half of the held-out texts and are used on the other, both ways round. "
                  "Times are the best of several, all ways in turn, of everything from text to result. The checkpoint of each model is the one that was best on a tenth of the training examples: over all depths, or at the full depth where that alone was trained. For SST-2 and the ingredients below it was chosen over all depths throughout.", ""]  # fmt: skip
        if (DOCS / "elastic.png").exists():
            lines += ["![quality against layers applied, and against time](elastic.png)", ""]
        for name, one in found["sets"].items():
            lines += data_set(TITLES.get(name, name), one)
        if "vectors" in found:
            lines += vectors(found["vectors"])
    lines += ingredients(read(folder / "elastic-ingredients.json"))
    others = read(folder / "published-exits.json")
    return "\n".join([*lines, *(beside(found) if found and others else []), *published(others)])


def read(path: Path) -> Any:
    """A file of results, or nothing."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def history(one: dict[str, Any]) -> Any:
    """How its models were made; results recorded before the name changed call it "made"."""
    return one["history"] if "history" in one else one["made"]


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def data_set(title: str, one: dict[str, Any]) -> list[str]:
    """Quality at each depth, then what exits give."""
    metric, layers = one["metric"], one["elastic"]["layers"]
    learnt = history(one)["elastic"][-1]
    lines = [f"### {title}", "",
             f"{metric}, in percent, of {one['examples']:,} held-out examples{left_out(one)}{', int8' if one['bits'] == 8 else ''}. The last training saw {learnt['examples']:,} examples in {learnt['updates']:,} updates; "
             f"{taught(one)}{SHORT if learnt['updates'] < 1000 else ''}{begun(one.get('begun'))} Times are of {on(one['machine'])}.", ""]  # fmt: skip
    depths = [str(d) for d in range(1, layers + 1)]
    lines += ["| depth | " + " | ".join(depths) + " |", "|---" * (layers + 1) + "|"]
    for name, text in (("plain", "full depth alone"), ("elastic", "elastic")):
        lines.append(f"| {text} | " + " | ".join(percent(one[name]["depth"][d][metric]) for d in depths) + " |")
    fixed = {one[name]["layers"]: one[name] for name in one if name.startswith("fixed-")}
    if fixed:
        cells = [percent(fixed[int(d)]["depth"][d][metric]) if int(d) in fixed else "" for d in depths]
        lines.append("| trained with so many layers | " + " | ".join(cells) + " |")
    seconds = one["seconds"]
    whole = seconds["elastic, full depth"]
    lines += ["", f"| exit | {metric} | agrees with full depth | layers a text | times fewer | times faster |", "|---|---|---|---|---|---|"]  # fmt: skip
    for share, row in one["elastic"]["exit"].items():
        if row is None:
            continue
        timed = seconds.get(f"elastic, exit {float(share):.0%}")
        times = f"{whole['seconds'] / timed['seconds']:.2f}" if timed else ""
        lines.append(f"| {float(share):.0%} | {outcome(row, metric)} | {times} |")
    for text, row in one["elastic"]["rules"].items():
        lines.append(f"| {text} | {outcome(row, metric)} | |")
    none = [f"{float(share):.0%}" for share, row in one["elastic"]["exit"].items() if row is None]
    if none:
        lines += ["", f"{' and '.join(none)} cannot be promised with so few texts."]
    return [*lines, "", *seeds(one)]


def left_out(one: dict[str, Any]) -> str:
    """Held-out examples that stand among the texts without labels."""
    count = one.get("seen", 0)
    return (
        f" ({count} others have a sentence that stands among the texts without labels, and are left out)"
        if count
        else ""
    )


def on(machine: dict[str, Any]) -> str:
    """Threads and processor."""
    return f"{machine['threads']} thread{'s' if machine['threads'] > 1 else ''} of {machine['processor']}"


def taught(one: dict[str, Any]) -> str:
    """Where the labels came from, and what the full depth alone had."""
    learnt, plain = history(one)["elastic"][-1], history(one)["plain"][-1]
    if learnt["examples"] == plain["examples"]:
        return "“full depth alone” had the same updates."
    mixed = learnt["depths"]["distill_weight"]
    return (
        f"{plain['examples']:,} of them had labels, and “full depth alone”, trained on those in {plain['updates']:,} updates, labelled the others (`--texts`, `--teacher`"
        f"{f', `--distill-weight {mixed:g}`' if mixed != 0.5 else ''}). The one of fewer layers had labelled ones alone; LOG.md tells what the others give it."
    )


def seeds(one: dict[str, Any]) -> list[str]:
    """Each seed, and their mean; the mean also by the other usual metric, where there is one."""
    every = one.get("seeds", [])
    if len(every) < 2:
        return []
    full = str(one["elastic"]["layers"])
    shares = [s for s in one["elastic"]["exit"] if all(seed["elastic"]["exit"].get(s) for seed in every)]
    deep = [d for d in ("3", "4", "6") if int(d) < int(full)]
    fixed = sorted({name for seed in every for name in seed if name.startswith("fixed-")})
    heads = ["full depth alone", *(f"trained with {n.split('-')[1]} layers" for n in fixed), "elastic, full", *(f"depth {d}" for d in deep), *(f"exit {float(s):.0%}" for s in shares)]  # fmt: skip
    lines = ["Every seed; after an exit, the layers a text:", "", "| seed | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]  # fmt: skip
    mean = averaged(every)
    rows = [(str(number), seed, one["metric"]) for number, seed in enumerate(every)]
    rows += [(f"mean {metric}", mean, metric) for metric in dict.fromkeys((one["metric"], *OTHER)) if metric in mean["plain"]]  # fmt: skip
    for name, seed, metric in rows:
        elastic = seed["elastic"]
        cells = [percent(seed["plain"][metric])]
        cells += [percent(seed[name][metric]) if name in seed else "" for name in fixed]
        cells += [percent(elastic["depth"][d][metric]) for d in (full, *deep)]
        cells += [f"{percent(elastic['exit'][s][metric])} ({elastic['exit'][s]['mean_depth']:.2f})" for s in shares]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def averaged(every: list[Any]) -> Any:
    """The mean of each number that all seeds have (of `fixed-…`, of those that have it); of ratios, that of the mean layers."""
    if not isinstance(every[0], dict):
        return sum(every) / len(every)
    names = dict.fromkeys(name for one in every for name in one)
    found = {name: [one[name] for one in every if one.get(name) is not None] for name in names}
    whole = {name: values for name, values in found.items() if name.startswith("fixed-") or len(values) == len(every)}
    mean = {name: averaged(values) for name, values in whole.items()}
    if "times_fewer_layers" in mean and "mean_depth" in mean:
        mean["times_fewer_layers"] = every[0]["times_fewer_layers"] * every[0]["mean_depth"] / mean["mean_depth"]
    return mean


def begun(step: dict[str, Any] | None) -> str:
    """What the model knew of its depths before it was fine-tuned."""
    if step is None:
        return ""
    return f" The elastic model and those of fewer layers began with one that had been taught depths {step['depths'].replace(',', ', ')} before (`{step['step']}`, {step['minutes']:.0f} minutes of a GPU)."


WAYS = {
    "plain": "the full depth alone",
    "elastic": "right answers and the full depth, half and half",
    "answers": "right answers alone (`--distill-weight 0`)",
    "taught": "the full depth alone as teacher (`--distill-weight 1`)",
    "drawn": "three depths drawn for each update (`--sampled-depths 3`)",
    "consistent": "with the consistency loss (`--consistency-weight 0.1`)",
}
SHOWN = ("2", "3", "4", "6", "8", "full")


def ingredients(found: Any) -> list[str]:
    """What each part of the loss is worth, on the examples that chose the checkpoints."""
    if not found:
        return []
    lines = ["## What each ingredient is worth", "",
             "The same start and the same updates, one seed, measured on the tenth of the training examples that chose the checkpoint: quality by depth, and layers a text with `early_exit=95%` and `early_exit=99%`.", ""]  # fmt: skip
    for name, ways in found.items():
        metric = next(iter(ways.values()))["metric"]
        heads = [*(f"depth {d}" if d.isdigit() else d for d in SHOWN), "95%", "99%"]
        lines += [
            f"| {TITLES.get(name, name)}, {metric} | " + " | ".join(heads) + " |",
            "|---" * (len(heads) + 1) + "|",
        ]
        for way in (way for way in WAYS if way in ways):
            row = ways[way]
            cells = [percent(row["depth"][d]) if d in row["depth"] else "" for d in SHOWN]
            cells += [f"{row['layers'][s]:.2f}" if s in row["layers"] else "–" for s in ("0.95", "0.99")]
            lines.append(f"| {WAYS[way]} | " + " | ".join(cells) + " |")
        lines.append("")
    return lines


def outcome(row: dict[str, float], metric: str) -> str:
    """Quality, agreement, depth, saving."""
    return f"{percent(row[metric])} | {percent(row['agreement'])} | {row['mean_depth']:.2f} | {row['times_fewer_layers']:.2f}"


def vectors(one: dict[str, Any]) -> list[str]:
    """Sentence vectors by depth and by exit."""
    lines = ["### Sentence vectors of the built-in model", "",
             f"Spearman's correlation with people's marks on STS-B dev, {one['texts']:,} texts; agreement is a cosine of at least {one['close']} with the full depth's vector. Times are of {on(one['machine'])}.", "",
             "| | Spearman | agrees with full depth | layers a text | times fewer | times faster |", "|---|---|---|---|---|---|"]  # fmt: skip
    for depth, row in one["depth"].items():
        lines.append(f"| depth {depth} | {outcome(row, 'spearman')} | {times_faster(one, f'depth {depth}')} |")
    for share, row in one["exit"].items():
        lines.append(f"| exit {float(share):.0%} | {outcome(row, 'spearman')} | |")
    return [*lines, ""]


def times_faster(one: dict[str, Any], way: str) -> str:
    """How many times faster vectors are than at the full depth."""
    times = one.get("seconds", {})
    whole = times.get(f"depth {one['layers']}")
    return f"{whole['seconds'] / times[way]['seconds']:.2f}" if whole and way in times else ""


def beside(found: dict[str, Any]) -> list[str]:
    """Ours in the form in which others report: what may be saved for one point."""
    lines = ["## Beside what others report", "",
             "First ours, in the form of the table below it: for each data set the way that saves most layers and loses at most one point against the better of the two models at full depth (elastic, or trained for "
             "the full depth alone); where every way loses more, the one that loses least. Scores and layers are means over seeds where there are several, times are of the first. FastBERT's ratios are of operations, which are our layers; DeeBERT's is of time.", "",
             "| ours | on | way | times fewer layers | times faster | score before → after |", "|---|---|---|---|---|---|"]  # fmt: skip
    for name, one in found["sets"].items():
        metric, full = one["metric"], str(one["elastic"]["layers"])
        mean = averaged(one.get("seeds") or [{"plain": one["plain"]["depth"][full], "elastic": {part: one["elastic"][part] for part in ("depth", "exit")}}])  # fmt: skip
        before = max(mean["plain"][metric], mean["elastic"]["depth"][full][metric])
        ways = {f"depth {d}": row for d, row in mean["elastic"]["depth"].items() if d != full}
        ways |= {f"exit {float(share):.0%}": row for share, row in mean["elastic"]["exit"].items()}
        way, row = most_saved(ways, metric, before)
        timed, whole = one["seconds"].get(f"elastic, {way}"), one["seconds"]["elastic, full depth"]
        faster = f"{whole['seconds'] / timed['seconds']:.2f}" if timed else ""
        lines.append(f"| `elastic`, {full} layers | {TITLES.get(name, name)} | {way} | {row['times_fewer_layers']:.2f} | {faster} | {metric} {percent(before)} → {percent(row[metric])}{also(mean, row, metric, full)} |")  # fmt: skip
    if "vectors" in found:
        rows = found["vectors"]["depth"]
        full = max(rows, key=int)
        way, row = most_saved(
            {f"depth {d}": r for d, r in rows.items() if d != full}, "spearman", rows[full]["spearman"]
        )
        lines.append(f"| the built-in model | STS-B dev | {way} | {row['times_fewer_layers']:.2f} | {times_faster(found['vectors'], way)} | Spearman {percent(rows[full]['spearman'])} → {percent(row['spearman'])} |")  # fmt: skip
    return [*lines, ""]


def also(mean: dict[str, Any], row: dict[str, float], metric: str, full: str) -> str:
    """The same by other usual metrics."""
    found = ""
    for other in (name for name in OTHER if name != metric and name in row):
        before = max(mean["plain"][other], mean["elastic"]["depth"][full][other])
        found += f", {other} {percent(before)} → {percent(row[other])}"
    return found


def most_saved(ways: dict[str, dict[str, float]], metric: str, before: float) -> tuple[str, dict[str, float]]:
    """The way that saves most and loses at most one point; where each loses more, the one that loses least."""
    good = {way: row for way, row in ways.items() if row[metric] >= before - 0.01}
    if good:
        return max(good.items(), key=lambda pair: pair[1]["times_fewer_layers"])
    return max(ways.items(), key=lambda pair: pair[1][metric])


def published(found: Any) -> list[str]:
    """What others report."""
    if not found:
        return []
    lines = ["### What others report", "", found["note"], "", "| method | on | times faster | score before → after | source |", "|---|---|---|---|---|"]  # fmt: skip
    for row in found["rows"]:
        scores = ", ".join(f"{name} {a:g} → {b:g}" for name, (a, b) in row["scores"].items()) or "–"
        lines.append(f"| {row['method']} | {row['data']} | {row['speedup']:g} | {scores} | {row['source']} |")
    return [*lines, ""]


def picture(folder: Path = RESULTS, target: Path = DOCS / "elastic.png") -> bool:
    """Quality against layers applied, and below against time, a panel for each data set; False where nothing was measured."""
    found = read(folder / "elastic.json")
    if not found or not found["sets"]:
        return False
    from matplotlib.figure import Figure

    sets, vectors = found["sets"], found.get("vectors")
    figure = Figure(figsize=(4.6 * (len(sets) + bool(vectors)), 7.2), layout="constrained")
    grid = figure.subplots(2, len(sets) + bool(vectors), squeeze=False)
    if vectors:
        of_vectors(*grid[:, -1], vectors)
        grid = grid[:, :-1]
    for axes, below, (name, one) in zip(*grid, sets.items(), strict=True):
        metric = one["metric"]
        for kind, text, style in (("plain", "full depth alone", "o:"), ("elastic", "elastic, one depth for all", "o-")):
            rows = one[kind]["depth"].values()
            axes.plot([r["mean_depth"] for r in rows], [100 * r[metric] for r in rows], style, ms=3, label=text)
        rows = [r for r in one["elastic"]["exit"].values() if r]
        axes.plot([r["mean_depth"] for r in rows], [100 * r[metric] for r in rows], "s-", ms=4, label="elastic, exit")
        fixed = [one[n] for n in one if n.startswith("fixed-")]
        points = [(f["layers"], 100 * f["depth"][str(f["layers"])][metric]) for f in fixed]
        if points:
            axes.plot(*zip(*points, strict=True), "k^", ms=5, label="trained with so many layers")
        axes.set_title(TITLES.get(name, name), fontsize=9)
        axes.set_xlabel("layers a text")
        axes.set_ylabel(f"{metric}, %")
        axes.legend(fontsize=7)
        against_time(below, one, metric)
    figure.savefig(target, dpi=110, metadata={"Software": None})
    return True


def of_vectors(axes: Any, below: Any, one: dict[str, Any]) -> None:
    """The last panel: vectors at the depths they were taught."""
    rows = {int(depth): 100 * row["spearman"] for depth, row in one["depth"].items()}
    axes.plot(list(rows), list(rows.values()), "o-", ms=4, label="one depth for all")
    axes.set_title("Sentence vectors, STS-B", fontsize=9)
    axes.set_xlabel("layers a text")
    times = [1e3 * one["seconds"][f"depth {depth}"]["seconds"] / one["texts"] for depth in rows]
    below.plot(times, list(rows.values()), "o-", ms=4, label="one depth for all")
    below.set_xlabel("milliseconds a text")
    for each in (axes, below):
        each.set_ylabel("Spearman, %")
        each.set_ylim(min(rows.values()) - 4, max(rows.values()) + 1)
        each.legend(fontsize=7)


def against_time(axes: Any, one: dict[str, Any], metric: str) -> None:
    """Quality against the time of a text, of what was timed."""
    elastic, fixed = one["elastic"], [n for n in one if n.startswith("fixed-")]
    shown: dict[str, tuple[str, dict[str, float]]] = {
        "full depth alone": ("o:", {"plain, full depth": one["plain"]["depth"][str(one["plain"]["layers"])][metric]}),
        "elastic, one depth for all": ("o-", {f"elastic, depth {d}": row[metric] for d, row in elastic["depth"].items()}),
        "elastic, exit": ("s-", {f"elastic, exit {float(s):.0%}": row[metric] for s, row in elastic["exit"].items() if row}),
        "trained with so many layers": ("k^", {f"{n}, full depth": one[n]["depth"][str(one[n]["layers"])][metric] for n in fixed}),
    }  # fmt: skip
    whole = {"elastic, full depth": elastic["depth"][str(elastic["layers"])][metric]}
    shown["elastic, one depth for all"][1].update(whole)
    for text, (style, scores) in shown.items():
        points = [(1e3 * one["seconds"][n]["seconds"] / one["examples"], 100 * v) for n, v in scores.items() if n in one["seconds"]]  # fmt: skip
        if points:
            axes.plot(*zip(*sorted(points), strict=True), style, ms=4, label=text)
    axes.set_xlabel("milliseconds a text")
    axes.set_ylabel(f"{metric}, %")
    axes.legend(fontsize=7)
