"""A distilled model without the positions that its texts never reached, so that longer texts are read in windows.
Of its metrics, only the cosines with the targets are kept.

python studies/small-zh/finish.py MODEL TARGET [POSITIONS]
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "src")]

from albertkit.artifact import read_artifact, write_artifact  # noqa: E402

TABLE = "encoder.embeddings.position.weight"
POSITIONS = 256


def cut_positions(source: Path, target: Path, positions: int = POSITIONS) -> None:
    """Write a copy that reads `positions` tokens at most."""
    model = read_artifact(source)
    weights = {**model.weights, TABLE: model.weights[TABLE][:positions]}
    config = model.config.replace(max_position_embeddings=positions)
    cosines = {name: value for name, value in model.metadata.metrics["vectors"].items() if name.startswith("cosine_")}
    metadata = dataclasses.replace(model.metadata, metrics={"vectors": cosines})
    finished = dataclasses.replace(model, weights=weights, config=config, metadata=metadata)
    write_artifact(finished, target, overwrite=True)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    cut_positions(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
