"""The shared space of `small` and `small-zh`: fitted on sentence pairs, measured on pairs that it did not see.

    python studies/shared_space.py PAIRS [--data DATA] [--write]

PAIRS is a table of English and Chinese sentences (Tatoeba's cmn.txt, CC BY). 1,000 pairs whose sentences occur only
once are held out. The means of both languages and the rotation of the Chinese vectors onto the English ones
(orthogonal Procrustes) come from all others, at three depths. `SHARES` of the means are subtracted. Without --write, the map of the package is measured.

Measured, in percent: how often the nearest of 1,000 held-out translations is the right one, in both directions, and at
widths 64 and 128. With --data, which contains sts-b and zh-pairs: Spearman on STS-B dev in the models' own space and in
the shared one.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / "src"), str(Path(__file__).parent / "small-zh")]

from evaluate import spearman  # noqa: E402

from albertkit import Albert  # noqa: E402
from albertkit.runtime.shared_map import FILE, SharedMap, read_shared_maps, shared_map  # noqa: E402

HELD_OUT = 1_000
DEPTHS = (3, 6, 12)
SHARES = (
    1.0,
    0.5,
)  # English, Chinese; subtracting all of the Chinese mean costs 0.75 points of STS-B-zh, half of it 0.2
RESULT = Path(__file__).parent / "results" / "shared-space.json"


def split(pairs: list[tuple[str, str]]) -> tuple[list[int], list[int]]:
    """Places of training and held-out pairs; no sentence is in both."""
    seen, held_out, training = set[str](), list[int](), list[int]()
    for place in np.random.default_rng(0).permutation(len(pairs)).tolist():
        if len(held_out) < HELD_OUT and not seen & set(pairs[place]):
            held_out.append(place)
            seen |= set(pairs[place])
        else:
            training.append(place)
    return [place for place in training if not seen & set(pairs[place])], held_out


def fit(english: list[np.ndarray], chinese: list[np.ndarray]) -> tuple[SharedMap, SharedMap]:
    """From the vectors of the same pairs at each depth."""
    means = [
        share * np.mean([vectors.mean(0) for vectors in side], 0)
        for share, side in zip(SHARES, (english, chinese), strict=True)
    ]
    cross = sum((z - means[1]).T @ (e - means[0]) for e, z in zip(english, chinese, strict=True))
    left, _, right = np.linalg.svd(np.asarray(cross, np.float64))
    return SharedMap(means[0], None), SharedMap(means[1], (left @ right).astype(np.float32))


def unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def recall(first: np.ndarray, second: np.ndarray) -> list[float]:
    """How often the nearest is the translation, in both directions."""
    scores, right = unit(first) @ unit(second).T, np.arange(len(first))
    return [round(100 * float((scores.argmax(axis) == right).mean()), 1) for axis in (1, 0)]


def sts(data: Path, albert: Albert, depth: int, is_chinese: bool) -> dict[str, float]:
    """Spearman of cosines with the scores of STS-B dev, in both spaces."""
    file = data / ("zh-pairs/stsb-zh/dev.txt" if is_chinese else "sts-b/dev.tsv")
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()[0 if is_chinese else 1 :]]
    rows = [row[-3:] for row in rows if len(row) >= 3]
    labels, correlations = np.array([float(row[2]) for row in rows]), {}
    for space in ("own", "shared"):
        first, second = (albert.embed([row[i] for row in rows], depth=depth, space=space) for i in (0, 1))
        correlations[space] = round(100 * spearman((first * second).sum(1), labels), 2)
    return correlations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--write", action="store_true", help="fit and write the file of the package")
    args = parser.parse_args()
    rows = [line.split("\t") for line in args.pairs.read_text(encoding="utf-8").splitlines()]
    pairs = [(row[0], row[1]) for row in rows if len(row) >= 2]
    training, held_out = split(pairs)
    models = {name: Albert(name) for name in ("small", "small-zh")}
    vectors = {
        (name, depth): albert.embed([pair[side] for pair in pairs], depth=depth)
        for side, (name, albert) in enumerate(models.items())
        for depth in DEPTHS
    }
    identities = {name: albert.name.partition("-")[0] for name, albert in models.items()}
    if args.write:
        from safetensors.numpy import save_file

        maps = fit(*([vectors[name, depth][training] for depth in DEPTHS] for name in models))
        arrays = {"small.mean": maps[0].mean, "small-zh.mean": maps[1].mean, "small-zh.rotation": maps[1].rotation}
        save_file({name: np.asarray(array, np.float16) for name, array in arrays.items()}, FILE, metadata=identities)
        FILE.chmod(0o644)
        read_shared_maps.cache_clear()
    own = {name: shared_map(identity) for name, identity in identities.items()}
    result: dict[str, object] = {"pairs": len(training), "held_out": len(held_out)}
    for depth in DEPTHS:
        english, chinese = (own[name].apply(vectors[name, depth][held_out]) for name in models)
        widths = {width: recall(english[:, :width], chinese[:, :width]) for width in (64, 128, 384)}
        result[f"depth {depth}"] = {"recall@1 en→zh, zh→en, by width": widths}
        if args.data:
            result[f"depth {depth}"] |= {  # type: ignore[operator]
                name: sts(args.data, albert, depth, name == "small-zh") for name, albert in models.items()
            }
    RESULT.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
