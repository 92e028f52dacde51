"""Tables of results/models.md, and the files that describe each built-in model: README.md and albertkit.json.

Facts are in `runs/builtin.json`, scores in `studies/results/builtin.json` and, for the Chinese model, in
`studies/results/small-zh.json` once it is recorded. Training steps are in the `albertkit.json` of each model.
"""

from __future__ import annotations

import json
from typing import Any

from albertkit.builtin import BUILTINS, DEFAULT, MODELS, describe, fingerprint
from albertkit.file_io import CHECKSUM, add_checksum, json_bytes
from tables import FOLDERS, ROOT, megabytes, percent, read, table, times

CHINESE = "small-zh"
VECTOR_SCORES = {  # task and metric → column
    ("STS-B dev", "384"): "STS-B dev, Spearman", ("SQuAD dev", "nDCG@10"): "SQuAD, nDCG@10", ("SQuAD dev", "recall@1"): "recall@1",
    ("CLINC150 small", "nearest"): "CLINC150, nearest text", ("CLINC150 small", "logistic"): "logistic regression", ("CLINC150 small", "clusters"): "clusters, V-measure",
}  # fmt: skip
DEPTH_SCORES = "STS-B dev, Spearman"  # choose the default depth
DEPTH_TOLERANCE = 0.002
SETTINGS = ("batch_size", "learning_rate", "optimizer", "lengths", "depths", "widths")
EXAMPLES = {
    "small": 'albert = Albert()\nprint(albert.similarity("a man plays the guitar", "someone makes music"))\nprint(albert.embed(["a text", "another"], depth=6, dim=128).shape)',
    "small-pretrained": 'print(Albert("small-pretrained").fill_mask("paris is the [MASK] of france.")[0][0].word)',
    "small-zh": 'albert = Albert("small-zh")\nprint(albert.similarity("我想退货", "怎么把东西退掉"))\nprint(albert.embed(["一段文本", "另一段"], depth=6, dim=128).shape)',
    "small-zh-pretrained": 'print(Albert("small-zh-pretrained").fill_mask("北京是中国的[MASK]。")[0][0].word)',
}  # fmt: skip


def facts(name: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / "runs" / "builtin.json").read_text(encoding="utf-8"))[name])


def metadata(name: str) -> dict[str, Any]:
    return dict(json.loads((MODELS / name / "albertkit.json").read_text(encoding="utf-8")))


def measured(name: str = DEFAULT) -> dict[str, Any]:
    """Recorded scores of a model; empty without any. Scores of other weights are an error."""
    file = {DEFAULT: "builtin.json", CHINESE: "small-zh.json"}.get(name)
    if file is None or not (FOLDERS[0] / file).is_file():
        return {}
    found = dict(read(file))
    if found["model"]["hash"] != fingerprint(MODELS / name):
        raise SystemExit(f"studies/results/{file} was measured with other weights than {MODELS / name}; measure again")
    return found


def size(name: str) -> int:
    """Bytes of the files that a model needs."""
    return sum((MODELS / name / file).stat().st_size for file in ("albertkit.json", *metadata(name)["files"]))


# Tables ------------------------------------------------------------------------------------------------------------


def overview() -> str:
    rows = []
    for name in BUILTINS:
        shape, told = describe(name).shape, facts(name)
        rows.append((f"`{name}`", told["language"], "; ".join(told["uses"]), f"{megabytes(size(name))} MB", f"{shape['layers']} × {shape['hidden']}", f"{shape['vocabulary']:,}", shape["length"], told["licence"]))  # fmt: skip
    return table(("model", "language", "made for", "size", "layers × width", "vocabulary", "longest input, tokens", "licence"), rows)  # fmt: skip


def vector_scores() -> str:
    tasks = measured()["tasks"]
    encoders = [kind for kind in tasks["STS-B dev"]["scores"] if kind == "float32, depth 12" or not kind.startswith("float32")]  # fmt: skip
    rows = ([kind, *(percent(tasks[task]["scores"][kind][metric]) for task, metric in VECTOR_SCORES)] for kind in encoders)  # fmt: skip
    return table(("encoder", *VECTOR_SCORES.values()), rows)


