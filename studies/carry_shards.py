"""Shards from the machine that made them to the one that trains on them, in small files.

    python studies/carry_shards.py pack SHARDS PARTS                # one xz file per shard, in PARTS/0, PARTS/1, …
    python studies/carry_shards.py unpack PARTS/0 [PARTS/1 …] SHARDS    # the same folder, checked against its hashes

Each folder of PARTS has at most 27 MB; the first has the held-out shards, the manifest and the tokenizer. They may arrive
in several turns: unpack restores the shards that are there. Word starts follow from the vocabulary and the ends of
sentences, so only ids and lengths are packed: 47 M tokens of Chinese take 56.7 MB instead of 101 MB. For vocabularies up
to 32,768 tokens.
"""

from __future__ import annotations

import json
import lzma
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / "src")]

from albertkit.artifact import digest  # noqa: E402
from albertkit.data.document_tokenizer import word_start_table  # noqa: E402
from albertkit.data.shards import Shards, token_ids, word_bit  # noqa: E402
from albertkit.tokenizer import Tokenizer  # noqa: E402

FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 1, "pb": 1, "dict_size": 1 << 26}]
LIMIT = 27_000_000  # bytes of a folder of parts
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
    first = parts / "0"
    shutil.copytree(shards / "tokenizer", first / "tokenizer", dirs_exist_ok=True)
    for name in ("manifest.json", "unigrams.npy"):
        shutil.copy(shards / name, first)
    manifest = json.loads((shards / "manifest.json").read_text(encoding="utf-8"))
    names = [entry["name"] for split in ("held-out", "train") for entry in manifest["splits"][split]]
    with ProcessPoolExecutor() as pool:
        sizes = list(pool.map(pack_shard, [shards] * len(names), [first] * len(names), names))
    number, used = 0, sum(path.stat().st_size for path in first.rglob("*") if path.suffix != ".xz")
    for name, size in zip(names, sizes, strict=True):
        if used + size > LIMIT:
            number, used = number + 1, 0
        used += size
        folder = parts / str(number)
        folder.mkdir(exist_ok=True)
        (first / f"{name}.xz").replace(folder / f"{name}.xz")
    print(f"{len(names)} shards, {sum(sizes) / 1e6:.1f} MB in {number + 1} folders")


def unpack_shard(packed: Path, shards: Path, entry: dict, starts: np.ndarray) -> None:  # type: ignore[type-arg]
    """Write the arrays of one shard and compare them with their hashes."""
    data = np.frombuffer(lzma.decompress(packed.read_bytes()), np.uint16)
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


def unpack(parts: list[Path], shards: Path) -> None:
    """A corpus folder of the shards that have arrived."""
    packed = {path.stem: path for folder in parts for path in folder.glob("*.xz")}
    (first,) = {path.parent for folder in parts for path in folder.glob("manifest.json")}
    shutil.copytree(first / "tokenizer", shards / "tokenizer", dirs_exist_ok=True)
    shutil.copy(first / "unigrams.npy", shards)
    manifest = json.loads((first / "manifest.json").read_text(encoding="utf-8"))
    starts = word_start_table(Tokenizer.load(first / "tokenizer"))
    for split, entries in manifest["splits"].items():
        arrived = [entry for entry in entries if entry["name"] in packed]
        if arrived != entries[: len(arrived)]:
            raise SystemExit(f"shards of {split!r} must arrive in order")
        manifest["splits"][split] = arrived
        files = [packed[entry["name"]] for entry in arrived]
        with ProcessPoolExecutor() as pool:
            count = len(arrived)
            list(pool.map(unpack_shard, files, [shards] * count, arrived, [starts] * count))
    (shards / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    print(sum(len(shard.tokens) for shard in Shards.open(shards).split("train")), "training tokens")


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[1] not in ("pack", "unpack"):
        raise SystemExit(__doc__)
    if sys.argv[1] == "pack":
        pack(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        unpack([Path(folder) for folder in sys.argv[2:-1]], Path(sys.argv[-1]))
