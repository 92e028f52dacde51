"""A model file cannot take more memory than it has bytes, nor block a reader. Each attack is opened in a process that
measures its own memory.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from albertkit.artifact import Artifact, ArtifactMetadata, read_stored, write_artifact, write_metadata
from albertkit.errors import AlbertkitError
from albertkit.interop.convert import open_stored
from albertkit.interop.layouts import export_layout
from albertkit.tokenizer import Tokenizer
from albertkit.transformers_folder import public_tensors
from albertkit.weights import encoder_shapes
from tests.conftest import SPIECE, tiny
from tests.faults import hostile_models as hostile
from tests.interop import bundle_writer

ALLOWED = 400 * 2**20  # bytes of memory above those of a small model
CHILD = """
import json, resource, sys
from albertkit import file_io
from albertkit.errors import AlbertkitError
from albertkit.interop.convert import open_model, open_stored
import google_crc32c
open_model("small")
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 3 * 2**30,) * 2)  # protects the machine if the test fails
limit = file_io.HOLES_FROM
for path in sys.argv[1:]:
    file_io.HOLES_FROM = limit if "hole" in path else 2**60  # each check must suffice alone
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        open_stored(path)
        message = "opened"
    except AlbertkitError as error:
        message = str(error)
    except BaseException as error:
        message = f"{type(error).__name__}: {error}"
    print(json.dumps([message, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024]), flush=True)
"""


def as_artifact(folder: Path, quantized: bool = False) -> Path:
    """The folder as an artifact without hashes; optionally its weights as those of a quantized model."""
    if quantized:
        (folder / "model.safetensors").rename(folder / "quantized.safetensors")
    write_metadata(folder, ArtifactMetadata(quantization="int8" if quantized else None), {})
    return folder


def gap(folder: Path) -> Path:
    return hostile.placed_safetensors(folder, 4)


def overlap(folder: Path) -> Path:
    return hostile.placed_safetensors(folder, -4)


TOO_LARGE = {"albert.embeddings.word_embeddings.weight": (hostile.LARGE, 128)}
UNKNOWN = {"albert.extra.weight": (hostile.LARGE, 128)}
OWN_HEAD = {"heads.mine.weight": (hostile.LARGE, 128)}

# name → function that writes the folder, words of the error
ATTACKS = {
    "safetensors_that_do_not_fit": (
        lambda f: hostile.sparse_safetensors(f, tiny(vocab_size=30_000), TOO_LARGE),
        ["config.json requires (30000, 16)"],
    ),
    "safetensors_of_an_artifact": (
        lambda f: as_artifact(hostile.sparse_safetensors(f, tiny(vocab_size=30_000), TOO_LARGE)),
        ["config.json requires (30000, 16)"],
    ),
    "safetensors_of_a_quantized_model": (
        lambda f: as_artifact(hostile.sparse_safetensors(f, tiny(vocab_size=30_000), UNKNOWN), quantized=True),
        ["encoder.embeddings.word.weight"],
    ),
    "safetensors_with_an_unknown_tensor": (
        lambda f: hostile.sparse_safetensors(f, tiny(vocab_size=30_000), UNKNOWN),
        ["'albert.extra.weight'"],
    ),
    "safetensors_with_holes_that_fit": (
        lambda f: hostile.sparse_safetensors(f, hostile.large(), {}),
        ["model.safetensors", "holes", "Copy the model again"],
    ),
    "safetensors_with_holes_in_a_head": (
        lambda f: hostile.sparse_safetensors(f, tiny(vocab_size=30_000), OWN_HEAD),
        ["model.safetensors", "holes"],
    ),
    "safetensors_with_a_gap": (gap, ["model.safetensors", "begins at byte"]),
    "safetensors_with_an_overlap": (overlap, ["model.safetensors", "begins at byte"]),
    "pickle_with_stride_0": (lambda f: hostile.stride_zero(f, legacy=False), ["pytorch_model.bin", "stride"]),
    "old_pickle_with_stride_0": (lambda f: hostile.stride_zero(f, legacy=True), ["pytorch_model.bin", "stride"]),
    "pickle_with_a_shared_storage": (hostile.shared_storage, ["share", "bytes"]),
    "deflated_pickle": (hostile.deflated, ["pytorch_model.bin", "compressed"]),
    "pickle_with_overlapping_records": (hostile.overlapping_records, ["pytorch_model.bin", "overlap"]),
    "pickle_with_many_records": (hostile.many_records, ["pytorch_model.bin", "directory"]),
    "pickle_that_claims_more_than_it_has": (hostile.shortened_record, ["pytorch_model.bin", "64 bytes"]),
    "tensorflow_tensors_with_the_same_bytes": (hostile.aliased_bundle, ["share", "bytes"]),
    "tensorflow_tensors_that_do_not_fit": (hostile.oversized_bundle, ["config.json requires (30000, 16)"]),
    "onnx_graph_of_empty_nodes": (hostile.crowded_onnx, ["x.onnx", "100,000 parts"]),
    "onnx_matrices_with_the_same_bytes": (hostile.aliased_onnx, ["share", "bytes"]),
}


def open_all(paths: Iterable[Path]) -> list[tuple[str, int]]:
    """The error of each model and the memory it took, all from one process."""
    command = [sys.executable, "-c", CHILD, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Attack → its error and the memory it took."""
    base = tmp_path_factory.mktemp("hostile")
    return dict(zip(ATTACKS, open_all(write(base / name) for name, (write, _) in ATTACKS.items()), strict=True))


