"""Evaluation of elastic depth: quality and time at each depth before and after `elastic`, and with early exit. It is
the source of docs/results/elastic.md.

    python studies/elastic.py train DATA --models RUNS [--start MODEL] [--only sst-2,mrpc,conll2003] [--fixed 3,4,6]
    [--examples N] [--epochs E] [--device auto] [--jobs 1]
                            [--ways plain,elastic,…] [--times 1] [--at-once] [--texts FOLDER [--teachers RUNS]]
    python studies/elastic.py ingredients --models RUNS
    python studies/elastic.py measure DATA --models RUNS [--more RUNS1,RUNS2] [--texts FOLDER] [--only sst-2] [--bits 8]
    [--repeats 5] [--threads 2]

`train` fine-tunes for each data set and writes RUNS/SET/plain (full depth only), RUNS/SET/elastic (elastic training of
plain), RUNS/SET/fixed-4 (fine-tuned with four layers) and so on. Plain and fixed variants train for as many epochs as
plain and elastic together. One training example in ten selects checkpoints. `--ways` names further variants of the
loss (`WAYS`, or options such as shallow_weight=3+batch_size=64), each in a folder of its name. `ingredients` records
the held-out score of each variant at every depth. `--times 3` trains three times as many epochs in the second half.
FOLDER/SET.txt contains unlabelled texts, which RUNS/SET/first labels for all variants except plain. With --at-once there
is no first half: every variant starts from the pre-trained model and trains for all epochs. The same holds with
--teachers, whose SET/plain labels the texts. A variant is measured if its folder is named elastic, or RUNS/SET/elastic
links to it. Finished variants are skipped, and the same command resumes interrupted ones. `carry.py` transfers models
between machines.

`measure` needs no torch. Held-out examples (dev) are split in two halves; thresholds from one half are tested on the
other, in both directions. --more names RUNS of other seeds, for which only quality is measured. With --texts, held-out
examples with a sentence in the training texts are excluded. Times are of the runtime on all held-out texts, with the
variants interleaved, as the best of `--repeats`. With --sts (a file of pairs), the built-in model's vectors are also
measured. Results are written to studies/results/elastic.json; earlier results of other data sets are kept.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "bench", "studies")]

from inference import machine, versions  # noqa: E402
from jobs import run_jobs  # noqa: E402
from tasksets import SETS, Set, load  # noqa: E402

import tasks  # noqa: E402
from albertkit.albert import Albert  # noqa: E402
from albertkit.runtime.calibration import calibrate_scores, fit_calibration  # noqa: E402
from albertkit.runtime.early_exit import (  # noqa: E402
    EarlyExitRunner,
    ExitCalibration,
    ExitRule,
    ExitStats,
    agreement_rule,
    available_exit_depths,
    read_depths,
)
from albertkit.runtime.predict import predict, read_heads, task_features  # noqa: E402
from albertkit.tasks.confidence import MIN_COSINE, UncertaintyEstimator, cosines  # noqa: E402

RESULT = Path(__file__).parent / "results" / "elastic.json"
INGREDIENTS = RESULT.with_name("elastic-ingredients.json")
SHARES = (0.9, 0.95, 0.98, 0.99)
TIMED = (2, 3, 4, 6, 8)
ENTROPIES, PATIENCES = (0.05, 0.2, 0.4), (1, 2, 3)
WAYS: dict[str, dict[str, Any]] = {  # how the second half is trained, for `ElasticSettings`
    "plain": {"elastic": False},
    "elastic": {},
    "answers": {"distill_weight": 0.0},
    "taught": {"distill_weight": 1.0},
    "drawn": {"sampled_depths": 3},
    "consistent": {"consistency_weight": 0.1},
}


def parse_way(way: str) -> dict[str, Any]:
    """What a way sets of `ElasticSettings`: one of `WAYS`, or written out."""
    if way in WAYS:
        return WAYS[way]
    parts = [part.partition("=") for part in way.split("+")]
    if any(not value for _, _, value in parts):
        raise SystemExit(
            f"there is no way {way!r}; choose from {', '.join(WAYS)}, or write options as in shallow_weight=3+batch_size=64"
        )
    return {name: json.loads(value) for name, _, value in parts}


# Training --------------------------------------------------------------------------------------------------------


class TrainingSetup:
    """What all models of one data set have in common: examples, the model to start from, options, epochs."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        from albertkit.builtin import DEFAULT, PRETRAINED, resolve
        from albertkit.interop.convert import open_model
        from albertkit.tasks.dataset import split_examples
        from albertkit.train.presets import preset_epochs

        if tasks.missing_libraries():  # checkpoints are then chosen by plain metrics
            tasks.use_simple_metrics()
        self.set, self.out = SETS[name], args.models / name
        self.examples = split_examples(load(self.set, args.data, args.examples)["train"])
        self.start = open_model(resolve(args.start, PRETRAINED[DEFAULT]))
        options = {k: v for k, v in self.set.options.items() if k != "epochs"}
        self.times = args.times
        self.options = options | {"device": args.device, "seed": args.seed}
        self.epochs = args.epochs or preset_epochs(len(self.examples[0])) / 2

    def finetune(self, place: str, start: Any, epochs: float) -> None:
        """The full depth of `start` alone."""
        from albertkit.train.finetune import finetune_examples
        from albertkit.train.train_settings import FinetuneSettings

        options = FinetuneSettings(**self.options, epochs=epochs)
        finetune_examples(self.set.task, *self.examples, self.out / place, start, options, print, **self.set.settings)


