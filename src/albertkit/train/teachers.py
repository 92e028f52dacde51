"""Teachers: sentence encoders of other projects, whose vectors a small model learns to give.

In: `Passages` and folders of BERT-like sentence encoders (config.json, model.safetensors, tokenizer.json). Out: `targets.npy`, one vector a text.

The vectors of all teachers are centred, brought to length 1, weighed and put side by side; then they are turned so that the first numbers carry most
(a principal component analysis) and cut to the student's width. So the student's vector may be cut too, and the first 64 numbers are the best 64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer as Rust
from tqdm import tqdm

from albertkit.data.passages import Passages
from albertkit.data.writing import write_array
from albertkit.errors import AlbertkitError, need
from albertkit.tokenizer import Tokenizer

CHUNK = 8192  # texts tokenised together
TOKENS = 131_072  # tokens at once on the device
SAMPLE = 100_000  # texts from which the turn is found
MIXED = 65_536  # texts turned at once


@dataclass(frozen=True)
class Mixture:
    """Teachers and what they count."""

    folders: tuple[Path, ...]
    weights: tuple[float, ...]
    width: int
    """Numbers in a target."""


def load(folder: Path, device: torch.device) -> tuple[Any, Rust]:
    """A teacher's encoder, in half precision on a GPU, and its tokenizer."""
    transformers = need("transformers", "train", "a teacher")
    from safetensors.torch import load_file

    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        model = transformers.AutoModel.from_config(config)
        state = {k.removeprefix("bert."): v.float() for k, v in load_file(str(folder / "model.safetensors")).items()}
        rust = Rust.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers and transformers raise what they like
        raise AlbertkitError(f"{folder} is no sentence encoder that can be opened: {str(error)[:160]}") from None
    missing, _ = model.load_state_dict(state, strict=False)
    if any("pooler" not in name and "position_ids" not in name for name in missing):
        raise AlbertkitError(f"{folder}/model.safetensors lacks {missing[0]!r}")
    rust.no_padding()
    rust.enable_truncation(256)
    model = model.to(device).eval()
    return (model.half() if device.type == "cuda" else model), rust


@torch.inference_mode()
def vectors(model: Any, ids: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Mean of the last hidden states of each text, length 1, (texts, width)."""
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    out = torch.empty(len(ids), model.config.hidden_size)
    start = 0
    while start < len(order):
        rows = max(1, TOKENS // max(1, len(ids[order[min(start + 1024, len(order)) - 1]])))
        places = order[start : start + min(rows, 1024)]
        lengths = np.array([len(ids[i]) for i in places])
        inside = np.arange(lengths.max()) < lengths[:, None]  # (texts, longest)
        table = np.zeros(inside.shape, np.int64)
        table[inside] = np.concatenate([ids[i] for i in places])
        mask = torch.from_numpy(inside).to(device)
        hidden = model(input_ids=torch.from_numpy(table).to(device), attention_mask=mask).last_hidden_state.float()
        pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        out[places] = F.normalize(pooled, dim=-1).cpu()
        start += len(places)
    return out


_tokenizer: Tokenizer | None = None


def _start(folder: str) -> None:
    global _tokenizer
    _tokenizer = Tokenizer.load(folder)


def _decode(rows: list[list[int]]) -> list[str]:
    assert _tokenizer is not None
    return [_tokenizer.decode(row) for row in rows]


def texts(passages: Passages, tokenizer: Path, workers: int) -> Iterator[list[str]]:
    """The passages as text, chunk by chunk, in order."""
    chunks = (
        [passages[i].tolist() for i in range(s, min(s + CHUNK, len(passages)))] for s in range(0, len(passages), CHUNK)
    )
    if workers <= 1:
        _start(str(tokenizer))
        yield from map(_decode, chunks)
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(str(tokenizer),)) as pool:
        waiting: list[Any] = []
        for chunk in chunks:
            waiting.append(pool.submit(_decode, chunk))
            if len(waiting) >= 4 * workers:
                yield waiting.pop(0).result()
        for rest in waiting:
            yield rest.result()


def teach(
    passages: Passages, tokenizer: Path, mixture: Mixture, target: Path, device: torch.device, workers: int = 1
) -> Path:
    """Write the target of every passage to `target`, float16 (texts, width)."""
    if len(mixture.folders) != len(mixture.weights):
        raise AlbertkitError("give one weight for each teacher")
    loaded = [load(folder, device) for folder in mixture.folders]
    width = sum(model.config.hidden_size for model, _ in loaded)
    raw = np.empty((len(passages), width), np.float16)
    at = 0
    for chunk in tqdm(texts(passages, tokenizer, workers), total=-(-len(passages) // CHUNK), desc="teachers"):
        side_by_side = []
        for model, rust in loaded:
            ids = [e.ids for e in rust.encode_batch_fast(chunk)]
            side_by_side.append(vectors(model, ids, device))
        raw[at : at + len(chunk)] = torch.cat(side_by_side, 1).numpy()
        at += len(chunk)
    write_array(target, mix(raw, [m.config.hidden_size for m, _ in loaded], mixture, device))
    return target


def mix(raw: np.ndarray, widths: list[int], mixture: Mixture, device: torch.device | str = "cpu") -> np.ndarray:
    """Teachers' vectors side by side (texts, sum of widths) → targets (texts, width), float16."""
    sample = np.sort(np.random.default_rng(0).permutation(len(raw))[:SAMPLE])
    bounds = np.cumsum([0, *widths])
    parts = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), mixture.weights, strict=True))

    def sent(rows: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(rows).to(device).float()

    first = sent(raw[sample])
    means = [first[:, a:b].mean(0) for a, b, _ in parts]

    def joined(rows: torch.Tensor) -> torch.Tensor:
        centred = [weight * F.normalize(rows[:, a:b] - mean) for (a, b, weight), mean in zip(parts, means, strict=True)]
        return torch.cat(centred, 1)

    seen = joined(first)
    basis = torch.linalg.eigh(seen.T.double() @ seen.double())[1].flip(1)[:, : mixture.width].float()  # strongest first
    targets = np.empty((len(raw), basis.shape[1]), np.float16)
    for start in range(0, len(raw), MIXED):
        turned = F.normalize(joined(sent(raw[start : start + MIXED])) @ basis)
        targets[start : start + MIXED] = turned.half().cpu().numpy()
    return targets