def widths() -> str:
    scores = measured()["tasks"]["STS-B dev"]["scores"]
    numbers = list(next(iter(scores.values())))
    kinds = [kind for kind in scores if not kind.startswith("float32")]
    return table(("STS-B dev", *(f"{n} numbers" for n in numbers)), ([kind, *(percent(scores[kind][n]) for n in numbers)] for kind in kinds))  # fmt: skip


def speed() -> str:
    found = measured()["speed"]
    rows = ((kind, f"{one['texts_per_second']:.0f}", times(one["ratio"])) for kind, one in found["encoders"].items())
    return table(("encoder", "texts/s", f"speedup over {found['base']}"), rows)


def masks() -> str:
    scores = measured()["tasks"]["masked words"]["scores"]
    return table(("`small-pretrained`", "first prediction is right, %", "among the first five, %"), ((kind, percent(one["first"]), percent(one["first five"])) for kind, one in scores.items()))  # fmt: skip


def held_out(name: str) -> str:
    names = {"mlm_loss": "MLM loss", "mlm_accuracy": "MLM accuracy", "sop_loss": "sentence-order loss", "sop_accuracy": "sentence-order accuracy"}  # fmt: skip
    scores = metadata(name)["metrics"].get("held-out", {})
    return table(("held-out documents", "score"), ((names.get(key, key), f"{value:.3f}") for key, value in scores.items()))  # fmt: skip


def chinese_scores() -> str:
    """One row per encoder, one column per task and metric."""
    tasks = measured(CHINESE).get("tasks", {})
    columns = [(task, metric) for task, one in tasks.items() for metric in next(iter(one["scores"].values()))]
    kinds = list(dict.fromkeys(kind for one in tasks.values() for kind in one["scores"]))
    rows = ([kind, *(percent(tasks[task]["scores"][kind][metric]) if kind in tasks[task]["scores"] else "–" for task, metric in columns)] for kind in kinds)  # fmt: skip
    return table(("encoder", *(f"{task}, {metric}" for task, metric in columns)), rows) if columns else ""


def steps(name: str) -> str:
    rows = []
    for step in metadata(name)["history"]:
        settings = [f"{key} {shown(step['settings'][key])}" for key in SETTINGS if step.get("settings", {}).get(key)]
        settings += [f"{key} {shown(step[key])}" for key in ("layout", "bits", "calibration") if key in step]
        rows.append((step["step"], *(shown(step.get(key, "–")) for key in ("steps", "tokens", "minutes")), ", ".join(settings)))  # fmt: skip
    return table(("step", "training steps", "tokens", "minutes", "settings"), rows)


def shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def shared_space() -> str:
    """Recall of translations and STS-B in the shared space, by depth."""
    found = json.loads((FOLDERS[0] / "shared-space.json").read_text(encoding="utf-8"))
    rows = []
    for depth in (3, 6, 12):
        scores = found[f"depth {depth}"]
        recalls = scores["recall@1 en→zh, zh→en, by width"]
        sts = [f"{scores[name]['shared']:.1f} ({scores[name]['own']:.1f})" for name in ("small", "small-zh")]
        rows.append((depth, *recalls["384"], *recalls["64"], *sts))
    heads = ("English → Chinese", "Chinese → English")
    return table(("depth", *heads, *(f"{head}, 64 numbers" for head in heads), "STS-B dev (own space)", "STS-B-zh dev (own space)"), rows)  # fmt: skip


def vector_types() -> str:
    """Scores of each type and width of vectors."""
    rows = read("vector-types.json")["rows"]
    cells = (
        (
            row["width"],
            row["type"].replace("+", ", reranked"),
            f"{row['bytes']:,}",
            *map(row.get, ("sts-b", "cisi", "npl")),
        )
        for row in rows
    )
    return table(("numbers", "type", "bytes", "STS-B dev", "CISI", "NPL"), cells)


