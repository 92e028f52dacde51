"""Quality and speed of compressed variants of one model: pruning, a static model, a smaller vocabulary, exported files,
and recovery by training.

    python studies/compression.py --model FOLDER      # without training: measure, write studies/results/compression.json
    python studies/compression.py --trained RUNS      # with training, on SST-2; see compression_trained.py

Quality: Spearman's correlation on STS-B dev, MLM accuracy on held-out text if the model has that head, and the mean
cosine with the full model's vectors. Time: texts per second on STS-B's sentences, and one short text. FOLDER is a float
model; the default is the built-in one. All variants are measured in interleaved rounds of one run, so that other load
on the machine affects all equally.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "bench", "studies")]
from compression_trained import run  # noqa: E402

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "studies" / "results" / "compression.json"
SHARED = Path(os.environ.get("ALBERTKIT_SHARED", ROOT.parent / "shared"))
ROUNDS = 5


def sts() -> tuple[list[str], list[str], np.ndarray]:
    """Pairs and scores of STS-B dev."""
    rows = [line.rstrip("\n").split("\t") for line in (SHARED / "data" / "sts-b" / "dev.tsv").open(encoding="utf-8")][
        1:
    ]
    return [r[7] for r in rows], [r[8] for r in rows], np.array([float(r[9]) for r in rows])


def wiki(count: int, start: int = 0) -> list[str]:
    """Paragraphs of English Wikipedia."""
    with lzma.open(SHARED / "corpus" / "enwiki-06.txt.xz", "rt", encoding="utf-8") as file:
        lines = [line.strip() for line in islice(file, 6 * (count + start)) if 80 < len(line) < 800]
    return lines[start : start + count]


def build(model: str | None, place: Path) -> dict[str, Path]:
    """Every compressed form of a model, in folders under `place`."""
    from albertkit.compress.prune import PruneSettings, prune
    from albertkit.compress.quantize import quantize
    from albertkit.compress.static_model import make_static_model
    from albertkit.interop.convert import convert

    texts = wiki(500)
    convert(model, place / "whole")
    models = {"whole, float32": place / "whole"}

    def quantised(name: str, source: Path, bits: int = 8) -> None:
        folder = place / name.replace(",", "").replace(" ", "-")
        quantize(source, folder, bits, texts)
        models[name] = folder

    quantised("whole, int8", place / "whole")
    quantised("whole, 4-bit", place / "whole", 4)
    for name, keep in (
        ("FFN 1/2", PruneSettings(ffn=0.5)),
        ("FFN 1/2, heads 2/3", PruneSettings(ffn=0.5, heads=2 / 3)),
        ("FFN 3/4", PruneSettings(ffn=0.75)),
        ("FFN 1/2, heads 2/3, not fitted", PruneSettings(ffn=0.5, heads=2 / 3, fit=False)),
    ):
        folder = place / name.replace("/", "-").replace(",", "").replace(" ", "-")
        prune(place / "whole", folder, keep, texts)
        models[f"{name}, float32"] = folder
        if name == "FFN 1/2, heads 2/3":
            quantised(f"{name}, int8", folder)
    first, second, _ = sts()
    prune(place / "whole", place / "words", PruneSettings(vocabulary=[*first, *second]))
    models["vocabulary of STS-B, float32"] = place / "words"
    make_static_model(place / "whole", place / "static", texts)
    models["static, float32"] = place / "static"
    quantize(place / "static", place / "static8", 8)
    models["static, int8"] = place / "static8"
    return models


def masked_accuracy(albert, texts: list[str]) -> float | None:
    """Share of masked words that are guessed right; the same ones for every model of the same vocabulary."""
    import dataclasses

    from albertkit.runtime.batching import token_batches

    if albert.config.options.static or "heads.mlm.bias" not in albert.engine.weights:
        return None
    rng, correct, count = np.random.default_rng(0), 0, 0
    ids = [e.ids for e in albert.tokenizer.encode_batch(texts, max_length=128)]
    for batch in token_batches(ids):
        inside = np.arange(batch.ids.shape[1])[None] < batch.lengths[:, None]
        is_masked = (rng.random(batch.ids.shape) < 0.15) & inside & (batch.ids > 4)
        masked = dataclasses.replace(batch, ids=np.where(is_masked, albert.tokenizer.mask_id, batch.ids))
        predicted = albert.engine.mlm_logits(albert.engine.run(masked, albert.depth)[is_masked]).argmax(1)
        correct, count = correct + int((predicted == batch.ids[is_masked]).sum()), count + int(is_masked.sum())
    return correct / max(1, count)


def quality(models: dict[str, Path]) -> dict[str, dict]:
    from scipy.stats import spearmanr

    from albertkit.albert import Albert

    first, second, scores = sts()
    held_out, out, full_vectors = wiki(100, start=600), {}, None
    for name, folder in models.items():
        albert = Albert(folder)
        a, b = albert.embed(first), albert.embed(second)
        full_vectors = a if full_vectors is None else full_vectors
        row = {
            "sts_b_dev": 100 * float(spearmanr((a * b).sum(1), scores)[0]),
            "masked_words": masked_accuracy(albert, held_out) if "vocabulary" not in name else None,
            "cosine": float((a * full_vectors).sum(1).mean())
            if a.shape == full_vectors.shape and "static" not in name
            else None,
            "bytes": max(p.stat().st_size for p in folder.glob("*.safetensors")),
        }
        out[name] = row
        print(name, row, flush=True)
    return out


def speed(models: dict[str, Path], threads: int | None, rounds: int = ROUNDS) -> dict[str, dict]:
    from albertkit.albert import Albert

    texts = sts()[0]
    alberts = {name: Albert(folder, threads=threads) for name, folder in models.items()}
    best = {name: [np.inf, np.inf] for name in models}
    for albert in alberts.values():
        albert.embed(texts)
    for _ in range(rounds):
        for name, albert in alberts.items():
            start = time.perf_counter()
            albert.embed(texts)
            many = (time.perf_counter() - start) / len(texts)
            times = []
            for _ in range(20):
                start = time.perf_counter()
                albert.embed("a man is playing a guitar on the stage")
                times.append(time.perf_counter() - start)
            best[name] = [min(best[name][0], many), min(best[name][1], float(np.percentile(times, 25)))]
    return {name: {"texts_per_second": 1 / many, "one_text_ms": 1e3 * one} for name, (many, one) in best.items()}


def export_quality(models: dict[str, Path], place: Path) -> dict[str, dict]:
    """Size of each exported file, and how far onnxruntime and OpenVINO are from the runtime on real sentences."""
    import onnxruntime as ort

    from albertkit.albert import Albert
    from albertkit.interop.onnx_export import ExportSettings, export
    from albertkit.runtime.engine import machine_max_level

    out = {}
    texts = sts()[0][:64]
    for name in ("whole, float32", "whole, int8", "FFN 1/2, heads 2/3, int8", "static, int8"):
        path = place / "model.onnx"
        wide = machine_max_level() == 255  # as the runtime does on this processor
        report = export(models[name], path, ExportSettings(head="vector", full_range=wide), overwrite=True)
        albert = Albert(models[name])
        encodings = albert.tokenizer.encode_batch(texts)
        longest = max(len(e.ids) for e in encodings)
        inputs = {
            n: np.zeros((len(texts), longest), np.int64) for n in ("input_ids", "attention_mask", "token_type_ids")
        }
        for row, e in enumerate(encodings):
            inputs["input_ids"][row, : len(e.ids)], inputs["attention_mask"][row, : len(e.ids)] = e.ids, 1
        vectors = {"onnxruntime": ort.InferenceSession(str(path)).run(["sentence_embedding"], inputs)[0]}
        try:
            import openvino

            model = openvino.Core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
            vectors["openvino"] = model(inputs)["sentence_embedding"]
        except ImportError:
            pass
        want = albert.embed(texts)
        row = {"bytes": report.bytes, "over_weights": report.bytes / report.weight_bytes - 1}
        row |= {f"{k}_least_cosine": float((v * want).sum(1).min()) for k, v in vectors.items()}
        out[name] = row
        print(name, row, flush=True)
    return out


def machine(threads: int | None) -> dict:
    """Where and when something was measured."""
    from albertkit.cpu_cores import cores

    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(":")[1].strip() for line in info.splitlines() if line.startswith("model name")]
    processor = names[0] if names else platform.processor()
    return {"threads": threads or cores(), "processor": processor, "date": time.strftime("%Y-%m-%d")}


def run_study(args: argparse.Namespace) -> dict:
    """Everything that needs no training."""
    model = Path(args.model).name if args.model else "the built-in one"
    result: dict = {"machine": {"model": model, **machine(args.threads)}}
    with tempfile.TemporaryDirectory() as scratch:
        models = build(args.model, Path(scratch))
        result["quality"] = quality(models)
        result["export"] = export_quality(models, Path(scratch))
        result["speed"] = speed(models, args.threads, 1 if args.trial else ROUNDS)
    return result


def write_result(part: dict) -> None:
    """Put what was measured beside what was measured before."""
    before = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.is_file() else {}
    RESULT.write_text(json.dumps({**before, **part}, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a float model's folder  [default: the built-in model]")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--try", dest="trial", action="store_true", help="one round, and keep nothing")
    parser.add_argument("--trained", help="folder for what is trained: recovery, 4 bits, a small student")
    parser.add_argument(
        "--start", help="with --trained: the pre-trained model to fine-tune  [default: the built-in one]"
    )
    parser.add_argument("--device", default="auto", help="with --trained: cpu or cuda")
    parser.add_argument("--texts", type=Path, help="with --trained: lines for the student to read before the task")
    parser.add_argument("--text-steps", type=int, default=20_000, help="with --texts: updates of that reading")
    parser.add_argument("--jobs", type=int, default=1, help="with --trained: trainings at a time")
    parser.add_argument("--only", choices=["train", "measure"], help="with --trained: one half of it")
    parser.add_argument("--quick", action="store_true", help="with --trained: toy size, and keep nothing")
    args = parser.parse_args()
    if args.trained:
        found = run(args, SHARED)
        if found is not None:
            write_result({"trained": machine(args.threads) | found})
        return
    result = run_study(args)
    if args.trial:
        print(json.dumps(result, indent=2))
    else:
        write_result(result)


if __name__ == "__main__":
    main()
