"""The cards of the built-in models, and the facts and scores in their albertkit.json: for `generate.py`.

In: `runs/builtin.json` (what people must be told), `studies/results/builtin.json` (what was measured), and the artifact
itself. Out: the text of docs/model-card.md, of README.md in the model's folder, and of its albertkit.json. No number is
written here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from albertkit.builtin import BUILTINS, DEFAULT, FINETUNE_MODEL, MODELS, describe, fingerprint
from albertkit.cli.console import format_megabytes

ROOT = Path(__file__).parent.parent
FOLDER = MODELS / DEFAULT
HEADINGS = {
    "STS-B dev": (
        "Similarity of two sentences",
        "STS-B dev: Spearman's correlation of the cosine with people's marks, for vectors cut to some widths.",
    ),
    "SQuAD dev": (
        "Which paragraph answers the question?",
        "Questions of SQuAD dev search their own paragraph among all paragraphs of the file.",
    ),
    "CLINC150 small": (
        "What does a user want?",
        "CLINC150, the small set: intents of held-out texts by the nearest training text and by logistic regression on the vectors (accuracy), and "
        "clusters found without labels (V-measure).",
    ),
    "masked words": ("Which word is missing?", "One word hidden in a sentence: how often it is guessed."),
}


def results() -> dict[str, Any]:
    """What was measured; measured on another model, it is an error."""
    found: dict[str, Any] = json.loads((ROOT / "studies" / "results" / "builtin.json").read_text(encoding="utf-8"))
    if found["model"]["hash"] != fingerprint(FOLDER):
        raise SystemExit(
            f"studies/results/builtin.json was measured on another model than {FOLDER}; run studies/builtin.py"
        )
    return found


def facts(name: str = DEFAULT) -> dict[str, Any]:
    """What people must be told."""
    found: dict[str, Any] = json.loads((ROOT / "runs" / "builtin.json").read_text(encoding="utf-8"))[name]
    return found


def start_meta() -> str:
    """albertkit.json of the pre-trained model, with language, licence and data."""
    data = json.loads((MODELS / FINETUNE_MODEL / "albertkit.json").read_text(encoding="utf-8"))
    data["details"] |= {key: facts(FINETUNE_MODEL)[key] for key in ("language", "licence", "data")}
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def start_readme() -> str:
    """README.md of the pre-trained model."""
    told, data = (
        facts(FINETUNE_MODEL),
        json.loads((MODELS / FINETUNE_MODEL / "albertkit.json").read_text(encoding="utf-8")),
    )
    scores = ", ".join(f"{name.replace('_', ' ')} {value:.3f}" for name, value in data["metrics"]["held-out"].items())
    return "\n".join([
        *front(told, "fill-mask"), f"# The built-in model `{FINETUNE_MODEL}`", "",
        f"{BUILTINS[FINETUNE_MODEL].capitalize()}. Licence {told['licence']}; vocabulary: {told['vocabulary']}.", "",
        f"On held-out rows (n-grams of whole words hidden): {scores}.", "",
        *made(told, FINETUNE_MODEL), "## Limits", "", *(f"- {limit}" for limit in told["limits"]), "",
    ])  # fmt: skip


def front(told: dict[str, Any], *tags: str) -> list[str]:
    """What model hubs read."""
    return ["---", "library_name: albertkit", f"license: {told['licence'].lower()}", f"language: {told['language_code']}",
            f"tags: [albert, {', '.join(tags)}]", "---"]  # fmt: skip


def meta_text() -> str:
    """albertkit.json with language, licence and data, and one score of the int8 model for each task, at each depth."""
    data = json.loads((FOLDER / "albertkit.json").read_text(encoding="utf-8"))
    told = facts()
    data["details"] |= {key: told[key] for key in ("language", "licence", "data")}
    for name, task in results()["tasks"].items():
        rows = {kind.removeprefix("int8, "): row for kind, row in task["scores"].items() if kind.startswith("int8")}
        best = next(iter(next(iter(rows.values()))))  # the first score is the one to quote
        label = "Spearman" if best.isdigit() else best
        data["metrics"][f"{name}, {label}"] = {depth: round(row[best], 4) for depth, row in rows.items()}
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def readme() -> str:
    """README.md of the folder."""
    return "\n".join([*front(facts(), "sentence-similarity"), *body()])


def page() -> str:
    """docs/model-card.md."""
    return "\n".join(["<!-- Written by `make docs`; do not edit. -->", "", *body()])


def body() -> list[str]:
    told, found = facts(), results()
    shown = describe(DEFAULT)
    shape = ", ".join(f"{name} {value:,}" for name, value in shown.shape.items())
    lines = [
        f"# The built-in model `{DEFAULT}`",
        "",
        f"An {told['language']} ALBERT of {format_megabytes(model_bytes())}, vocabulary included, in {shown.quantization}: one layer, applied as often as you like. Shape: {shape}. "
        f"Licence {told['licence']}; vocabulary: {told['vocabulary']}.",
        "",
        "It is made for " + "; ".join(told["uses"]) + ".",
        "",
        "```python",
        "from albertkit import Albert",
        "",
        "albert = Albert()  # offline, without torch",
        'print(albert.similarity("a man plays the guitar", "someone makes music"))',
        'print(albert.embed(["a text", "another"], depth=6, dim=128).shape)  # fewer layers, fewer numbers',
        f'print(albert.fill_mask("paris is the [MASK] of france.")[0][0].word)  # asks {FINETUNE_MODEL}',
        "```",
        "",
        "## Scores",
        "",
    ]
    if found["limit"]:
        lines += [f"A quick look at {found['limit']:,} examples of each task, not the whole of it.", ""]
    for name, task in found["tasks"].items():
        lines += score_table(name, task)
    lines += speed_table(found["speed"]) if "speed" in found else []
    lines += [*commands(found), *made(told), "## Limits", "", *(f"- {limit}" for limit in told["limits"]), ""]
    return lines


def model_bytes() -> int:
    """What `Albert()` needs: the files with a hash, and albertkit.json."""
    data = json.loads((FOLDER / "albertkit.json").read_text(encoding="utf-8"))
    return sum((FOLDER / name).stat().st_size for name in ("albertkit.json", *data["files"]))


def score_table(name: str, task: dict[str, Any]) -> list[str]:
    """Encoders down, scores across."""
    title, about_it = HEADINGS[name]
    columns = list(next(iter(task["scores"].values())))
    lines = [f"### {title}", "", f"{about_it} {task['examples']:,} examples.", ""]
    lines += ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for kind, row in task["scores"].items():
        lines.append(f"| {kind} | " + " | ".join(f"{100 * row[c]:.1f}" if c in row else "" for c in columns) + " |")
    return [*lines, ""]


def speed_table(speed: dict[str, Any]) -> list[str]:
    """Texts a second on one machine."""
    at = speed["machine"]
    lines = ["### How fast?", "", f"{speed['texts']:,} sentences and paragraphs on {at['threads']} threads of {at['processor']} ({', '.join(at['instructions'])}), "
             f"{at['date']}, in {speed['rounds']} interleaved rounds. The peer runs in onnxruntime, in batches of 32 sorted by length.", "",
             f"| | texts/s | times {speed['base']} |", "|---|---|---|"]  # fmt: skip
    for kind, row in speed["encoders"].items():
        lines.append(f"| {kind} | {row['texts_per_second']:,.1f} | {row['ratio']:.2f} |")
    return [*lines, ""]


def commands(found: dict[str, Any]) -> list[str]:
    """How to measure it again."""
    files = " ".join(f"--{task['option']} {task.get('file', 'TEXTS')}" for task in found["tasks"].values())
    peers = {kind for task in found["tasks"].values() for kind in task["scores"] if ", depth " not in kind}
    named = " ".join(f"--peer {peer}=FOLDER" for peer in sorted(peers))
    libraries = ", ".join(f"{name} {version}" for name, version in found["libraries"].items())
    return [
        f"Measured on {found['machine']['processor']}, {found['machine']['date']} ({libraries}), by:",
        "",
        "```bash",
        f"python studies/builtin.py --float FOLDER {files} {named}".rstrip(),
        *(["python studies/builtin.py --speed " + f"--peer {found['speed']['base'].split(',')[0]}=FOLDER"] if "speed" in found else []),
        "albertkit models",
        "```",
        "",
        f"The hash of the measured files is `{found['model']['hash']}`; a test compares it with the files that are shipped.",
        "",
    ]  # fmt: skip


def made(told: dict[str, Any], name: str = DEFAULT) -> list[str]:
    """Data and training, from the steps that the artifact remembers."""
    steps = json.loads((MODELS / name / "albertkit.json").read_text(encoding="utf-8"))["history"]
    lines = ["## How it was made", "", "Data:", "", *(f"- {source}" for source in told["data"]), ""]
    lines += ["`runs/small.sh` is the whole recipe. Steps and settings, as the artifact remembers them:", ""]
    for step in steps:
        rest = {key: value for key, value in step.items() if key not in ("step", "settings", "corpus")}
        lines.append(f"- **{step['step']}**: " + ", ".join(f"{key} {told_as(value)}" for key, value in rest.items()))
        for part in ("settings", "corpus"):
            if part in step:
                inner = ", ".join(f"{key} {told_as(value)}" for key, value in step[part].items())
                lines.append(f"  - {part}: {inner}")
    return [*lines, ""]


def told_as(value: Any) -> str:
    """A setting in words."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
