"""Teachers: models whose vectors a small model learns to give, our own and sentence encoders of other projects.

In: `Passages` (or texts) and folders of models of ours or of BERT-like sentence encoders (config.json, model.safetensors, tokenizer.json). Out:
`targets.npy`, one vector a text.

The vectors of all teachers are centred, brought to length 1, weighed and put side by side; then they are turned so that the first numbers carry most
(a principal component analysis) and cut to the student's width. So the student's vector may be cut too, and the first 64 numbers are the best 64.
A student that gives vectors already, learnt from the same teachers, keeps its axes: the targets are turned towards its vectors (orthogonal Procrustes),
since the axes of another draw of texts are others.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer as Rust
from tqdm import tqdm

from albertkit.artifact import META_FILE, model_folder
from albertkit.data.passages import Passages, gather_spans
from albertkit.errors import AlbertkitError, need
from albertkit.file_io import read_json
from albertkit.tokenizer import Tokenizer
from albertkit.train.teacher_states import max_positions

LONGEST = 256  # tokens that a foreign teacher reads of a text, at most
CHUNK = 8192  # texts tokenised together
ROWS = 4096  # texts at once on the device, at most
TOKENS = 131_072  # tokens at once on the device
SAMPLE = 100_000  # texts from which the turn is found
OWN = 30_000  # texts from which the turn towards a student's own vectors is found
MIXED = 65_536  # texts turned at once

TextReaderSpec = tuple[str, str] | None
"""How a foreign teacher takes text: its tokenizer, as text, and what stands before every text. None: a teacher that reads text."""
Reader = tuple[Rust, str] | None
"""The same, with the tokenizer opened."""
StudentVectors = Callable[[np.ndarray], torch.Tensor]
"""Numbers of texts, ascending, to the vectors that the student gives them now."""


@dataclass(frozen=True)
class TeacherMixture:
    """Teachers, and the weight of each one's vectors."""

    folders: tuple[Path, ...]
    weights: tuple[float, ...]


def is_albert(folder: Path | str | None) -> bool:
    """Whether a folder is a model of ours, or an ALBERT of another kind that we read."""
    try:
        place, _ = find_encoder(model_folder(folder))
        if (place / META_FILE).is_file() or not (place / "config.json").is_file():
            return True  # what is no model at all is told by its reader
        return read_json(place / "config.json").get("model_type") in ("albert", "albertkit")
    except AlbertkitError:
        return False


def find_encoder(folder: Path) -> tuple[Path, str]:
    """Where the encoder of a foreign teacher lies, and how it makes one vector: what a sentence-transformers folder says, else the mean."""
    from albertkit.interop import sentence_transformers

    return sentence_transformers.steps_of(folder)[:2] if sentence_transformers.is_folder(folder) else (folder, "mean")


def find_reading_rules(folder: Path) -> tuple[str, int]:
    """What a foreign teacher puts before every text, and the tokens it reads at most: what a sentence-transformers folder says, else nothing and 256."""
    from albertkit.interop import sentence_transformers

    if not sentence_transformers.is_folder(folder):
        return "", LONGEST
    told = sorted(find_encoder(folder)[0].glob("sentence_*_config.json"))
    length = read_json(told[0]).get("max_seq_length") if told else None
    prompt = sentence_transformers.prompts_of(folder).get("default", "")
    return prompt, min(LONGEST, length) if isinstance(length, int) and length > 2 else LONGEST


def load_transformers_encoder(folder: Path, device: torch.device) -> tuple[Any, Rust]:
    """A foreign teacher's encoder, in half precision on a GPU, and its tokenizer."""
    transformers = need("transformers", "distill", "a teacher")
    from safetensors.torch import load_file

    (folder, _), (_, longest) = find_encoder(folder), find_reading_rules(folder)
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        model = transformers.AutoModel.from_config(config)
        prefix = f"{model.base_model_prefix}."
        state = {k.removeprefix(prefix): v.float() for k, v in load_file(str(folder / "model.safetensors")).items()}
        rust = Rust.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers and transformers raise what they like
        raise AlbertkitError(f"{folder} is no sentence encoder that can be opened: {str(error)[:160]}") from None
    missing, _ = model.load_state_dict(state, strict=False)
    lost = [name for name in missing if "pooler" not in name and "position_ids" not in name]
    if lost:
        raise AlbertkitError(f"{folder}/model.safetensors lacks {lost[0]!r}")
    rust.no_padding()
    rust.enable_truncation(min(longest, max_positions(model)))
    model = model.to(device).eval()
    return (model.half() if device.type == "cuda" else model), rust