def train_first(label: str, name: str, args: argparse.Namespace) -> None:
    """RUNS/SET/first, which all depths begin with."""
    setup = TrainingSetup(name, args)
    if untrained(setup.out / "first"):
        setup.finetune("first", setup.start, setup.epochs)


def train_way(label: str, name: str, way: str, args: argparse.Namespace) -> None:
    """RUNS/SET/WAY, one of `WAYS`."""
    from albertkit.artifact import read_artifact
    from albertkit.train.elastic import UnlabelledTexts, finetune_elastic
    from albertkit.train.finetune import finetune_examples
    from albertkit.train.train_settings import ElasticSettings

    setup = TrainingSetup(name, args)
    if not untrained(setup.out / way):
        return
    loss_options = parse_way(way)
    texts = more_texts(name, args) if way != "plain" else []
    if args.at_once or args.teachers:
        longest = {"max_length": 128} | setup.options
        options = ElasticSettings(**longest | {"epochs": (1 + setup.times) * setup.epochs} | loss_options)
        if texts and args.teachers:
            teacher = args.teachers / name / "plain" / "model"
            unlabelled = UnlabelledTexts(texts, teacher)
            finetune_elastic(setup.start, *setup.examples, setup.out / way, options, unlabelled, print)
            return
        finetune_examples(
            setup.set.task, *setup.examples, setup.out / way, setup.start, options, print, **setup.set.settings
        )
        return
    first_model = read_artifact(setup.out / "first" / "model")
    setup_options = {k: v for k, v in setup.options.items() if k != "max_length"}
    options = ElasticSettings(**setup_options | {"epochs": setup.times * setup.epochs} | loss_options)
    unlabelled = UnlabelledTexts(texts) if texts else None
    finetune_elastic(first_model, *setup.examples, setup.out / way, options, unlabelled, print)


def more_texts(name: str, args: argparse.Namespace) -> list[str]:
    """The texts without labels of a data set; those that are asked for must be there."""
    path: Path | None = args.texts and args.texts / f"{name}.txt"
    if args.teachers and (path is None or not path.is_file()):
        raise SystemExit(
            f"teachers label texts, and there is no {path or 'folder of --texts'}; more_texts.py makes some"
        )
    return path.read_text(encoding="utf-8").splitlines() if path is not None and path.is_file() else []


def train_fixed(label: str, name: str, depth: int, args: argparse.Namespace) -> None:
    """RUNS/SET/fixed-DEPTH."""
    if untrained(args.models / name / f"fixed-{depth}"):
        setup = TrainingSetup(name, args)
        shallow = replace(setup.start, config=setup.start.config.replace(num_hidden_layers=depth))
        setup.finetune(f"fixed-{depth}", shallow, (1 + setup.times) * setup.epochs)


def train(names: Sequence[str], args: argparse.Namespace) -> None:
    """All models, first those that others begin with."""
    for way in args.ways:
        parse_way(way)
    firsts = [] if args.at_once or args.teachers else [(name, name, args) for name in names]
    failed = run_jobs(train_first, firsts, args.jobs)
    failed += run_jobs(
        train_way, [(f"{name}, {way}", name, way, args) for name in names for way in args.ways], args.jobs
    )
    shallow = [(f"{name} with {depth} layers", name, depth, args) for name in names for depth in args.fixed]
    failed += run_jobs(train_fixed, shallow, args.jobs)
    if failed:
        raise SystemExit(f"not done: {'; '.join(failed)}")


