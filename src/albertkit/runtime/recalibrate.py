"""`calibrate`: held-out texts to the limits behind `exit="99%"`, written into a model's `albertkit.json`. No torch.

In: a model folder, and examples of its task, or texts for a model that gives vectors. Out: `Exits`. `elastic` does the same at the end of its training; do it again after
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
from albertkit.runtime.calibration import FEWEST, Exits, calibrated, fit
from albertkit.runtime.early_exit import by_depth, looks_of
from albertkit.runtime.predict import features_of, read_heads
from albertkit.tasks.confidence import CLOSE, cosines
from albertkit.tasks.make import TASKS


def calibrate(model: Path | str, examples: Sequence[Any], looks: Sequence[int] | None = None) -> Exits:
    """Find when texts may leave, and write it into the model's folder; examples are texts for a model that gives vectors.

    looks: depths at which they may; default those the model has been looked at before, or every one.
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
    chosen = sorted(set(looks)) if looks else [look for look in looks_of(albert) if look < full]
    if not chosen or not 1 <= chosen[0] <= chosen[-1] < full:
        raise AlbertkitError(f"looks are {looks}; choose depths from 1 to {full - 1}, before the full one")
    task = albert.meta.task
    found = of_task(albert, examples, chosen) if task in TASKS else of_vectors(albert, examples, chosen)
    if found is None:
        raise AlbertkitError(
            f"{len(examples)} texts are too few to promise anything; give {FEWEST} or more (about 400 for 99 %)"
        )
    data = read_json(folder / META_FILE)
    data["details"] = {**data.get("details", {}), "exit": found.to_dict()}
    fresh = folder / f".{META_FILE}.part"
    fresh.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(fresh, folder / META_FILE)  # noqa: PTH105  whole or not at all
    return found


def of_task(albert: Albert, examples: Sequence[Any], looks: Sequence[int]) -> Exits | None:
    """For results of a task."""
    features = features_of(albert, examples, albert.meta.task)
    ids, segments = [f.ids for f in features], [f.segments for f in features]
    scores = by_depth(albert, ids, segments, [*looks, albert.depth], lambda h, n: read_heads(albert, h, n))
    made = calibrated(albert.task, scores, features, examples)
    return None if made is None else Exits.from_dict(made)


def of_vectors(albert: Albert, texts: Sequence[str], looks: Sequence[int]) -> Exits | None:
    """For sentence vectors."""
    recipe = albert.recipe(normalise=False)
    pieces, owners = albert.pieces([recipe.before + text for text in texts], recipe.long)
    if len(texts) < FEWEST:
        return None
    read = by_depth(albert, pieces, None, [*looks, albert.depth], lambda h, n: list(albert._pool(h, n, recipe.pooling)))
    lengths = [len(piece) for piece in pieces]
    vectors = {d: np.stack(list(joined(np.stack(rows), lengths, owners, recipe))) for d, rows in read.items()}
    last = vectors[albert.depth]
    doubts, agrees = [np.full(len(texts), np.inf)], [cosines(vectors[looks[0]], last) >= CLOSE]
    for before, look in pairwise(looks):
        doubts.append(1 - cosines(vectors[look], vectors[before]))
        agrees.append(cosines(vectors[look], last) >= CLOSE)
    about = f"the cosine with the full depth's vector is at least {CLOSE}"
    return fit(np.stack(doubts, 1), np.stack(agrees, 1), looks, albert.depth, about)
