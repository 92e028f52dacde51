"""Teachers of sentence vectors: ALBERT models, and BERT-like sentence encoders of other projects.

In: `Passages` or texts, and model folders. Out: one target vector per text. After this file: `distill.py`.

The vectors of all teachers are centred, scaled to length 1, weighted and concatenated; a principal component analysis
rotates them so that the first numbers carry most, and they are cut to the student's width. A student that was trained
on the same teachers before keeps its axes: the targets are rotated towards its vectors (orthogonal Procrustes).
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer as RustTokenizer
from tqdm import tqdm

from albertkit.albert import Albert
from albertkit.artifact import METADATA_FILE, model_folder
from albertkit.data.passages import Passages, gather_spans
from albertkit.errors import AlbertkitError, need
from albertkit.file_io import digest, read_json
from albertkit.interop import sentence_transformers
from albertkit.interop.convert import open_stored
from albertkit.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_LENGTH = 256  # most tokens of a text that an encoder of transformers reads
CHUNK = 8192  # texts tokenized together
MAX_ROWS = 4096  # texts at once on the device
MAX_TOKENS = 131_072  # tokens at once on the device
SAMPLE = 100_000  # texts from which the principal components are computed
ALIGNMENT_SAMPLE = 30_000  # texts from which the rotation towards a student's vectors is computed
ROTATED_ROWS = 65_536  # texts rotated at once

StudentVectors = Callable[[np.ndarray], torch.Tensor]
"""From ascending numbers of texts to the vectors that the student computes for them now."""
Keep = Callable[[Sequence[str], Callable[[], np.ndarray]], np.ndarray]
"""Gets a chunk of texts and a function that computes its vectors; may return stored ones."""


@dataclass(frozen=True)
class TeacherMixture:
    """Teachers, and the weight of each one's vectors."""

    folders: tuple[Path, ...]
    weights: tuple[float, ...]


# Folders ---------------------------------------------------------------------------------------------------------


def is_albert(folder: Path | str | None) -> bool:
    """Whether a folder is an artifact, or an ALBERT checkpoint of another project."""
    try:
        place, _ = find_encoder(model_folder(folder))
        if (place / METADATA_FILE).is_file() or not (place / "config.json").is_file():
            return True  # the reader of artifacts explains what is missing
        return read_json(place / "config.json").get("model_type") in ("albert", "albertkit")
    except AlbertkitError:
        return False


def find_encoder(folder: Path) -> tuple[Path, str]:
    """The folder of an encoder and its pooling: those of a sentence-transformers folder, otherwise the mean."""
    return (
        sentence_transformers.read_modules(folder)[:2] if sentence_transformers.is_folder(folder) else (folder, "mean")
    )


def find_prompt_and_length(folder: Path) -> tuple[str, int]:
    """The prompt before each text and the most tokens read: of a sentence-transformers folder, or the defaults."""
    if not sentence_transformers.is_folder(folder):
        return "", MAX_LENGTH
    configs = sorted(find_encoder(folder)[0].glob("sentence_*_config.json"))
    length = read_json(configs[0]).get("max_seq_length") if configs else None
    prompt = sentence_transformers.read_prompts(folder).get("default", "")
    return prompt, min(MAX_LENGTH, length) if isinstance(length, int) and length > 2 else MAX_LENGTH


def teacher_identity(folder: Path) -> str:
    """A hash of what decides a teacher's vectors: its weights, and how it reads and pools."""
    parts: tuple[Any, ...]
    if is_albert(folder):
        stored = open_stored(folder)
        meta = stored.metadata
        parts = (stored.identity, stored.config, meta.pooling, meta.normalize, meta.depth, meta.prompts)
    else:
        place, pooling = find_encoder(model_folder(folder))
        files = [place / name for name in ("config.json", "model.safetensors", "tokenizer.json")]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise AlbertkitError(
                f"{place} has no {missing[0]}. Name an ALBERT model, or a folder with config.json, model.safetensors "
                "and tokenizer.json."
            )
        parts = (*map(digest, files), pooling, find_prompt_and_length(model_folder(folder)))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def teacher_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a teacher."""
    if not is_albert(folder):
        return Tokenizer.load(find_encoder(folder)[0])
    tokenizer = open_stored(folder).tokenizer
    if tokenizer is None:
        raise AlbertkitError(f"{folder} has no tokenizer. Start from a student that has one (--model).")
    return tokenizer


def max_positions(model: PreTrainedModel) -> int:
    """The most tokens that an encoder of transformers reads; RoBERTa counts from after the position of the padding."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, torch.nn.Embedding):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return getattr(model.config, "max_position_embeddings", None) or 512