def scripts() -> str:
    """Right texts among ten hits, by the script of texts and of queries, with and without folding."""
    columns = [f"{mode}, {fold}" for mode in ("keyword", "hybrid") for fold in ("without folding", "folded")]
    rows = ((row["texts"], row["queries"], *(percent(row[name][1]) for name in columns)) for row in read("scripts.json")["rows"])  # fmt: skip
    return table(("texts", "questions", *columns), rows)


TABLES = {
    "scripts": scripts, "shared-space": shared_space, "vector-types": vector_types,
    "models": overview, "model-vectors": vector_scores, "model-widths": widths, "model-speed": speed, "model-masks": masks,
    "small-zh-scores": chinese_scores,
    **{f"{name}-steps": lambda name=name: steps(name) for name in BUILTINS},
    **{f"{name}-held-out": lambda name=name: held_out(name) for name in BUILTINS if name not in (DEFAULT, CHINESE)},
}  # fmt: skip


# Files of the models -----------------------------------------------------------------------------------------------


def default_depth(scores: dict[str, float]) -> int:
    """The shallowest depth within 0.2 points of the best; `scores` are those of "depth 12", "depth 6" and so on."""
    best = max(scores.values())
    return min(int(name.split()[1]) for name, score in scores.items() if round(best - score, 4) <= DEPTH_TOLERANCE)


def meta_text(name: str) -> str:
    """albertkit.json with language, licence and data; for models of vectors also the best score of each task by depth,
    and the default depth, which follows from them.
    """
    data, told = metadata(name), facts(name)
    data["details"] |= {key: told[key] for key in ("language", "licence", "data")}
    for task, one in measured(name).get("tasks", {}).items():
        rows = {
            kind.removeprefix("int8, "): scores for kind, scores in one["scores"].items() if kind.startswith("int8")
        }
        if rows:
            first = next(iter(next(iter(rows.values()))))
            label = "Spearman" if first.isdigit() else first
            data["metrics"][f"{task}, {label}"] = {depth: round(scores[first], 4) for depth, scores in rows.items()}
    if scores := data["metrics"].get(DEPTH_SCORES):
        depth = default_depth(scores)
        data["depth"] = None if depth == describe(name).shape["layers"] else depth
    del data[CHECKSUM]
    return json_bytes(add_checksum(data)).decode()


def card(name: str) -> str:
    """README.md of a model's folder."""
    told, shape = facts(name), describe(name)
    scores = {
        "small": [("Quality", vector_scores), ("Shorter vectors", widths), ("Speed", speed)],
        "small-pretrained": [("Held-out documents", lambda: held_out(name)), ("Masked words", masks)],
        CHINESE: [("Quality", chinese_scores)],
        "small-zh-pretrained": [("Held-out documents", lambda: held_out(name))],
    }[name]
    sizes = ", ".join(f"{key} {value:,}" for key, value in shape.shape.items())
    parts = [
        f"---\nlibrary_name: albertkit\nlicense: {told['licence'].lower()}\nlanguage: {told['language_code']}\ntags: [albert, {told['tag']}]\n---\n",
        f"# {name}\n",
        f"{told['summary']} {megabytes(size(name))} MB in {shape.quantization}, vocabulary included ({sizes}).\n",
        f"```python\nfrom albertkit import Albert\n\n{EXAMPLES[name]}\n```\n",
        *(f"## {title}\n\n{made}" for title, made in ((title, make()) for title, make in scores) if made),
        "## Training\n\n" + "".join(f"- {source}\n" for source in told["data"]) + f"- vocabulary: {told['vocabulary']}\n",
        f"{told['recipe']} All settings are in `albertkit.json`.\n\n{steps(name)}",
        "## Limits\n\n" + "".join(f"- {limit}\n" for limit in told["limits"]),
    ]  # fmt: skip
    return "\n".join(parts)
