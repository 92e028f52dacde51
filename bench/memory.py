"""The memory of a process that embeds a million short texts from a generator with a tiny model.

python bench/memory.py [--texts 1000000]            # measure, keep bench/results/memory.json, print the curve
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "bench" / "results" / "memory.json"
TEXTS = 1_000_000


def texts(count: int) -> Iterator[str]:
    for i in range(count):
        yield f"text number {i} says that {i % 97} and {i % 89} are not {i % 83}"


def rss_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=TEXTS)
    wanted = parser.parse_args().texts
    import torch

    from albertkit import Albert, AlbertConfig, Tokenizer, write_artifact
    from albertkit.artifact import Artifact
    from albertkit.model import AlbertModel

    torch.manual_seed(0)
    config = AlbertConfig(
        hidden_size=32, num_attention_heads=2, intermediate_size=64, num_hidden_layers=2, embedding_size=16
    )
    tokenizer = Tokenizer.from_spiece(ROOT / "src" / "albertkit" / "models" / "small" / "spiece.model")
    curve = []
    with tempfile.TemporaryDirectory() as folder:
        write_artifact(Artifact(config, AlbertModel(config).weights(), tokenizer), Path(folder) / "m")
        albert = Albert(Path(folder) / "m")
        start = time.perf_counter()
        for count, _ in enumerate(albert.embed_iter(texts(wanted)), 1):
            if count % 50_000 == 0:
                curve.append(
                    {"texts": count, "rss_mb": round(rss_mb(), 1), "seconds": round(time.perf_counter() - start, 1)}
                )
                print(curve[-1], flush=True)
    RESULT.write_text(json.dumps({"python": sys.version.split()[0], "curve": curve}, indent=2) + "\n")


if __name__ == "__main__":
    main()
