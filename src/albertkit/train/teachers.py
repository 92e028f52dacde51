"""Teachers: ALBERT models for vectors and hidden states, and BERT-like sentence encoders for vectors.

In: `Passages` or texts, and model folders. Out: one target vector per text, or a module that computes hidden states.
The vectors of all teachers are centred, scaled to length 1, weighted and concatenated. A principal component analysis
reduces them to the student's width, components in order of variance. Next: `distill.py`.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer as RustTokenizer
from torch import nn
from tqdm import tqdm

from albertkit.albert import Albert
from albertkit.artifact import METADATA_FILE, Artifact, model_folder, require_tokenizer
from albertkit.data.passages import Passages
from albertkit.errors import AlbertkitError, need
from albertkit.file_io import digest, read_json
from albertkit.interop import sentence_transformers
from albertkit.interop.convert import open_model, open_stored
from albertkit.model import AlbertModel, Batch
from albertkit.model.encoder import EncoderOutput
from albertkit.tokenizer import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_LENGTH = 256  # maximum tokens per text for an encoder of transformers
CHUNK = 8192  # texts encoded together
COMPARED_TEXTS = 64  # texts used to compare two tokenizers
MAX_ROWS = 4096  # texts at once on the device
MAX_TOKENS = 131_072  # tokens at once on the device
SAMPLE = 100_000  # texts from which the principal components are computed
ROTATED_ROWS = 65_536  # texts rotated at once


@dataclass(frozen=True)
class TeacherMixture:
    """Teachers, and the weight of each teacher's vectors."""

    folders: tuple[Path, ...]
    weights: tuple[float, ...]


# Folders ---------------------------------------------------------------------------------------------------------


def is_albert(folder: Path | str | None) -> bool:
    """Whether a folder is an artifact, or an ALBERT checkpoint of another project."""
    try:
        place = read_encoder_folder(model_folder(folder)).path
        if (place / METADATA_FILE).is_file() or not (place / "config.json").is_file():
            return True  # the artifact reader raises an error that names what is missing
        return read_json(place / "config.json").get("model_type") in ("albert", "albertkit")
    except AlbertkitError:
        return False


@dataclass(frozen=True)
class EncoderFolder:
    """An encoder of another project: its folder, prefix, maximum length and pooling."""

    path: Path
    pooling: str = "mean"
    prompt: str = ""
    """The prefix of each text."""
    max_length: int = MAX_LENGTH


def read_encoder_folder(folder: Path) -> EncoderFolder:
    """The settings of a sentence-transformers folder; for any other folder, the defaults."""
    if not sentence_transformers.is_folder(folder):
        return EncoderFolder(folder)
    path, pooling = sentence_transformers.read_modules(folder)[:2]
    configs = sorted(path.glob("sentence_*_config.json"))
    length = read_json(configs[0]).get("max_seq_length") if configs else None
    length = min(MAX_LENGTH, length) if isinstance(length, int) and length > 2 else MAX_LENGTH
    prompt = sentence_transformers.read_prompts(folder).get("default", "")
    return EncoderFolder(path, pooling, prompt, length)


def teacher_identity(folder: Path) -> str:
    """A hash of everything that determines a teacher's vectors: weights, tokenization and pooling."""
    parts: tuple[object, ...]
    if is_albert(folder):
        parts = (open_stored(folder).identity,)
    else:
        encoder = read_encoder_folder(model_folder(folder))
        files = [encoder.path / name for name in ("config.json", "model.safetensors", "tokenizer.json")]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise AlbertkitError(
                f"{encoder.path} has no {missing[0]}. Pass an ALBERT model, or a folder with config.json, "
                "model.safetensors and tokenizer.json."
            )
        parts = (*map(digest, files), encoder.pooling, encoder.prompt, encoder.max_length)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def teacher_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a teacher."""
    if not is_albert(folder):
        return Tokenizer.load(read_encoder_folder(folder).path)
    return require_tokenizer(open_stored(folder), str(folder))


def max_positions(model: PreTrainedModel) -> int:
    """The maximum length of an encoder of transformers; RoBERTa numbers positions from after the padding id."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, torch.nn.Embedding):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return getattr(model.config, "max_position_embeddings", None) or 512