def untrained(place: Path) -> bool:
    """Whether a model is still to be trained; says which it is."""
    is_finished = (place / "report.md").is_file()
    print(f"{place.parent.name}/{place.name}: {'done before' if is_finished else 'training'}", flush=True)
    return not is_finished


def ingredients(models: Path) -> dict[str, Any]:
    """By data set and way: the metric at every depth on the examples that chose the checkpoint, and the layers a text
    for each promise.
    """
    from albertkit.artifact import read_metadata

    by_set: dict[str, Any] = {}
    for path in sorted(models.glob("*/*/model")):
        if path.parent.name not in WAYS:
            continue
        meta = read_metadata(path)[0]
        metrics, stored = meta.metrics, meta.details.get("early_exit")
        depth_scores = metrics.get("dev at depth", {})
        name = next((n for n in metrics["dev"]), "")
        exits = None if stored is None else ExitCalibration.from_dict(stored)
        risks = {} if exits is None else {s: exits.risk(s) for s in SHARES}
        depths = {s: next(m for r, _, m in exits.risks if r == risk) for s, risk in risks.items() if risk is not None}
        by_set.setdefault(path.parents[1].name, {})[path.parent.name] = {
            "metric": name, "depth": {**depth_scores, "full": metrics["dev"][name]}, "layers": depths,
        }  # fmt: skip
    return by_set


# Measuring -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PatienceRule(ExitRule):
    """A text exits when `patience` looks in a row say the same as the one before (PABEE)."""

    patience: int = 1


def exit_depths_of(
    rule: ExitRule, estimator: Any, scores: dict[int, list[Any]], units: Sequence[int]
) -> dict[int, int]:
    """Where units leave, from what was read at every depth."""
    exit_depth: dict[int, int] = {}
    streaks: dict[int, tuple[Any, int]] = {}
    before = None
    for number, depth in enumerate(rule.exit_depths):
        if isinstance(rule, PatienceRule):
            for unit, prediction in zip(units, estimator.predictions(units, scores[depth]), strict=True):
                last, times = streaks.get(unit, (None, 0))
                streaks[unit] = (prediction, times + 1 if number and prediction == last else 0)
            exiting = [unit for unit in units if streaks[unit][1] >= rule.patience]
        else:
            uncertainty = estimator.uncertainty(units, scores[depth], before)
            exiting = [u for u, value in zip(units, uncertainty, strict=True) if value <= rule.limits[number]]
        for unit in exiting:
            exit_depth.setdefault(unit, depth)
        before = scores[depth]
    return {unit: exit_depth.get(unit, rule.depth) for unit in units}


