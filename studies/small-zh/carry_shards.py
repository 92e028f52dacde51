"""Shards from the machine that made them to the one that trains on them, in small files.

    python studies/small-zh/carry_shards.py pack SHARDS PARTS       # one xz file per shard
    python studies/small-zh/carry_shards.py unpack PARTS SHARDS     # the same folder, checked against its hashes

The files may arrive in several turns: unpack restores the shards that are there. Word starts follow from the vocabulary
and the ends of sentences, so only ids and lengths are packed: 47 M tokens take 56.7 MB instead of 101 MB. For
vocabularies up to 32,768 tokens.
"""

from __future__ import annotations

import json
import lzma
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[2] / "src")]

from albertkit.artifact import digest  # noqa: E402
from albertkit.data.document_tokenizer import word_start_table  # noqa: E402
from albertkit.data.shards import Shards, token_ids, word_bit  # noqa: E402
from albertkit.tokenizer import Tokenizer  # noqa: E402

FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 1, "pb": 1, "dict_size": 1 << 26}]
ARRAYS = ("tokens", "sentences", "documents")


def pack_shard(shards: Path, parts: Path, name: str) -> int:
    """Ids without word starts, then tokens per sentence and sentences per document; returns the bytes written."""
    tokens, sentences, documents = (np.load(shards / f"{name}.{array}.npy") for array in ARRAYS)
    lengths = [np.diff(ends, prepend=0) for ends in (sentences, documents)]
    if max(int(values.max()) for values in lengths) >= 2**16:
        raise SystemExit(f"{name} has a document of more than 65,535 sentences; split it")
    data = [token_ids(tokens), *(values.astype(np.uint16) for values in lengths)]
    packed = lzma.compress(b"".join(values.tobytes() for values in data), lzma.FORMAT_XZ, filters=FILTERS)
    return (parts / f"{name}.xz").write_bytes(packed)


def pack(shards: Path, parts: Path) -> None:
    """Write one file per shard, the manifest and the tokenizer."""
    parts.mkdir(parents=True, exist_ok=True)
    manifest = json.loads((shards / "manifest.json").read_text(encoding="utf-8"))
    names = [entry["name"] for entries in manifest["splits"].values() for entry in entries]
    with ProcessPoolExecutor() as pool:
        sizes = list(pool.map(pack_shard, [shards] * len(names), [parts] * len(names), names))
    shutil.copytree(shards / "tokenizer", parts / "tokenizer", dirs_exist_ok=True)
    for name in ("manifest.json", "unigrams.npy"):
        shutil.copy(shards / name, parts)
    print(f"{len(names)} shards, {sum(sizes) / 1e6:.1f} MB")


def unpack_shard(parts: Path, shards: Path, entry: dict, starts: np.ndarray) -> None:  # type: ignore[type-arg]
    """Write the arrays of one shard and compare them with their hashes."""
    data = np.frombuffer(lzma.decompress((parts / f"{entry['name']}.xz").read_bytes()), np.uint16)
    tokens, lengths = data[: entry["tokens"]].copy(), data[entry["tokens"] :]
    sentences = np.cumsum(lengths[: entry["sentences"]], dtype=np.uint32)
    documents = np.cumsum(lengths[entry["sentences"] :], dtype=np.uint32)
    bit = np.uint16(word_bit(np.uint16))
    tokens[starts[tokens]] |= bit
    tokens[np.concatenate([[0], sentences[:-1]])] |= bit
    for array, values in zip(ARRAYS, (tokens, sentences, documents), strict=True):
        path = shards / f"{entry['name']}.{array}.npy"
        np.save(path, values)
        if digest(path) != entry["files"][path.name]:
            raise SystemExit(f"{path} differs from the shard that was packed")


def unpack(parts: Path, shards: Path) -> None:
    """A corpus folder of the shards that have arrived."""
    shutil.copytree(parts / "tokenizer", shards / "tokenizer", dirs_exist_ok=True)
    shutil.copy(parts / "unigrams.npy", shards)
    manifest = json.loads((parts / "manifest.json").read_text(encoding="utf-8"))
    starts = word_start_table(Tokenizer.load(parts / "tokenizer"))
    for split, entries in manifest["splits"].items():
        arrived = [entry for entry in entries if (parts / f"{entry['name']}.xz").is_file()]
        if arrived != entries[: len(arrived)]:
            raise SystemExit(f"shards of {split!r} must arrive in order")
        manifest["splits"][split] = arrived
        with ProcessPoolExecutor() as pool:
            count = len(arrived)
            list(pool.map(unpack_shard, [parts] * count, [shards] * count, arrived, [starts] * count))
    (shards / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    print(sum(len(shard.tokens) for shard in Shards.open(shards).split("train")), "training tokens")


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("pack", "unpack"):
        raise SystemExit(__doc__)
    {"pack": pack, "unpack": unpack}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