@dataclass(frozen=True)
class TokenIds:
    """Texts as token ids, one after the other."""

    flat: np.ndarray
    lengths: np.ndarray


def read(reader: Reader, texts: Sequence[str]) -> TokenIds | list[str]:
    """Texts as a teacher takes them: as they are, or as the ids of a foreign one's tokenizer."""
    if reader is None:
        return list(texts)
    rust, prompt = reader
    found = [np.array(one.ids, np.int32) for one in rust.encode_batch_fast([prompt + text for text in texts])]
    return TokenIds(np.concatenate(found), np.array([len(ids) for ids in found]))


@torch.inference_mode()
def encode(model: Any, ids: TokenIds, device: torch.device, pooling: str = "mean") -> torch.Tensor:
    """Mean, first or largest of the last hidden states of each text, length 1, (texts, width)."""
    begins = np.cumsum(ids.lengths) - ids.lengths
    order = np.argsort(ids.lengths, kind="stable")
    out = torch.empty(len(order), model.config.hidden_size)
    start = 0
    while start < len(order):
        last = min(start + ROWS, len(order)) - 1
        places = order[start : start + max(1, min(ROWS, TOKENS // max(1, int(ids.lengths[order[last]]))))]
        lengths = ids.lengths[places]
        inside = np.arange(lengths.max()) < lengths[:, None]  # (texts, longest)
        table = np.zeros(inside.shape, np.int32)
        table[inside] = gather_spans(ids.flat, begins[places], lengths)
        mask = torch.from_numpy(inside).to(device)
        tokens = torch.from_numpy(table).to(device).long()
        hidden = model(input_ids=tokens, attention_mask=mask).last_hidden_state.float()
        if pooling == "cls":
            pooled = hidden[:, 0]
        elif pooling == "max":
            pooled = hidden.masked_fill(~mask[..., None], -torch.inf).amax(1)
        else:
            pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        out[places] = F.normalize(pooled, dim=-1).cpu()
        start += len(places)
    return out


class VectorTeacher:
    """A teacher that gives vectors to texts."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.device = device
        self.albert, self.model = None, None
        self.reader: Reader = None
        if is_albert(folder):
            from albertkit.albert import Albert

            self.albert = Albert(folder, device=device.type)
            self.width = self.albert.dim
        else:
            self.pooling = find_encoder(folder)[1]
            self.model, rust = load_transformers_encoder(folder, device)
            self.reader = rust, find_reading_rules(folder)[0]
            self.width = self.model.config.hidden_size

    def encode(self, given: TokenIds | list[str]) -> torch.Tensor:
        """(texts, width), length 1, of what `read` gave."""
        if self.albert is not None:
            assert isinstance(given, list)
            return torch.from_numpy(self.albert.embed(given, long_texts="truncate", normalize=True))
        assert isinstance(given, TokenIds)
        return encode(self.model, given, self.device, self.pooling)


class TeacherEnsemble:
    """Several teachers, side by side; those with equal tokenizers read once."""

    def __init__(self, folders: Sequence[Path], device: torch.device) -> None:
        self.all = [VectorTeacher(folder, device) for folder in folders]
        self.widths = [one.width for one in self.all]
        written: list[TextReaderSpec] = [one.reader and (one.reader[0].to_str(), one.reader[1]) for one in self.all]
        readers = {text: one.reader for text, one in zip(written, self.all, strict=True)}
        self.tokenizers, self.readers = list(readers), list(readers.values())
        """The different ones, as text and as they are; None is for teachers that read text."""
        self.of = [self.tokenizers.index(one) for one in written]

    def encode(self, given: Sequence[TokenIds | list[str]]) -> np.ndarray:
        """(texts, sum of widths), float16, of what each of `tokenizers` gave."""
        found = [one.encode(given[place]) for one, place in zip(self.all, self.of, strict=True)]
        return torch.cat(found, 1).half().numpy()

    def speak(self, texts: Sequence[str]) -> np.ndarray:
        """The same, of texts."""
        return self.encode([read(one, texts) for one in self.readers])


_tokenizer: Tokenizer | None = None
_readers: list[Reader] = []


def _start(folder: str, readers: Sequence[TextReaderSpec], alone: bool) -> None:
    global _tokenizer, _readers
    if not alone:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the others read too
    _tokenizer = Tokenizer.load(folder)
    _readers = [one and (Rust.from_str(one[0]), one[1]) for one in readers]


def _read(flat: np.ndarray, ends: np.ndarray) -> list[TokenIds | list[str]]:
    assert _tokenizer is not None
    texts = [_tokenizer.decode(row.tolist()) for row in np.split(flat, ends[:-1])]
    return [read(one, texts) for one in _readers]


def chunks(
    passages: Passages, tokenizer: Path, readers: Sequence[TextReaderSpec], workers: int
) -> Iterator[list[TokenIds | list[str]]]:
    """The passages as each of the readers takes them, chunk by chunk, in order."""

    def cut(start: int) -> tuple[np.ndarray, np.ndarray]:
        ends = np.asarray(passages.ends[start : start + CHUNK])
        first = int(passages.ends[start - 1]) if start else 0
        return np.asarray(passages.ids[first : ends[-1]]), ends - first

    starts = range(0, len(passages), CHUNK)
    given = (str(tokenizer), readers, workers <= 1)
    if workers <= 1:
        _start(*given)
        for start in starts:
            yield _read(*cut(start))
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=given) as pool:
        waiting: deque[Future[list[TokenIds | list[str]]]] = deque()
        for start in starts:
            waiting.append(pool.submit(_read, *cut(start)))
            if len(waiting) >= 4 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def passage_targets(
    passages: Passages,
    tokenizer: Path,
    mixture: TeacherMixture,
    dim: int,
    device: torch.device,
    workers: int = 1,
    own: StudentVectors | None = None,
) -> np.ndarray:
    """The target of every passage, float16 (texts, dim)."""
    if len(mixture.folders) != len(mixture.weights):
        raise AlbertkitError("give one weight for each teacher")
    loaded = TeacherEnsemble(mixture.folders, device)
    raw = np.empty((len(passages), sum(loaded.widths)), np.float16)
    at = 0
    cut = chunks(passages, tokenizer, loaded.tokenizers, workers)
    for given in tqdm(cut, total=-(-len(passages) // CHUNK), desc="teachers"):
        found = loaded.encode(given)
        raw[at : at + len(found)] = found
        at += len(found)
    return mix_vectors(raw, loaded.widths, mixture.weights, dim, device, own)


def text_targets(
    given: Sequence[str],
    mixture: TeacherMixture,
    dim: int,
    device: torch.device,
    keep: Callable[[Sequence[str], Callable[[], np.ndarray]], np.ndarray] = lambda chunk, compute: compute(),
) -> np.ndarray:
    """Targets of texts, float16 (texts, width): one teacher's vectors as they are, where they are as wide as the student's; else the mixture's.

    keep: gets each chunk of texts and a function that computes its vectors, and may have them from before.
    """
    loaded = TeacherEnsemble(mixture.folders, device)
    parts = [given[start : start + CHUNK] for start in range(0, len(given), CHUNK)]
    raw = np.concatenate(
        [keep(part, lambda part=part: loaded.speak(part)) for part in tqdm(parts, desc="teachers", disable=None)]  # type: ignore[misc]
    )
    if len(loaded.all) == 1 and raw.shape[1] == dim:
        return raw
    return mix_vectors(raw, loaded.widths, mixture.weights, dim, device)


def mix_vectors(
    raw: np.ndarray,
    widths: list[int],
    weights: Sequence[float],
    dim: int,
    device: torch.device | str = "cpu",
    own: StudentVectors | None = None,
) -> np.ndarray:
    """Teachers' vectors side by side (texts, sum of widths) → targets (texts, width), float16; turned towards `own`, if given."""
    sample = np.sort(np.random.default_rng(0).permutation(len(raw))[:SAMPLE])
    bounds = np.cumsum([0, *widths])
    parts = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), weights, strict=True))

    def sent(rows: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(rows).to(device).float()

    first = sent(raw[sample])
    means = [first[:, a:b].mean(0) for a, b, _ in parts]

    def joined(rows: torch.Tensor) -> torch.Tensor:
        centred = [weight * F.normalize(rows[:, a:b] - mean) for (a, b, weight), mean in zip(parts, means, strict=True)]
        return torch.cat(centred, 1)

    seen = joined(first)
    basis = torch.linalg.eigh(seen.T.double() @ seen.double())[1].flip(1)[:, :dim].float()  # strongest first
    if own is not None:
        few = np.sort(np.random.default_rng(1).permutation(len(sample))[:OWN])
        mine = F.normalize(own(sample[few]).to(device).float())
        left, _, right = torch.linalg.svd((seen[torch.from_numpy(few)] @ basis).T @ mine)
        basis = basis @ (left @ right)
    targets = np.empty((len(raw), basis.shape[1]), np.float16)
    for start in range(0, len(raw), MIXED):
        turned = F.normalize(joined(sent(raw[start : start + MIXED])) @ basis)
        targets[start : start + MIXED] = turned.half().cpu().numpy()
    return targets