def halves(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of two halves, drawn once and for all."""
    order = np.random.default_rng(1).permutation(count)
    return np.sort(order[: count // 2]), np.sort(order[count // 2 :])


class HeldOutSet:
    """Held-out examples of a task as a model sees them, at every depth."""

    def __init__(self, albert: Albert, examples: list[Any]) -> None:
        self.albert, self.examples, self.task = albert, examples, albert.task
        self.features = task_features(albert, examples, albert.metadata.task)
        self.estimator = UncertaintyEstimator(self.task, self.features, examples)
        ids, segments = [f.ids for f in self.features], [f.segments for f in self.features]
        every = range(1, albert.depth + 1)
        self.read = read_depths(albert, ids, segments, every, lambda h, n: read_heads(albert, h, n))
        self.full = albert.depth

    def quality(self, depths: dict[int, int]) -> dict[str, float]:
        """Metrics, mean depth and agreement, when each unit leaves at its depth."""
        scores: list[Any] = [None] * len(self.features)
        for unit, depth in depths.items():
            for place in self.estimator.units[unit]:
                scores[place] = self.read[depth][place]
        results, full = (
            self.task.results(rows, self.features, self.examples) for rows in (scores, self.read[self.full])
        )
        from albertkit.tasks.confidence import results_agree

        mean = float(np.mean(list(depths.values())))
        return {
            **self.task.measure(results, self.examples),
            "agreement": float(results_agree(self.task, results, full).mean()),
            "mean_depth": mean,
            "times_fewer_layers": self.full / mean,
        }

    def at(self, depth: int) -> dict[str, float]:
        """All at one depth."""
        return self.quality(dict.fromkeys(range(len(self.estimator.units)), depth))

    def rules(self, share: float, exit_depths: Sequence[int]) -> list[tuple[np.ndarray, ExitRule]] | None:
        """For each half its rule, which was found on the other one; None where a half cannot promise as much."""
        sides, rules = halves(len(self.examples)), []
        for half, other in (sides, sides[::-1]):
            exits = self.exits(other, exit_depths)
            if exits is None or exits.risk(share) is None:
                return None
            rules.append((half, agreement_rule(exits, share, self.estimator.compares_depths)))
        return rules

    def calibrated(self, share: float, exit_depths: Sequence[int]) -> dict[str, float] | None:
        """Early exit with limits from the other half."""
        exit_depth: dict[int, int] = {}
        for half, rule in self.rules(share, exit_depths) or ():
            exit_depth |= exit_depths_of(rule, self.estimator, self.read, half.tolist())
        return self.quality(exit_depth) if exit_depth else None

    def exits(self, places: np.ndarray, exit_depths: Sequence[int]) -> ExitCalibration | None:
        """Limits found on some of the examples."""
        example_set = set(places.tolist())
        number = {place: i for i, place in enumerate(places.tolist())}
        indices = [i for i, f in enumerate(self.features) if f.example in example_set]
        features = [replace(self.features[i], example=number[self.features[i].example]) for i in indices]
        scores = {d: [self.read[d][i] for i in indices] for d in (*exit_depths, self.full)}
        return calibrate_scores(self.task, scores, features, [self.examples[p] for p in places])

    def rule(self, rule: ExitRule) -> dict[str, float]:
        """A rule without a promise, on all."""
        return self.quality(exit_depths_of(rule, self.estimator, self.read, range(len(self.estimator.units))))


def measure(data_set: Set, examples: list[Any], folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One data set: quality by depth and by rule, and times."""
    models = finished_models(folder)
    opened = {name: Albert(path, bits=args.bits, threads=args.threads) for name, path in models.items()}
    record_of_set: dict[str, Any] = {
        "task": data_set.task,
        "metric": data_set.metrics[0],
        "examples": len(examples),
        "bits": args.bits,
    }
    record_of_set["history"] = {
        name: [s for s in a.metadata.history if s["step"] in ("finetune", "elastic")] for name, a in opened.items()
    }
    record_of_set["begun"] = multi_depth_step(opened["elastic"].metadata.history)
    record_of_set["machine"] = machine(args.threads)
    runs: dict[str, Callable[[], Any]] = {}
    for name, albert in opened.items():
        held_out = HeldOutSet(albert, examples)
        exit_depths = range(1, held_out.full)
        record: dict[str, Any] = {
            "layers": held_out.full,
            "depth": {d: held_out.at(d) for d in (*exit_depths, held_out.full)},
        }
        runs[f"{name}, full depth"] = lambda a=albert: predict(a, examples, data_set.task)
        if not name.startswith("fixed"):
            third = range(3, held_out.full, 3)
            record["exit"] = {s: held_out.calibrated(s, exit_depths) for s in SHARES}
            record["exit, looks every third layer"] = {s: held_out.calibrated(s, third) for s in SHARES}
            flat = [
                (f"entropy:{e}", ExitRule(held_out.full, tuple(exit_depths), (e,) * len(exit_depths)))
                for e in ENTROPIES
            ]
            flat += [(f"patience:{p}", PatienceRule(held_out.full, tuple(exit_depths), patience=p)) for p in PATIENCES]
            record["rules"] = {text: held_out.rule(rule) for text, rule in flat}
        if name == "elastic":
            for depth in (d for d in TIMED if d < held_out.full):
                runs[f"elastic, depth {depth}"] = lambda a=albert, d=depth: predict(a, examples, data_set.task, depth=d)
            for share in SHARES:
                for text, these in (("", exit_depths), (", looks every third layer", third)):
                    rules = held_out.rules(share, these)
                    if rules is not None:
                        runs[f"elastic, exit {share:.0%}{text}"] = lambda h=held_out, r=rules: run_early_exit(h, r)
        record_of_set[name] = record
    record_of_set["seconds"] = measure_times(runs, args.repeats)
    record_of_set["seeds"] = [seed_of(record_of_set)] + [
        seed_of(
            {name: quality_of(place, examples, args) for name, place in finished_models(more / folder.name).items()}
        )
        for more in args.more
        if (more / folder.name).is_dir()
    ]
    return record_of_set


def finished_models(folder: Path) -> dict[str, Path]:
    """The finished models of a data set that are compared, by name."""
    models = {
        place.name: place
        for place in sorted(folder.iterdir())
        if (place.name == "plain" or place.name.split("-")[0] in ("elastic", "fixed")) and (place / "model").is_dir()
    }
    missing = [name for name in ("plain", "elastic") if name not in models]
    if missing:
        raise SystemExit(f"{folder} has no finished {missing[0]}/model; train it first, or link it there")
    return models


def without_training_texts(examples: list[Any], texts: Path) -> list[Any]:
    """The examples none of whose sentences stands in a file of texts."""
    from more_texts import normalized  # of this folder

    lines = texts.read_text(encoding="utf-8").splitlines() if texts.is_file() else []
    training_texts = {normalized(part) for line in lines for part in line.split("\t")}
    return [
        e for e in examples if not any(normalized(t) in training_texts for t in (e.text, getattr(e, "pair", None)) if t)
    ]


def quality_of(place: Path, examples: list[Any], args: argparse.Namespace) -> dict[str, Any]:
    """A model of another seed, at every depth and with exits."""
    held_out = HeldOutSet(Albert(place / "model", bits=args.bits, threads=args.threads), examples)
    exit_depths = range(1, held_out.full)
    exits = {s: held_out.calibrated(s, exit_depths) for s in SHARES} if place.name == "elastic" else {}
    return {"layers": held_out.full, "depth": {d: held_out.at(d) for d in (*exit_depths, held_out.full)}, "exit": exits}


def seed_of(record: dict[str, Any]) -> dict[str, Any]:
    """What is compared between seeds: each model at its full depth, and elastic everywhere."""
    full_depth = {n: r["depth"][r["layers"]] for n, r in record.items() if n == "plain" or n.startswith("fixed-")}
    return {**full_depth, "elastic": {part: record["elastic"][part] for part in ("depth", "exit")}}


def multi_depth_step(history: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The step before fine-tuning that taught several depths, if there was one."""
    for step in reversed(history):
        if step["step"] in ("pretrain", "distill"):
            depths = step["settings"].get("depths")
            return {"step": step["step"], "depths": depths, "minutes": step["minutes"]} if depths else None
    return None


def run_early_exit(held_out: HeldOutSet, rules: list[tuple[np.ndarray, ExitRule]]) -> ExitStats:
    """Early exit for real, from examples to results, each half with its rule."""
    albert, depths = held_out.albert, []
    for places, rule in rules:
        examples = [held_out.examples[place] for place in places]
        features = task_features(albert, examples, albert.metadata.task)
        estimator = UncertaintyEstimator(held_out.task, features, examples)
        runner = EarlyExitRunner(albert, rule, lambda h, n: read_heads(albert, h, n), estimator)
        exits = runner.run([f.ids for f in features], [f.segments for f in features])
        held_out.task.results(exits.outputs, features, examples)
        depths.append(exits.depths)
    return ExitStats([], np.concatenate(depths))


def measure_times(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, dict[str, float]]:
    """The best time of each, all of them in turn, by the clock and by the processor's; where texts left early, also the
    mean depth.
    """
    processor_times: dict[str, list[float]] = {name: [] for name in runs}
    depths: dict[str, float] = {}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            began, used = time.perf_counter(), time.process_time()
            result = run()
            times[name].append(time.perf_counter() - began)
            processor_times[name].append(time.process_time() - used)
            if isinstance(result, ExitStats):
                depths[name] = float(result.depths.mean())
    return {
        name: {
            "seconds": min(seconds),
            "processor_seconds": min(processor_times[name]),
            **({"mean_depth": depths[name]} if name in depths else {}),
        }
        for name, seconds in times.items()
    }


def vectors(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The built-in model's vectors on pairs with marks: Spearman's correlation by depth and by share of agreement; of
    all layers, not of those it applies unasked.
    """
    from scipy.stats import spearmanr

    from albertkit.builtin import DEFAULT, describe
    from albertkit.tasks.readers import read_examples

    pairs = read_examples("classify", path).examples
    albert = Albert(threads=args.threads, depth=describe(DEFAULT).shape["layers"])
    scores = [float(e.label) for e in pairs]
    texts = [t for e in pairs for t in (e.text, e.pair or "")]
    full, exit_depths = albert.depth, [depth for depth in available_exit_depths(albert) if depth < albert.depth]
    by_depth = {d: albert.embed(texts, depth=d) for d in (*exit_depths, full)}

    def score(embedded: np.ndarray, depths: np.ndarray) -> dict[str, float]:
        alike = (embedded[0::2] * embedded[1::2]).sum(1)
        agreed = float((cosines(embedded, by_depth[full]) >= MIN_COSINE).mean())
        mean = float(depths.mean())
        return {"spearman": float(spearmanr(alike, scores).statistic), "agreement": agreed, "mean_depth": mean, "times_fewer_layers": full / mean}  # fmt: skip

    uncertainty = np.stack(
        [np.full(len(texts), np.inf), *(1 - cosines(by_depth[b], by_depth[a]) for a, b in pairwise(exit_depths))], 1
    )
    agrees = np.stack([cosines(by_depth[d], by_depth[full]) >= MIN_COSINE for d in exit_depths], 1)
    record: dict[str, Any] = {
        "layers": full,
        "texts": len(texts),
        "close": MIN_COSINE,
        "machine": machine(args.threads),
    }
    record["depth"] = {d: score(v, np.full(len(texts), d)) for d, v in by_depth.items()}
    record["exit"] = {}
    for share in SHARES:
        depths = np.full(len(texts), full)
        sides = halves(len(texts))
        for half, other in (sides, sides[::-1]):
            exits = fit_calibration(uncertainty[other], agrees[other], exit_depths, full)
            if exits is not None and exits.risk(share) is not None:
                exits_at = uncertainty[half] <= np.array(exits.limits(share))
                depths[half] = np.where(exits_at.any(1), np.array(exit_depths)[exits_at.argmax(1)], full)
        record["exit"][share] = score(np.stack([by_depth[int(d)][i] for i, d in enumerate(depths)]), depths)
    record["seconds"] = measure_times(
        {f"depth {d}": lambda d=d: albert.embed(texts, depth=d) for d in by_depth}
        | {f"exit cosine:{c}": lambda c=c: embed_early_exit(albert, texts, c) for c in (0.9, 0.95)},
        args.repeats,
    )
    return record


def embed_early_exit(albert: Albert, texts: list[str], cosine: float) -> ExitStats:
    """Vectors that stop when they stop moving."""
    vectors, depths = albert.embed_early_exit(texts, early_exit=f"cosine:{cosine}")
    return ExitStats(list(vectors), depths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("train", "measure", "ingredients"))
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--start", type=Path)
    parser.add_argument("--only", default="sst-2,mrpc,conll2003")
    parser.add_argument("--fixed", default="4", type=lambda text: [int(d) for d in text.split(",") if d])
    parser.add_argument("--ways", default="plain,elastic", type=lambda text: text.split(","), help=", ".join(WAYS))
    parser.add_argument(
        "--times", type=float, default=1.0, help="epochs of the second half, as a multiple of the first"
    )
    parser.add_argument("--at-once", action="store_true", help="train every way from the start, without a first half")
    parser.add_argument("--texts", type=Path, help="a folder with SET.txt: texts without labels for all ways but plain")
    parser.add_argument("--teachers", type=Path, help="RUNS whose SET/plain label the texts")
    parser.add_argument("--examples", type=int, help="at most so many of each part")
    parser.add_argument("--epochs", type=float, help="of plain and of elastic")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--bits", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--more", default="", type=lambda text: [Path(p) for p in text.split(",") if p], help="RUNS of other seeds"
    )
    parser.add_argument("--sts", type=Path, help="a file of pairs with marks, for vectors")
    args = parser.parse_args()
    names = [name for name in args.only.split(",") if name]
    if args.step == "ingredients":
        INGREDIENTS.write_text(json.dumps(ingredients(args.models), indent=1) + "\n", encoding="utf-8")
        return
    if args.step == "train":
        train(names, args)
        return
    result = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {"sets": {}}
    for name in names:
        examples_of_set = load(SETS[name], args.data, args.examples)["dev"]
        examples = (
            without_training_texts(examples_of_set, args.texts / f"{name}.txt") if args.texts else examples_of_set
        )
        result["sets"][name] = measure(SETS[name], examples, args.models / name, args)
        result["sets"][name]["seen"] = len(examples_of_set) - len(examples)
        write_result(result)
        print(name, json.dumps(result["sets"][name]["seconds"], indent=1))
    if args.sts:
        result["vectors"] = vectors(args.sts, args)
        write_result(result)


def write_result(result: dict[str, Any]) -> None:
    """Write what was measured so far."""
    result |= {"libraries": versions()}
    beside = RESULT.with_suffix(".part")
    beside.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    beside.replace(RESULT)


if __name__ == "__main__":
    main()