def load_transformers_encoder(folder: Path, device: torch.device) -> tuple[PreTrainedModel, RustTokenizer]:
    """An encoder of transformers, in half precision on a GPU, and its tokenizer."""
    transformers = need("transformers", "distill", "a teacher")
    from safetensors.torch import load_file

    (folder, _), (_, max_length) = find_encoder(folder), find_prompt_and_length(folder)
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        model = transformers.AutoModel.from_config(config)
        prefix = f"{model.base_model_prefix}."
        state = {k.removeprefix(prefix): v.float() for k, v in load_file(str(folder / "model.safetensors")).items()}
        tokenizer = RustTokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers and transformers raise many kinds
        raise AlbertkitError(f"{folder} cannot be opened as a sentence encoder: {str(error)[:160]}") from None
    missing, _ = model.load_state_dict(state, strict=False)
    required = [name for name in missing if "pooler" not in name and "position_ids" not in name]
    if required:
        raise AlbertkitError(f"{folder}/model.safetensors lacks {required[0]!r}. Download the file again.")
    tokenizer.no_padding()
    tokenizer.enable_truncation(min(max_length, max_positions(model)))
    model = model.to(device).eval()
    return (model.half() if device.type == "cuda" else model), tokenizer


# Texts to vectors ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenIds:
    """Texts as token ids, one after the other."""

    flat: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True)
class PromptTokenizer:
    """How an encoder of transformers reads texts: its tokenizer, as JSON to share with processes, and a prompt."""

    json: str
    prompt: str

    def tokenize(self, texts: Sequence[str]) -> TokenIds:
        """Token ids of the texts."""
        prompted = [self.prompt + text for text in texts]
        ids = [np.array(one.ids, np.int32) for one in _open_tokenizer(self.json).encode_batch_fast(prompted)]
        return TokenIds(np.concatenate(ids), np.array([len(row) for row in ids]))


@cache
def _open_tokenizer(json: str) -> RustTokenizer:
    return RustTokenizer.from_str(json)


Reader = PromptTokenizer | None
"""None: a teacher that reads texts themselves."""
Inputs = TokenIds | list[str]


def read_texts_as(reader: Reader, texts: Sequence[str]) -> Inputs:
    """Texts as the input of a teacher."""
    return list(texts) if reader is None else reader.tokenize(texts)