@pytest.mark.parametrize("name", ATTACKS)
def test_a_small_file_takes_little_memory(results, name):
    message, taken = results[name]
    assert taken < ALLOWED, (message, taken)
    assert all(word in message for word in ATTACKS[name][1]) and "\n" not in message, message


# Files that are no files ---------------------------------------------------------------------------------------------


def fifo(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        cwd = Path.cwd()
        os.chdir(path.parent)  # the path of a socket has about 100 characters at most
        try:
            server.bind(path.name)
        finally:
            os.chdir(cwd)


def link_to_fifo(path: Path) -> None:
    target = path.parent.with_name(f"{path.parent.name} {path.name}.fifo")
    os.mkfifo(target)
    path.symlink_to(target)


SPECIAL = {"FIFO": fifo, "character device": device, "socket": listening, "link": link_to_fifo}
FORMATS = {
    "artifact": ["albertkit.json", "config.json", "model.safetensors", "spiece.model", "tokenizer_config.json"],
    "hugging face": ["config.json", "pytorch_model.bin", "model.safetensors", "tokenizer.json", "vocab.txt"],
    "tensorflow": ["albert_config.json", "m.index", "m.data-00000-of-00001", "spiece.model"],
    "sentence-transformers": ["modules.json", "config.json", "1_Pooling/config.json"],
    "pl-bert": ["x.onnx", "x.t7", "x.pth"],
}


def whole_model(folder: Path, kind: str) -> Path:
    """A folder that opens: its files are replaced one by one."""
    artifact = Artifact(tiny(vocab_size=30_000), random_weights(), Tokenizer.from_spiece(SPIECE))
    if kind == "artifact":
        return write_artifact(artifact, folder)
    if kind == "sentence-transformers":
        source = write_artifact(artifact, folder.with_name(f"{folder.name}-source"))
        export_layout(source, folder, "sentence-transformers")
        return folder
    hostile.model_folder(folder, artifact.config)
    if kind == "tensorflow":
        bundle_writer.write_bundle(folder / "m", bundle_writer.to_variables(artifact))
        (folder / "config.json").rename(folder / "albert_config.json")
    elif kind == "hugging face":
        save_file(public_tensors(artifact), folder / "model.safetensors")
    return folder


def random_weights() -> dict[str, np.ndarray]:
    shapes = encoder_shapes(tiny(vocab_size=30_000))
    generator = np.random.default_rng(0)
    return {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def test_special_files_are_refused_without_blocking(tmp_path):
    paths = {}
    for kind, names in FORMATS.items():
        whole = whole_model(tmp_path / kind, kind)
        for name, special in product(names, SPECIAL):
            folder = tmp_path / f"{kind} {name.replace('/', ' ')} {special}"
            shutil.copytree(whole, folder)
            (folder / name).unlink(missing_ok=True)
            SPECIAL[special](folder / name)
            paths[folder] = special.replace("link", "FIFO")
            if name == "x.onnx":
                paths[folder / name] = paths[folder]
    for (path, special), (message, taken) in zip(paths.items(), open_all(paths), strict=True):
        assert f"is a {special}; a model consists of regular files" in message and taken < ALLOWED, (path, message)


def test_folders_in_place_of_files_are_errors(tmp_path):
    for name in FORMATS["artifact"]:
        folder = whole_model(tmp_path / name, "artifact")
        (folder / name).unlink()
        (folder / name).mkdir()
        with pytest.raises(AlbertkitError):
            read_stored(folder)


def test_links_to_regular_files_are_followed(tmp_path):
    folder = whole_model(tmp_path / "m", "artifact")
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in folder.iterdir():
        (linked / file.name).symlink_to(file)
    (linked / "other").symlink_to(tmp_path / "absent")
    assert open_stored(linked).identity == open_stored(folder).identity


# Configs -------------------------------------------------------------------------------------------------------------


def test_a_config_cannot_demand_many_layers(tmp_path):
    changes = {"num_hidden_layers": 1024, "num_hidden_groups": 1024, "inner_group_num": 64}
    with pytest.raises(AlbertkitError, match="65,536 layers; the limit is 1,024: lower one of them"):
        tiny(**changes)
    assert tiny(num_hidden_layers=64, inner_group_num=16).inner_group_num == 16


def test_a_config_cannot_demand_more_than_its_file_has(tmp_path):
    """The largest config that is read, with the weights of a small model: an error that names a tensor, at once."""
    config = tiny(num_hidden_layers=1024, num_hidden_groups=1024, hidden_size=256, intermediate_size=1024)
    folder = whole_model(tmp_path / "m", "hugging face")
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    with pytest.raises(AlbertkitError, match="encoder.embeddings.*config.json requires"):
        open_stored(folder)
    with pytest.raises(AlbertkitError, match="parameters; the limit is 4,000,000,000"):
        config.replace(intermediate_size=16_384)
