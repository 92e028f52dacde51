"""Seconds of a fine-tuning step with AdamW and with Muon: sentences of CoNLL-2003, `small-pretrained`.

    python studies/optimizer_speed.py DATA

Both optimizers take turns; the best of several rounds counts, because machines are noisy.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("src", "bench", "studies")]

from curves import parts_of  # noqa: E402

from albertkit import open_model  # noqa: E402
from albertkit.tasks import make_task  # noqa: E402
from albertkit.train.distributed import process_group  # noqa: E402
from albertkit.train.finetune_runs import loop_settings  # noqa: E402
from albertkit.train.finetune_task import FinetuneTask  # noqa: E402
from albertkit.train.loop import TrainingRun  # noqa: E402
from albertkit.train.train_settings import FinetuneSettings  # noqa: E402

ROUNDS, STEPS = 4, 5


def main() -> None:
    train, model = parts_of("conll2003", Path(sys.argv[1]))["train"][:400], open_model("small-pretrained")
    for batch in (8, 32):
        best: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as folder, process_group("cpu") as processes:
            runs = {}
            for name in ("adamw", "muon"):
                settings = loop_settings(
                    FinetuneSettings(batch_size=batch, optimizer=name, device="cpu"), 1000, 1e-4, 0
                )
                task = FinetuneTask(make_task("tag", train), model, train, [], settings)
                runs[name] = TrainingRun(task, settings, Path(folder), processes, print)
            for _ in range(ROUNDS):
                for name, run in runs.items():
                    run.task.position = (0, 0)  # the same sentences
                    started = time.perf_counter()
                    for _ in range(STEPS):
                        run.step(0.5)
                    best[name] = min(best.get(name, 1e9), (time.perf_counter() - started) / STEPS)
        times = ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in best.items())
        print(f"batches of {batch}: {times}, ratio {best['muon'] / best['adamw']:.2f}", flush=True)


if __name__ == "__main__":
    main()
