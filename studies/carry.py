"""Transfer of trained models between machines, in a few small files.

    python studies/carry.py pack OUT/elastic RUNS/*/{plain,elastic,fixed-4}/model     # writes OUT/elastic.tar.00, .01,
    … of at most 15 MiB each
    python studies/carry.py unpack elastic.tar.* --into PLACE                         # the same folders, under PLACE

Float weights are packed as float16 and unpacked as float32; quantised folders are unchanged. Files that several folders
share (the vocabulary) are packed once.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / "src")]

from albertkit.artifact import METADATA_FILE, read_artifact, read_metadata, write_artifact  # noqa: E402
from albertkit.file_io import digest  # noqa: E402

LIMIT = 15 * 2**20


def inside(folder: Path) -> Path:
    """Where a folder goes below the place of unpacking."""
    if folder.is_absolute() or ".." in folder.parts:
        raise SystemExit(f"{folder} is not below this folder; name folders as they lie below it")
    return folder


def halved(folder: Path, scratch: Path) -> Path:
    """The folder as it travels."""
    meta, _ = read_metadata(folder)
    if meta.quantization:
        return folder
    artifact = read_artifact(folder)
    with np.errstate(over="ignore"):  # found below
        weights = {name: array.astype(np.float16) for name, array in artifact.weights.items()}
    not_finite = [name for name, array in weights.items() if not np.isfinite(array).all()]
    if not_finite:
        raise SystemExit(f"{folder}: {not_finite[0]} does not fit into halves")
    return write_artifact(dataclasses.replace(artifact, weights=weights), scratch / folder)


def pack(out: Path, folders: Sequence[Path], limit: int = LIMIT) -> list[Path]:
    """Write the parts; says what each folder takes."""
    archive, first_copies = io.BytesIO(), dict[str, str]()
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(fileobj=archive, mode="w") as tar:
        for folder in map(inside, folders):
            if not (folder / METADATA_FILE).is_file():
                print(f"{folder}: not there, left out", flush=True)
                continue
            before = archive.tell()
            for path in sorted(halved(folder, Path(scratch)).iterdir()):
                name, mark = str(folder / path.name), digest(path)
                info = tar.gettarinfo(path, name)
                if mark in first_copies:
                    info.type, info.linkname, info.size = tarfile.LNKTYPE, first_copies[mark], 0
                    tar.addfile(info)
                    continue
                first_copies[mark] = name
                info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
                with path.open("rb") as file:
                    tar.addfile(info, file)
            print(f"{folder}: {(archive.tell() - before) / 1e6:.1f} MB", flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    data, parts = archive.getbuffer(), []
    for number, start in enumerate(range(0, len(data), limit)):
        part = out.with_name(f"{out.name}.tar.{number:02d}")
        part.write_bytes(data[start : start + limit])
        parts.append(part)
    print(f"{len(parts)} files, {len(data) / 2**20:.1f} MiB", flush=True)
    return parts


def unpack(parts: Sequence[Path], into: Path) -> list[Path]:
    """The folders again; those that are there are left alone."""
    archive = io.BytesIO(b"".join(path.read_bytes() for path in sorted(parts)))
    folders = []
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(fileobj=archive) as tar:
            tar.extractall(scratch, filter="data")
        for path in sorted(Path(scratch).rglob(METADATA_FILE)):
            folder = into / path.parent.relative_to(scratch)
            if (folder / METADATA_FILE).exists():
                print(f"{folder}: there already", flush=True)
                continue
            folder.parent.mkdir(parents=True, exist_ok=True)
            if read_metadata(path.parent)[0].quantization:
                shutil.copytree(path.parent, folder)
            else:
                write_artifact(read_artifact(path.parent), folder)
            folders.append(folder)
            print(folder, flush=True)
    return folders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    pack_parser = verbs.add_parser("pack")
    pack_parser.add_argument("out", type=Path)
    pack_parser.add_argument("folders", type=Path, nargs="+")
    two = verbs.add_parser("unpack")
    two.add_argument("parts", type=Path, nargs="+")
    two.add_argument("--into", type=Path, default=Path())
    args = parser.parse_args()
    pack(args.out, args.folders) if args.verb == "pack" else unpack(args.parts, args.into)


if __name__ == "__main__":
    main()