def load_transformers_encoder(encoder: EncoderFolder, device: torch.device) -> tuple[PreTrainedModel, RustTokenizer]:
    """An encoder of transformers, in half precision on a GPU, and its tokenizer."""
    transformers = need("transformers", "distill", "a teacher")
    from safetensors.torch import load_file

    folder = encoder.path
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        model = transformers.AutoModel.from_config(config)
        prefix = f"{model.base_model_prefix}."
        state = {k.removeprefix(prefix): v.float() for k, v in load_file(str(folder / "model.safetensors")).items()}
        tokenizer = RustTokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers and transformers raise many types
        raise AlbertkitError(f"{folder} cannot be opened as a sentence encoder: {str(error)[:160]}") from None
    missing, _ = model.load_state_dict(state, strict=False)
    required = [name for name in missing if "pooler" not in name and "position_ids" not in name]
    if required:
        raise AlbertkitError(f"{folder}/model.safetensors lacks {required[0]!r}. Download the file again.")
    tokenizer.no_padding()
    tokenizer.enable_truncation(min(encoder.max_length, max_positions(model)))
    model = model.to(device).eval()
    return (model.half() if device.type == "cuda" else model), tokenizer


# Hidden states ---------------------------------------------------------------------------------------------------


class AlbertTeacher(nn.Module):
    """The encoder of an ALBERT model, whose hidden states are distilled."""

    def __init__(self, artifact: Artifact) -> None:
        super().__init__()
        encoder = {n: a for n, a in artifact.weights.items() if n.startswith("encoder.")}
        self.model = AlbertModel.from_artifact(Artifact(artifact.config, encoder, None)).requires_grad_(False)
        self.width, self.max_length = artifact.config.hidden_size, artifact.config.max_position_embeddings

    def forward(self, batch: Batch) -> EncoderOutput:
        encoded: EncoderOutput = self.model.encoder(batch, keep_layers=True)
        return encoded


def open_state_teacher(folder: Path, student: Tokenizer, texts: Sequence[str]) -> AlbertTeacher:
    """A teacher whose hidden states are distilled: an ALBERT model with the student's vocabulary."""
    if not is_albert(folder):
        raise AlbertkitError(f"{folder} is not an ALBERT model, so only its vectors can be distilled. Omit hidden.")
    artifact, tokenizer = open_model(folder), teacher_tokenizer(folder)
    if artifact.config.options.static:
        raise AlbertkitError(f"{folder} is a static model, which has no hidden states. Distill its vectors.")
    sample = list(texts)[:COMPARED_TEXTS]
    ids, own_ids = ([e.ids for e in one.encode_batch(sample)] if sample else [] for one in (tokenizer, student))
    if tokenizer.vocabulary.ids != student.vocabulary.ids or ids != own_ids:
        raise AlbertkitError(
            f"{folder} splits text differently from the student, but hidden states are compared token by token. Use a "
            "student with the teacher's vocabulary (--shape does), or distill vectors or logits."
        )
    return AlbertTeacher(artifact)


# Texts to vectors ------------------------------------------------------------------------------------------------