@torch.inference_mode()
def encode_ids(model: PreTrainedModel, ids: TokenIds, device: torch.device, pooling: str = "mean") -> torch.Tensor:
    """Mean, first or maximum of the last hidden states of each text, length 1, (texts, width)."""
    starts = np.cumsum(ids.lengths) - ids.lengths
    order = np.argsort(ids.lengths, kind="stable")
    out = torch.empty(len(order), model.config.hidden_size)
    start = 0
    while start < len(order):
        last = min(start + MAX_ROWS, len(order)) - 1
        places = order[start : start + max(1, min(MAX_ROWS, MAX_TOKENS // max(1, int(ids.lengths[order[last]]))))]
        lengths = ids.lengths[places]
        inside = np.arange(lengths.max()) < lengths[:, None]  # (texts, longest)
        table = np.zeros(inside.shape, np.int32)
        table[inside] = gather_spans(ids.flat, starts[places], lengths)
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
    """A teacher that computes vectors of texts."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        self.device = device
        self.albert, self.model = None, None
        self.reader: Reader = None
        if is_albert(folder):
            self.albert = Albert(folder, device=device.type)
            self.width = self.albert.dim
        else:
            self.pooling = find_encoder(folder)[1]
            self.model, tokenizer = load_transformers_encoder(folder, device)
            self.reader = PromptTokenizer(tokenizer.to_str(), find_prompt_and_length(folder)[0])
            self.width = self.model.config.hidden_size

    def encode(self, inputs: Inputs) -> torch.Tensor:
        """(texts, width), length 1."""
        if self.albert is not None:
            assert isinstance(inputs, list)
            return torch.from_numpy(self.albert.embed(inputs, long_texts="truncate", normalize=True))
        assert isinstance(inputs, TokenIds) and self.model is not None
        return encode_ids(self.model, inputs, self.device, self.pooling)


class TeacherEnsemble:
    """Several teachers; texts are tokenized once for those with equal tokenizers."""

    def __init__(self, folders: Sequence[Path], device: torch.device) -> None:
        self.teachers = [VectorTeacher(folder, device) for folder in folders]
        self.widths = [teacher.width for teacher in self.teachers]
        self.readers: list[Reader] = list(dict.fromkeys(teacher.reader for teacher in self.teachers))

    def encode(self, inputs: Sequence[Inputs]) -> np.ndarray:
        """(texts, sum of widths), float16, from the input of each of `readers`."""
        by_reader = dict(zip(self.readers, inputs, strict=True))
        vectors = [teacher.encode(by_reader[teacher.reader]) for teacher in self.teachers]
        return torch.cat(vectors, 1).half().numpy()

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """The same for texts."""
        return self.encode([read_texts_as(reader, texts) for reader in self.readers])


_tokenizer: Tokenizer | None = None
_readers: Sequence[Reader] = ()


def _start_reading(folder: str, readers: Sequence[Reader], alone: bool) -> None:
    global _tokenizer, _readers
    if not alone:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # other processes tokenize too
    _tokenizer, _readers = Tokenizer.load(folder), readers


def _read_passages(flat: np.ndarray, ends: np.ndarray) -> list[Inputs]:
    assert _tokenizer is not None
    texts = [_tokenizer.decode(row.tolist()) for row in np.split(flat, ends[:-1])]
    return [read_texts_as(reader, texts) for reader in _readers]


def teacher_inputs(
    passages: Passages, tokenizer: Path, readers: Sequence[Reader], workers: int
) -> Iterator[list[Inputs]]:
    """The passages as input of each of the readers, chunk by chunk, in order."""

    def chunk(start: int) -> tuple[np.ndarray, np.ndarray]:
        ends = np.asarray(passages.ends[start : start + CHUNK])
        first = int(passages.ends[start - 1]) if start else 0
        return np.asarray(passages.ids[first : ends[-1]]), ends - first

    starts = range(0, len(passages), CHUNK)
    arguments = (str(tokenizer), readers, workers <= 1)
    if workers <= 1:
        _start_reading(*arguments)
        for start in starts:
            yield _read_passages(*chunk(start))
        return
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_reading, initargs=arguments) as pool:
        waiting: deque[Future[list[Inputs]]] = deque()
        for start in starts:
            waiting.append(pool.submit(_read_passages, *chunk(start)))
            if len(waiting) >= 4 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


# Targets ---------------------------------------------------------------------------------------------------------


def passage_targets(
    passages: Passages,
    tokenizer: Path,
    mixture: TeacherMixture,
    dim: int,
    device: torch.device,
    workers: int = 1,
    student: StudentVectors | None = None,
) -> np.ndarray:
    """The target of every passage, float16 (texts, dim)."""
    if len(mixture.folders) != len(mixture.weights):
        raise AlbertkitError(f"{len(mixture.folders)} teachers have {len(mixture.weights)} weights. Pass one for each.")
    teachers = TeacherEnsemble(mixture.folders, device)
    raw = np.empty((len(passages), sum(teachers.widths)), np.float16)
    at = 0
    inputs = teacher_inputs(passages, tokenizer, teachers.readers, workers)
    for chunk in tqdm(inputs, total=-(-len(passages) // CHUNK), desc="teachers"):
        vectors = teachers.encode(chunk)
        raw[at : at + len(vectors)] = vectors
        at += len(vectors)
    return mix_vectors(raw, teachers.widths, mixture.weights, dim, device, student)


def text_targets(
    texts: Sequence[str],
    mixture: TeacherMixture,
    dim: int,
    device: torch.device,
    keep: Keep = lambda chunk, compute: compute(),
) -> np.ndarray:
    """Targets of texts, float16 (texts, dim); the vectors of one teacher unchanged, if they have `dim` numbers."""
    teachers = TeacherEnsemble(mixture.folders, device)
    chunks = [texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK)]
    raw = np.concatenate(
        [
            keep(chunk, lambda chunk=chunk: teachers.encode_texts(chunk))  # type: ignore[misc]
            for chunk in tqdm(chunks, desc="teachers", disable=None)
        ]
    )
    if len(teachers.teachers) == 1 and raw.shape[1] == dim:
        return raw
    return mix_vectors(raw, teachers.widths, mixture.weights, dim, device)


def mix_vectors(
    raw: np.ndarray,
    widths: list[int],
    weights: Sequence[float],
    dim: int,
    device: torch.device | str = "cpu",
    student: StudentVectors | None = None,
) -> np.ndarray:
    """Concatenated vectors of teachers (texts, sum of widths) → targets (texts, dim), float16."""
    sample = np.sort(np.random.default_rng(0).permutation(len(raw))[:SAMPLE])
    bounds = np.cumsum([0, *widths])
    parts = list(zip(bounds[:-1].tolist(), bounds[1:].tolist(), weights, strict=True))

    def to_device(rows: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(rows).to(device).float()

    sampled = to_device(raw[sample])
    means = [sampled[:, a:b].mean(0) for a, b, _ in parts]

    def weigh(rows: torch.Tensor) -> torch.Tensor:
        centred = [weight * F.normalize(rows[:, a:b] - mean) for (a, b, weight), mean in zip(parts, means, strict=True)]
        return torch.cat(centred, 1)

    weighted = weigh(sampled)
    basis = torch.linalg.eigh(weighted.T.double() @ weighted.double())[1].flip(1)[:, :dim].float()  # strongest first
    if student is not None:
        few = np.sort(np.random.default_rng(1).permutation(len(sample))[:ALIGNMENT_SAMPLE])
        vectors = F.normalize(student(sample[few]).to(device).float())
        left, _, right = torch.linalg.svd((weighted[torch.from_numpy(few)] @ basis).T @ vectors)
        basis = basis @ (left @ right)
    targets = np.empty((len(raw), basis.shape[1]), np.float16)
    for start in range(0, len(raw), ROTATED_ROWS):
        rotated = F.normalize(weigh(to_device(raw[start : start + ROTATED_ROWS])) @ basis)
        targets[start : start + ROTATED_ROWS] = rotated.half().cpu().numpy()
    return targets
