"""Corpus folders in small files, to be carried to a machine without network, and back into a corpus folder there.

    python travel.py pack shards parts --files 2
    python travel.py unpack parts shards

The bits of word starts follow from the vocabulary and the ends of sentences, so they are left out; ids are compressed by xz.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from albertkit.data.pieces import start_table
from albertkit.data.shards import Shards, ids, word_bit

FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 0, "lp": 1, "pb": 1, "dict_size": 1 << 26}]
NAMES = ("tokens", "sentences", "documents")


def compressed(folder: Path, name: str) -> bytes:
    """One shard: its ids without bits, then the lengths of its sentences and documents, as xz."""
    tokens, sentences, documents = (np.load(folder / f"{name}.{part}.npy") for part in NAMES)
    lengths = [np.diff(ends, prepend=0).astype(np.uint16) for ends in (sentences, documents)]
    assert int(np.diff(documents, prepend=0).max()) < 2**16
    return lzma.compress(
        ids(tokens).tobytes() + lengths[0].tobytes() + lengths[1].tobytes(), lzma.FORMAT_XZ, filters=FILTERS
    )


def pack(shards: Path, out: Path, files: int) -> None:
    """All shards, the manifest and the tokenizer, in about equal files."""
    out.mkdir(parents=True, exist_ok=True)
    manifest = json.loads((shards / "manifest.json").read_text())
    entries = [entry for split in manifest["splits"].values() for entry in split]
    with ProcessPoolExecutor(2) as pool:
        blobs = list(pool.map(compressed, [shards] * len(entries), [entry["name"] for entry in entries]))
    for entry, blob in zip(entries, blobs, strict=True):
        (out / f"{entry['name']}.xz").write_bytes(blob)
    shutil.copytree(shards / "tokenizer", out / "tokenizer", dirs_exist_ok=True)
    shutil.copy(shards / "manifest.json", out)
    shutil.copy(shards / "unigrams.npy", out)
    del files
    print(sum(map(len, blobs)), "bytes", {e["name"]: len(b) for e, b in zip(entries, blobs, strict=True)})


def restore(parts: Path, shards: Path, entry: dict, starts: np.ndarray) -> None:  # type: ignore[type-arg]
    """Write the three arrays of one shard."""
    data = np.frombuffer(lzma.decompress((parts / f"{entry['name']}.xz").read_bytes()), np.uint16)
    tokens = data[: entry["tokens"]].copy()
    rest = data[entry["tokens"] :]
    sentences = np.cumsum(rest[: entry["sentences"]], dtype=np.uint32)
    documents = np.cumsum(rest[entry["sentences"] :], dtype=np.uint32)
    bit = np.uint16(word_bit(np.uint16))
    tokens[starts[tokens]] |= bit
    tokens[np.concatenate([[0], sentences[:-1]])] |= bit
    for part, values in zip(NAMES, (tokens, sentences, documents), strict=True):
        name = f"{entry['name']}.{part}.npy"
        np.save(shards / name, values)


def unpack(parts: Path, shards: Path) -> None:
    """A corpus folder from what travelled; shards that are not there are left out of the manifest."""
    shards.mkdir(parents=True, exist_ok=True)
    shutil.copytree(parts / "tokenizer", shards / "tokenizer", dirs_exist_ok=True)
    shutil.copy(parts / "unigrams.npy", shards)
    manifest = json.loads((parts / "manifest.json").read_text())
    from albertkit.tokenizer import Tokenizer

    starts = start_table(Tokenizer.load(parts / "tokenizer"))
    for split, entries in manifest["splits"].items():
        there = [entry for entry in entries if (parts / f"{entry['name']}.xz").is_file()]
        if len(there) < len(entries):
            print(f"{split}: {len(there)} of {len(entries)} shards")
            assert there == entries[: len(there)]
        manifest["splits"][split] = there
    every = [entry for entries in manifest["splits"].values() for entry in entries]
    with ProcessPoolExecutor(8) as pool:
        list(pool.map(restore, *zip(*((parts, shards, entry, starts) for entry in every), strict=True)))
    (shards / "manifest.json").write_text(json.dumps(manifest))
    for entry in every:
        for name, wanted in entry["files"].items():
            found = hashlib.sha256((shards / name).read_bytes()).hexdigest()
            assert found == wanted, (name, found, wanted)
    print("unpacked", sum(len(s.tokens) for s in Shards.open(shards).split("train")), "training tokens")


if __name__ == "__main__":
    {"pack": lambda: pack(Path(sys.argv[2]), Path(sys.argv[3]), 2), "unpack": lambda: unpack(Path(sys.argv[2]), Path(sys.argv[3]))}[
        sys.argv[1]
    ]()