@torch.inference_mode()
def encode_ids(
    model: PreTrainedModel, ids: Sequence[Sequence[int]], device: torch.device, pooling: str = "mean"
) -> torch.Tensor:
    """Unit vectors, (texts, width): mean, first or maximum of the last hidden states."""
    lengths = np.array([len(row) for row in ids])
    order = np.argsort(lengths, kind="stable")
    out = torch.empty(len(order), model.config.hidden_size)
    start = 0
    while start < len(order):
        longest = int(lengths[order[min(start + MAX_ROWS, len(order)) - 1]])
        places = order[start : start + max(1, min(MAX_ROWS, MAX_TOKENS // max(1, longest)))]
        inside = np.arange(lengths[places].max()) < lengths[places, None]  # (texts, longest)
        table = np.zeros(inside.shape, np.int64)
        table[inside] = np.concatenate([ids[place] for place in places])
        mask = torch.from_numpy(inside).to(device)
        hidden = model(input_ids=torch.from_numpy(table).to(device), attention_mask=mask).last_hidden_state.float()
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
        if is_albert(folder):
            self.albert = Albert(folder, device=device.type)
            self.width = self.albert.dim
        else:
            self.encoder = read_encoder_folder(folder)
            self.model, self.tokenizer = load_transformers_encoder(self.encoder, device)
            self.width = self.model.config.hidden_size

    def encode(self, texts: Sequence[str]) -> torch.Tensor:
        """Unit vectors, (texts, width)."""
        if self.albert is not None:
            return torch.from_numpy(self.albert.embed(list(texts), long_texts="truncate", normalize=True))
        assert self.model is not None
        encodings = self.tokenizer.encode_batch_fast([self.encoder.prompt + text for text in texts])
        return encode_ids(self.model, [encoding.ids for encoding in encodings], self.device, self.encoder.pooling)


class TeacherEnsemble:
    """Several teachers."""

    def __init__(self, folders: Sequence[Path], device: torch.device) -> None:
        self.teachers = [VectorTeacher(folder, device) for folder in folders]
        self.widths = [teacher.width for teacher in self.teachers]

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Concatenated vectors (texts, sum of widths), float16."""
        return torch.cat([teacher.encode(texts) for teacher in self.teachers], 1).half().numpy()

    def encode_chunks(self, chunks: Iterable[Sequence[str]], count: int) -> np.ndarray:
        """The same for `count` texts in chunks of `CHUNK`."""
        vectors = np.empty((count, sum(self.widths)), np.float16)
        for number, texts in enumerate(tqdm(chunks, total=-(-count // CHUNK), desc="teachers", disable=None)):
            vectors[number * CHUNK : number * CHUNK + len(texts)] = self.encode(texts)
        return vectors


_load_tokenizer = cache(Tokenizer.load)  # once in each process


def _decode(tokenizer: Path, flat: np.ndarray, ends: np.ndarray) -> list[str]:
    return [_load_tokenizer(tokenizer).decode(row.tolist()) for row in np.split(flat, ends[:-1])]


def passage_texts(passages: Passages, tokenizer: Path, workers: int) -> Iterator[list[str]]:
    """The passages as texts, chunk by chunk, in order."""

    def chunk(start: int) -> tuple[Path, np.ndarray, np.ndarray]:
        ends = np.asarray(passages.ends[start : start + CHUNK])
        first = int(passages.ends[start - 1]) if start else 0
        return tokenizer, np.asarray(passages.ids[first : ends[-1]]), ends - first

    starts = range(0, len(passages), CHUNK)
    if workers <= 1:
        yield from (_decode(*chunk(start)) for start in starts)
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        waiting: deque[Future[list[str]]] = deque()
        for start in starts:
            waiting.append(pool.submit(_decode, *chunk(start)))
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
) -> np.ndarray:
    """The target of every passage, float16 (texts, dim)."""
    teachers = TeacherEnsemble(mixture.folders, device)
    raw = teachers.encode_chunks(passage_texts(passages, tokenizer, workers), len(passages))
    return mix_vectors(raw, teachers.widths, mixture.weights, dim, device)


def text_targets(texts: Sequence[str], mixture: TeacherMixture, dim: int, device: torch.device) -> np.ndarray:
    """Targets of texts, float16 (texts, dim). Vectors of a single teacher are unchanged if they have width `dim`."""
    teachers = TeacherEnsemble(mixture.folders, device)
    chunks = (texts[start : start + CHUNK] for start in range(0, len(texts), CHUNK))
    raw = teachers.encode_chunks(chunks, len(texts))
    if len(teachers.teachers) == 1 and raw.shape[1] == dim:
        return raw
    return mix_vectors(raw, teachers.widths, mixture.weights, dim, device)


def mix_vectors(
    raw: np.ndarray, widths: list[int], weights: Sequence[float], dim: int, device: torch.device | str = "cpu"
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
    targets = np.empty((len(raw), basis.shape[1]), np.float16)
    for start in range(0, len(raw), ROTATED_ROWS):
        rotated = F.normalize(weigh(to_device(raw[start : start + ROTATED_ROWS])) @ basis)
        targets[start : start + ROTATED_ROWS] = rotated.half().cpu().numpy()
    return targets
