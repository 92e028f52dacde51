"""Write the golden results: `python -m tests.golden.record`, or for some areas `python -m tests.golden.record tasks
http`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

from tests.golden import comparison

AREAS = ("vectors", "tasks", "training", "compress", "export", "http")


def main(areas: list[str]) -> None:
    """Compute and store the results of some areas, or of all."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    for area in areas or AREAS:
        with comparison.one_thread():
            found = importlib.import_module(f"tests.golden.test_{area}").results()
        comparison.record(area, found)
        size = (comparison.DATA / f"{area}.npz").stat().st_size
        print(f"{area}: {len(found)} results, {size:,} bytes")
    comparison.ENVIRONMENT.write_text(json.dumps(comparison.environment(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
