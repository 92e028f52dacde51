"""Tables of results/elastic.md, and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tables import ROOT, percent, read, table, times
from tables.tasks import TITLES

DEPTHS = ("1", "2", "3", "4", "6", "12")
TRAININGS = {
    "plain": "full depth only", "elastic": "labels and full depth, half each (default)", "answers": "labels only (`--distill-weight 0`)",
    "taught": "full depth only as teacher (`--distill-weight 1`)", "drawn": "three depths per step (`--sampled-depths 3`)", "consistent": "with consistency loss (`--consistency-weight 0.1`)",
}  # fmt: skip


def by_depth() -> str:
    rows = []
    for name, one in read("elastic.json")["sets"].items():
        metric = one["metric"]
        title = f"{TITLES[name]}, {metric if metric != 'f1' else 'F1'}"
        fixed = {str(of["layers"]): of for key, of in one.items() if key.startswith("fixed-")}
        rows.append((title, "elastic", *(percent(one["elastic"]["depth"][d][metric]) for d in DEPTHS)))
        rows.append(("", "trained at full depth only", *(percent(one["plain"]["depth"][d][metric]) for d in DEPTHS)))
        rows.append(("", "trained with this many layers", *(percent(fixed[d]["depth"][d][metric]) if d in fixed else "–" for d in DEPTHS)))  # fmt: skip
    return table(("data", "model", *(f"depth {d}" for d in DEPTHS)), rows)


def exits() -> str:
    rows = []
    for name, one in read("elastic.json")["sets"].items():
        whole = one["seconds"]["elastic, full depth"]["seconds"]
        for share, row in one["elastic"]["exit"].items():
            if row is not None:
                timed = one["seconds"].get(f"elastic, exit {float(share):.0%}")
                rows.append((TITLES[name], f"{float(share):.0%}", *outcome(row, one["metric"]), times(whole / timed["seconds"]) if timed else "–"))  # fmt: skip
    return table(
        ("data", "`early_exit`", "score", "agreement with full depth", "mean depth", "fewer layers", "speedup"), rows
    )


def rules() -> str:
    rows = [(TITLES[name], rule, *outcome(row, one["metric"])) for name, one in read("elastic.json")["sets"].items() for rule, row in one["elastic"]["rules"].items()]  # fmt: skip
    return table(("data", "rule", "score", "agreement with full depth", "mean depth", "fewer layers"), rows)


def outcome(row: dict[str, float], metric: str) -> tuple[str, str, str, str]:
    return percent(row[metric]), percent(row["agreement"]), f"{row['mean_depth']:.2f}", times(row["times_fewer_layers"])


def seeds() -> str:
    rows = []
    for name, one in read("elastic.json")["sets"].items():
        metric, every = one["metric"], one.get("seeds", [])
        for number, seed in enumerate(every):
            elastic = seed["elastic"]
            exit_95 = elastic["exit"]["0.95"]
            cells = [percent(elastic["depth"][d][metric]) for d in ("3", "6", "12")]
            rows.append((TITLES[name], number, percent(seed["plain"][metric]), *cells, percent(exit_95[metric]), f"{exit_95['mean_depth']:.2f}"))  # fmt: skip
    return table(("data", "seed", "full depth only", "elastic, depth 3", "depth 6", "depth 12", "exit 95%", "its mean depth"), rows)  # fmt: skip


def vectors() -> str:
    one = read("elastic.json")["vectors"]
    seconds = {name: row["seconds"] for name, row in one["seconds"].items()}
    rows = []
    for title, row in ((f"depth {d}", row) for d, row in one["depth"].items()):
        rows.append((title, *outcome(row, "spearman"), times(seconds[f"depth {one['layers']}"] / seconds[title])))
    rows += [(f"`early_exit` {float(share):.0%}", *outcome(row, "spearman"), "–") for share, row in one["exit"].items() if share in ("0.9", "0.99")]  # fmt: skip
    return table(("vectors of `small`", "STS-B dev", "cosine ≥ 0.95 with full depth, %", "mean depth", "fewer layers", "speedup"), rows)  # fmt: skip


def ingredients() -> str:
    rows = []
    for name, trainings in read("elastic-ingredients.json").items():
        for key in (key for key in TRAININGS if key in trainings):
            one = trainings[key]
            layers = [f"{one['layers'][share]:.2f}" if share in one["layers"] else "–" for share in ("0.95", "0.99")]
            rows.append((TITLES[name], TRAININGS[key], *(percent(one["depth"][d]) for d in ("3", "6", "full")), *layers))  # fmt: skip
    return table(("data", "training", "depth 3", "depth 6", "full depth", "mean depth at 95%", "at 99%"), rows)


def average(every: list[Any]) -> Any:
    """The mean of what all seeds have; the saving follows from the mean depth."""
    if not isinstance(every[0], dict):
        return sum(every) / len(every)
    names = [name for name in every[0] if all(one.get(name) is not None for one in every)]
    mean = {name: average([one[name] for one in every]) for name in names}
    if "times_fewer_layers" in mean and "mean_depth" in mean:
        mean["times_fewer_layers"] = every[0]["times_fewer_layers"] * every[0]["mean_depth"] / mean["mean_depth"]
    return mean


def beside() -> str:
    """Ours: what saves most layers for at most one point, else what loses least. Then what others report."""
    found = read("elastic.json")
    rows = []
    for name, one in found["sets"].items():
        metric, full = one["metric"], str(one["elastic"]["layers"])
        one_seed = {"plain": one["plain"]["depth"][full], "elastic": {part: one["elastic"][part] for part in ("depth", "exit")}}  # fmt: skip
        mean = average(one.get("seeds") or [one_seed])
        before = max(mean["plain"][metric], mean["elastic"]["depth"][full][metric])
        settings = {f"depth {d}": row for d, row in mean["elastic"]["depth"].items() if d != full}
        settings |= {f"exit {float(share):.0%}": row for share, row in mean["elastic"]["exit"].items() if row}
        setting, row = most_saved(settings, metric, before)
        timed = one["seconds"].get(f"elastic, {setting}")
        speedup = times(one["seconds"]["elastic, full depth"]["seconds"] / timed["seconds"]) if timed else "–"
        rows.append((f"albertkit, {setting}", TITLES[name], times(row["times_fewer_layers"]), speedup, f"{percent(before)} → {percent(row[metric])}", "this page"))  # fmt: skip
    depths, seconds = found["vectors"]["depth"], found["vectors"]["seconds"]
    setting, row = most_saved({f"depth {d}": row for d, row in depths.items() if d != "12"}, "spearman", depths["12"]["spearman"])  # fmt: skip
    rows.append((f"albertkit, vectors, {setting}", "STS-B dev", times(row["times_fewer_layers"]), times(seconds["depth 12"]["seconds"] / seconds[setting]["seconds"]), f"{percent(depths['12']['spearman'])} → {percent(row['spearman'])}", "this page"))  # fmt: skip
    for other in read("published-exits.json")["rows"]:
        scores = ", ".join(f"{name} {a:g} → {b:g}" for name, (a, b) in other["scores"].items()) or "–"
        rows.append((other["method"], other["data"], "–", times(other["speedup"]), scores, other["source"]))
    return table(("method", "data", "fewer layers", "speedup", "score before → after", "source"), rows)


def most_saved(settings: dict[str, Any], metric: str, before: float) -> tuple[str, dict[str, float]]:
    good = {name: row for name, row in settings.items() if row[metric] >= before - 0.01}
    if good:
        return max(good.items(), key=lambda pair: pair[1]["times_fewer_layers"])
    return max(settings.items(), key=lambda pair: pair[1][metric])


def picture(target: Path = ROOT / "docs" / "images" / "elastic.png") -> Path:
    """Score against mean depth, and below against time: one panel per data set, and one for vectors."""
    from matplotlib.figure import Figure

    found = read("elastic.json")
    sets, vectors = found["sets"], found["vectors"]
    figure = Figure(figsize=(4.6 * (len(sets) + 1), 7.2), layout="constrained")
    grid = figure.subplots(2, len(sets) + 1)
    for column, (name, one) in enumerate(sets.items()):
        metric, count, seconds = one["metric"], one["examples"], one["seconds"]
        lines: dict[str, tuple[str, list[tuple[str, Any]]]] = {
            "full depth only": ("o:", [("plain, full depth" if d == str(one["plain"]["layers"]) else "", row) for d, row in one["plain"]["depth"].items()]),
            "elastic, fixed depth": ("o-", [("elastic, full depth" if d == str(one["elastic"]["layers"]) else f"elastic, depth {d}", row) for d, row in one["elastic"]["depth"].items()]),
            "elastic, early exit": ("s-", [(f"elastic, exit {float(s):.0%}", row) for s, row in one["elastic"]["exit"].items() if row]),
            "trained with this many layers": ("k^", [(f"{n}, full depth", of["depth"][str(of["layers"])]) for n, of in one.items() if n.startswith("fixed-")]),
        }  # fmt: skip
        for label, (style, points) in lines.items():
            grid[0][column].plot([row["mean_depth"] for _, row in points], [100 * row[metric] for _, row in points], style, ms=4, label=label)  # fmt: skip
            timed = sorted((1e3 * seconds[key]["seconds"] / count, 100 * row[metric]) for key, row in points if key in seconds)  # fmt: skip
            if timed:
                grid[1][column].plot(*zip(*timed, strict=True), style, ms=4, label=label)
        label_axes(grid[:, column], TITLES[name], metric)
    scores = {depth: 100 * row["spearman"] for depth, row in vectors["depth"].items()}
    grid[0][-1].plot([int(depth) for depth in scores], list(scores.values()), "o-", ms=4, label="fixed depth")
    grid[1][-1].plot([1e3 * vectors["seconds"][f"depth {d}"]["seconds"] / vectors["texts"] for d in scores], list(scores.values()), "o-", ms=4, label="fixed depth")  # fmt: skip
    label_axes(grid[:, -1], "Sentence vectors, STS-B", "Spearman")
    for axes in grid[:, -1]:
        axes.set_ylim(min(scores.values()) - 4, max(scores.values()) + 1)
    figure.savefig(target, dpi=110, metadata={"Software": None})
    return target


def label_axes(column: Any, title: str, metric: str) -> None:
    column[0].set_title(title, fontsize=9)
    for axes, label in zip(column, ("layers per text", "milliseconds per text"), strict=True):
        axes.set_xlabel(label)
        axes.set_ylabel(f"{metric}, %")
        axes.legend(fontsize=7)


TABLES = {
    "elastic-depths": by_depth, "elastic-exits": exits, "elastic-rules": rules, "elastic-seeds": seeds, "elastic-vectors": vectors,
    "elastic-training": ingredients, "elastic-others": beside,
}  # fmt: skip
