"""The measured verdict on a claim, for docs/understand/documents.md and its Chinese twin.

In: the runs and speeds that `studies/ablation.py` recorded, and the claims in `studies/claims.py`. Out: a few
words for the last column of the tables, or nothing where nothing was measured.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

STUDIES = Path(__file__).resolve().parent.parent / "studies"
LINES, SPEEDS = STUDIES / "results" / "ablation.jsonl", STUDIES / "results" / "ablation-speed.json"
CHINESE = {
    "holds: ": "成立：",
    "partly: ": "部分成立：",
    "cannot tell: ": "无法判断：",
    "does not hold: ": "不成立：",
    "not seen: ": "未见：",
    "not measured: ": "未测：",
    " (one seed)": "（只有一个随机种子）",
    "not measured": "未测",
    "smaller": "参数更少",
    "fewer": "运算更少",
    "trains faster": "训练更快",
    "faster": "更快",
    "better": "质量更好",
    "no worse": "质量不降",
    "worse": "质量下降",
    "; ": "；",
    ", ": "、",
}


@cache
def judge() -> Any:
    """The module with the claims."""
    spec = importlib.util.spec_from_file_location("claims", STUDIES / "claims.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["claims"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def verdict(variant: str, baseline: str = "canonical") -> str:
    """Which parts of a claim hold, in the comparison with the most runs."""
    lines = [json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()] if LINES.is_file() else []
    recipes: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        recipes[repr(sorted(line["recipe"].items()))].append(line)
    largest = max(recipes.values(), key=len, default=[])
    if not {variant, baseline} <= {line["variant"] for line in largest}:
        return ""
    page = judge()
    (claim,) = (c for c in page.CLAIMS if (c.variant, c.baseline) == (variant, baseline))
    kept = json.loads(SPEEDS.read_text(encoding="utf-8")) if SPEEDS.is_file() else []
    speeds = page.speeds_of(largest[0]["recipe"], kept)
    return str(page.verdict(claim, largest, speeds))


def measured(variant: str, baseline: str = "canonical") -> str:
    """In English."""
    found = verdict(variant, baseline)
    return f" · [measured](../results/ideas.md): {found}" if found else ""


def tested(variant: str, baseline: str = "canonical") -> str:
    """In Chinese."""
    found = verdict(variant, baseline)
    for english, chinese in CHINESE.items():
        found = found.replace(english, chinese)
    return f" · [实测](../../results/ideas.md)：{found}" if found else ""
