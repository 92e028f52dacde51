"""Tables of results/compression.md."""

from __future__ import annotations

from typing import Any

from tables import megabytes, percent, read, table, times
from tables.tasks import TITLES, in_order, metric_name

TRAINED = {
    "whole": "fine-tuned, float32", "pruned": "pruned (FFN 1/2, heads 2/3), not trained", "recovered": "pruned, then trained", "plain-4bit": "4-bit, not trained",
    "aware-4bit": "4-bit, trained for it", "alone": "`mini`, from labels alone", "taught": "`mini`, distilled (logits, hidden)",
}  # fmt: skip
SAME_WORK = (("pruned", "recovered"), ("plain-4bit", "aware-4bit"), ("alone", "taught"))


def untrained() -> str:
    found = read("compression.json")
    rows = []
    for name, one in found["quality"].items():
        speed = found["speed"][name]
        cosine = "–" if one["cosine"] is None else f"{one['cosine']:.3f}"
        rows.append((name, f"{one['sts_b_dev']:.1f}", cosine, megabytes(one["bytes"]), f"{speed['texts_per_second']:,.0f}", f"{speed['one_text_ms']:.2f}"))  # fmt: skip
    return table(("variant of `small`", "STS-B dev", "cosine with float32", "MB", "texts/s", "one text, ms"), rows)


def trained() -> str:
    found: dict[str, dict[str, Any]] = {name: dict(one) for name, one in read("compression.json")["trained"]["variants"].items()}  # fmt: skip
    for names in SAME_WORK:  # variants that do the same work share the better time
        for key, best in (("texts_per_second", max), ("one_text_ms", min)):
            value = best(found[name][key] for name in names)
            for name in names:
                found[name][key] = value
    whole = found["whole"]["one_text_ms"]
    rows = (
        (TRAINED[name], percent(one["score"]), f"{one['parameters'] / 1e6:.2f} M", megabytes(one["bytes"]), f"{one['texts_per_second']:,.0f}", f"{one['one_text_ms']:.2f}", times(whole / one["one_text_ms"]))
        for name, one in found.items()
    )  # fmt: skip
    return table(("variant", "SST-2 dev accuracy", "parameters", "MB", "texts/s", "one text, ms", "speedup"), rows)


def together() -> str:
    found = read("together.json")
    rows = []
    for name, one in found["rows"].items():
        depth = f" (mean depth {found['mean_depth'][name]:.1f})" if name in found["mean_depth"] else ""
        rows.append((name + depth, f"{one['texts_per_second']:.1f}", times(one["times_default"]), times(one["times_best"]), f"{one['sts_b_dev']:.2f}", megabytes(one["bytes"])))  # fmt: skip
    return table(("program", "texts/s", "speedup over batches of 32", f"over batches of {found['best_batch']}", "STS-B dev", "MB"), rows)  # fmt: skip


def bits() -> str:
    rows = []
    for name, one in in_order(read("precision.json")["sets"]):
        metric = one["metric"]
        scores = [percent(one["metrics"][side][metric], 2) for side in ("runtime", "int8", "4-bit")]
        rows.append((TITLES[name], metric_name(one["task"], metric, one["metrics"]["torch"]), *scores, *(f"{one['points'][side]:+.2f}" for side in ("int8", "4-bit"))))  # fmt: skip
    return table(("data", "metric", "float32", "int8", "4-bit", "int8, points", "4-bit, points"), rows)


def exports() -> str:
    rows = []
    for name, one in read("compression.json")["export"].items():
        if not name.endswith(", loop"):  # an option that was removed
            cosines = [f"{one[f'{runtime}_least_cosine']:.6f}" for runtime in ("onnxruntime", "openvino")]
            rows.append((name, megabytes(one["bytes"], 2), percent(one["over_weights"], 2) + " %", *cosines))
    return table(("exported file", "MB", "overhead over the weights", "onnxruntime, least cosine", "OpenVINO, least cosine"), rows)  # fmt: skip


TABLES = {"compression": untrained, "compression-trained": trained, "together": together, "bits": bits, "exports": exports}  # fmt: skip
