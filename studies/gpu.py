"""The same vectors on a GPU: base shape, random weights, through torch on "cuda" against onnxruntime on the CPU.

python studies/gpu.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))


def main() -> int:
    import torch

    from albertkit import Albert, Tokenizer, preset, write_artifact
    from albertkit.artifact import Artifact
    from albertkit.model import AlbertModel
    from albertkit.model.albert_model import build_head

    torch.manual_seed(0)
    config = preset("base")
    model = AlbertModel(config, {"mlm": build_head("mlm", config)})
    tokenizer = Tokenizer.from_spiece(
        Path(__file__).parent.parent / "src" / "albertkit" / "models" / "small" / "spiece.model"
    )
    texts = [" ".join(["some", "words", "of", "text"] * n) + f" {n}" for n in (1, 3, 30, 7, 100, 12)] * 50
    with tempfile.TemporaryDirectory() as folder:
        write_artifact(Artifact(config, model.weights(), tokenizer), Path(folder) / "m")
        cpu, gpu = Albert(Path(folder) / "m"), Albert(Path(folder) / "m", device="cuda", token_budget=65_536)
        worst = float(np.abs(cpu.embed(texts[:24]) - gpu.embed(texts[:24])).max())
        words = [[g.word for g in a.fill_mask("a [MASK] text")[0]] for a in (cpu, gpu)]
        gpu.embed(texts)
        start = time.perf_counter()
        gpu.embed(texts)
        speed = len(texts) / (time.perf_counter() - start)
    print(
        f"{torch.cuda.get_device_name()}: largest difference {worst:.2e}, same words {words[0] == words[1]}, {speed:.0f} texts/s"
    )
    return 0 if worst < 1e-4 and words[0] == words[1] else 1


if __name__ == "__main__":
    sys.exit(main())
