"""Store and compare golden results; see the package's docstring for the rules."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(__file__).parent / "data"
ENVIRONMENT = DATA / "environment.json"
TOLERANCE = 2e-3  # absolute and relative, on another CPU or with other versions
INT8_TOLERANCE = (
    0.3  # of the length of an array, for int8 models: CPUs with VNNI round activations to 8 bits, others to 7
)
Results = dict[str, np.ndarray]


def environment() -> dict[str, Any]:
    """What results may depend on to the bit: the CPU's model and instructions, and the libraries that compute."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    about = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = sorted(about.get("flags", about.get("Features", "")).split())
    return {
        "machine": platform.machine(),
        "cpu": about.get("model name", platform.processor()),
        "flags": hashlib.sha256(" ".join(flags).encode()).hexdigest()[:16],
        "threads": 1,
        **{name: version(name) for name in ("numpy", "onnxruntime", "torch", "tokenizers", "scikit-learn")},
    }


@contextmanager
def one_thread() -> Iterator[None]:
    """One processor and one thread, so that sums have one order however many processors there are."""
    import torch
    from threadpoolctl import threadpool_limits

    threads = torch.get_num_threads()
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    torch.set_num_threads(1)
    if processors:
        os.sched_setaffinity(0, {min(processors)})
    try:
        with threadpool_limits(1):  # of numpy and scipy
            yield
    finally:
        torch.set_num_threads(threads)
        if processors:
            os.sched_setaffinity(0, processors)


# Arrays from what was computed -----------------------------------------------------------------------------------


def leaves(value: Any) -> list[bool | int | float | str]:
    """The numbers and texts in dataclasses, mappings and sequences, without the names of fields and in an order that
    does not depend on these names: fields and values of a mapping are sorted by what they hold, lists keep their order.
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bool | int | float | str):
        return [value]
    if value is None:
        return []
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = sorted((leaves(getattr(value, field.name)) for field in dataclasses.fields(value)), key=rank)
    elif isinstance(value, Mapping | set | frozenset):
        parts = sorted(map(leaves, value.values() if isinstance(value, Mapping) else value), key=rank)
    elif isinstance(value, list | tuple):
        parts = list(map(leaves, value))
    else:
        raise TypeError(f"{type(value).__name__} has no golden form")
    return [leaf for part in parts for leaf in part]


def rank(found: list[Any]) -> list[tuple[bool, float, str]]:
    """What leaves are sorted by: numbers before texts."""
    return [(True, 0.0, one) if isinstance(one, str) else (False, float(one), "") for one in found]


def flat(name: str, value: Any) -> Results:
    """All numbers and all texts in a result, as two arrays."""
    found = leaves(value)
    numbers = [float(one) for one in found if not isinstance(one, str)]
    texts = [one for one in found if isinstance(one, str)]
    made = {f"{name}/numbers": np.array(numbers, np.float64)}
    return {**made, f"{name}/texts": np.array(texts, np.str_)} if texts else made


def sample(name: str, array: np.ndarray, step: int = 16) -> Results:
    """The hash of an array, and every `step`-th column of it for CPUs of another kind."""
    array = np.ascontiguousarray(array)
    return {f"{name}/sha256": hashed([array]), f"{name}/sample": array[..., ::step].copy()}


def hashed(arrays: Any) -> np.ndarray:
    """One SHA-256 of the bytes of some arrays, in whatever order they come."""
    each = sorted(hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest() for array in arrays)
    return np.array(hashlib.sha256(b"".join(each)).hexdigest())


def tensors(folder: Path) -> np.ndarray:
    """One SHA-256 of the tensors in a folder, whatever they are called."""
    from safetensors import safe_open

    found: list[np.ndarray] = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            found += [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118
    assert found, f"{folder} holds no weights"
    return hashed(found)


# StoredModel and compared ---------------------------------------------------------------------------------------------


def stored(area: str) -> Results:
    """The recorded results of an area."""
    with np.load(DATA / f"{area}.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def record(area: str, found: Results) -> None:
    """Write the results of an area."""
    DATA.mkdir(exist_ok=True)
    np.savez_compressed(DATA / f"{area}.npz", **{name: found[name] for name in sorted(found)})


def same_environment() -> bool:
    """Whether results must be equal to the bit here."""
    return json.loads(ENVIRONMENT.read_text()) == environment()


def differences(area: str, found: Results, tolerance: float = TOLERANCE) -> list[str]:
    """What differs from the recorded results of an area. tolerance: on another CPU or with other versions."""
    wanted, exact = stored(area), same_environment()
    names = [
        f"{name}: {'missing' if name in wanted else 'not recorded'}" for name in sorted(found.keys() ^ wanted.keys())
    ]
    return names + [
        f"{name}: {brief(found[name])}, recorded {brief(wanted[name])}"
        for name in sorted(found.keys() & wanted.keys())
        if not (equal(found[name], wanted[name]) if exact else near(found[name], wanted[name], tolerance))
    ]


def equal(found: np.ndarray, wanted: np.ndarray) -> bool:
    """To the bit."""
    return found.shape == wanted.shape and found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()


def near(found: np.ndarray, wanted: np.ndarray, tolerance: float) -> bool:
    """Numbers within the tolerance; what is not a number is not compared."""
    if found.dtype.kind not in "fiu" or found.shape != wanted.shape:
        return found.dtype.kind == wanted.dtype.kind
    if tolerance > TOLERANCE:
        return bool(np.linalg.norm(found - wanted) <= tolerance * np.linalg.norm(wanted))
    return bool(np.allclose(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True))


def brief(array: np.ndarray) -> str:
    """The first values of an array, for a message."""
    return f"{array.dtype}{array.shape} {array.ravel()[:6].tolist()}"
