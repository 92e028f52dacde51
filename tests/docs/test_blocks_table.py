"""The table of blocks: runs are compared at equal tokens, also those that did not end."""

from __future__ import annotations

import json

from tests.conftest import program

generate = program("docs/generate")


def run(name: str, size: float, accuracies: list[float], **others: object) -> dict[str, object]:
    curve = [{"tokens": 50_069_504 * n, "mlm_accuracy": a, "mlm_loss": 5 - a} for n, a in enumerate(accuracies, 1)]
    cost = {"int8_bytes": size * 1e6, "operations_per_token": 45e6}
    return {"variant": name, "seed": 0, "recipe": {"shape": "small"}, **cost, **curve[-1], "curve": curve, **others}


def test_a_run_that_did_not_end_is_compared_at_equal_tokens(tmp_path, monkeypatch):
    """The last line of a run counts, a failed one is no row, and the smaller models come first."""
    lines = [
        run("large", 8.5, [0.2, 0.3], unfinished=True),
        run("large", 8.5, [0.2, 0.3, 0.32, 0.34], unfinished=True),
        run("relative", 6.0, [0.1, 0.25, 0.3, 0.33, 0.35, 0.36]),
        {"variant": "diverged", "seed": 0, "recipe": {"shape": "small"}, "failed": "not a number"},
    ]
    (tmp_path / "blocks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    monkeypatch.setattr(generate.ideas, "FOLDERS", (tmp_path,))
    assert generate.ideas.blocks().splitlines()[2:] == [
        "| relative | 6.0 | 45.0 | 25.0 | 33.0 | 36.0 | 4.640 |",
        "| large | 8.5 | 45.0 | 30.0 | 34.0 | – | – |",
    ]
