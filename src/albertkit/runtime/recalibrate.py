"""`calibrate`: held-out texts to the limits behind `early_exit="99%"`, written into a model's `albertkit.json`. No torch.

In: a model folder, and examples of its task, or texts for a model that gives vectors. Out: `ExitCalibration`. `elastic` does the same at the end of its training; do it again after
quantising or pruning, or for texts of another kind. Before this file: `exits.py` reads every depth, `agreement.py` finds the limits.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from albertkit import builtin
from albertkit.albert import Albert, joined
from albertkit.artifact import META_FILE, model_folder, read_json
from albertkit.errors import AlbertkitError
from albertkit.runtime.calibration import FEWEST, ExitCalibration, calibrated, fit
from albertkit.runtime.early_exit import available_exit_depths, by_depth
from albertkit.runtime.predict import features_of, read_heads
from albertkit.tasks import TASKS
from albertkit.tasks.confidence import MIN_COSINE, cosines


def calibrate(model: Path | str, examples: Sequence[Any], exit_depths: Sequence[int] | None = None) -> ExitCalibration:
    """Find when texts may leave, and write it into the model's folder; examples are texts for a model that gives vectors.

    exit_depths: depths at which they may; default those the model has been looked at before, or every one.
    """
    folder = model_folder(model)
    if folder.parent == builtin.MODELS:
        raise AlbertkitError(
            f"{folder.name} comes with the package and is not changed; copy its folder, {folder}, and calibrate the copy"
        )
    if not (folder / META_FILE).is_file():
        raise AlbertkitError(f"{folder} holds no {META_FILE}; run  albertkit convert {folder} OUT  first")
    albert = Albert(folder)
    if albert.config.options.static:
        raise AlbertkitError(f"{folder} is a static model, which has no layers to leave")
    full = albert.depth
    chosen = (
        sorted(set(exit_depths)) if exit_depths else [look for look in available_exit_depths(albert) if look < full]
    )
    if not chosen or not 1 <= chosen[0] <= chosen[-1] < full:
        raise AlbertkitError(f"exit_depths are {exit_depths}; choose depths from 1 to {full - 1}, before the full one")
    task = albert.meta.task
    found = of_task(albert, examples, chosen) if task in TASKS else of_vectors(albert, examples, chosen)
    if found is None:
        raise AlbertkitError(
            f"{len(examples)} texts are too few to promise anything; give {FEWEST} or more (about 400 for 99 %)"
        )
    data = read_json(folder / META_FILE)
    data["details"] = {**data.get("details", {}), "early_exit": found.to_dict()}
    fresh = folder / f".{META_FILE}.part"
    fresh.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(fresh, folder / META_FILE)  # noqa: PTH105  whole or not at all
    return found


def of_task(albert: Albert, examples: Sequence[Any], exit_depths: Sequence[int]) -> ExitCalibration | None:
    """For results of a task."""
    features = features_of(albert, examples, albert.meta.task)
    ids, segments = [f.ids for f in features], [f.segments for f in features]
    scores = by_depth(albert, ids, segments, [*exit_depths, albert.depth], lambda h, n: read_heads(albert, h, n))
    made = calibrated(albert.task, scores, features, examples)
    return None if made is None else ExitCalibration.from_dict(made)


def of_vectors(albert: Albert, texts: Sequence[str], exit_depths: Sequence[int]) -> ExitCalibration | None:
    """For sentence vectors."""
    options = albert.embed_options(normalize=False)
    pieces, owners = albert.pieces([options.prompt + text for text in texts], options.long_texts)
    if len(texts) < FEWEST:
        return None
    read = by_depth(
        albert, pieces, None, [*exit_depths, albert.depth], lambda h, n: list(albert._pool(h, n, options.pooling))
    )
    lengths = [len(piece) for piece in pieces]
    vectors = {d: np.stack(list(joined(np.stack(rows), lengths, owners, options))) for d, rows in read.items()}
    last = vectors[albert.depth]
    uncertainty, agrees = [np.full(len(texts), np.inf)], [cosines(vectors[exit_depths[0]], last) >= MIN_COSINE]
    for before, look in pairwise(exit_depths):
        uncertainty.append(1 - cosines(vectors[look], vectors[before]))
        agrees.append(cosines(vectors[look], last) >= MIN_COSINE)
    about = f"the cosine with the full depth's vector is at least {MIN_COSINE}"
    return fit(np.stack(uncertainty, 1), np.stack(agrees, 1), exit_depths, albert.depth, about)
