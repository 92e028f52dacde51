"""The layers of a model in compiled code (`native/layers.c`), for x86-64 under Linux with AVX-512 VNNI, bf16 or AMX.

In: a config and weights. Out: `NativeLayers`, if `can_run` says that a library, the processor and the options of the
model allow it; else `engine.py` uses onnxruntime. Both compute the same, except for rounding. After this file:
`native_embedding.py`, which uses the library for the embedding.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from albertkit.config import AlbertConfig
from albertkit.errors import AlbertkitError
from albertkit.quantized import QuantizedMatrix
from albertkit.runtime.graph import LOWEST, QKV, Weights, stack_rows
from albertkit.runtime.graph_builder import as_float

FOLDER = Path(__file__).parent.parent / "native"
AVX512_VNNI = {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
# The libraries, fastest first, and the features of the processor that each needs.
LIBRARIES = {
    "amx": AVX512_VNNI | {"avx512_bf16", "amx_tile", "amx_int8", "amx_bf16"},
    "bf16": AVX512_VNNI | {"avx512_bf16"},
    "vnni": AVX512_VNNI,
}
CHOICE = "ALBERTKIT_LAYERS"  # environment variable: one of LIBRARIES, or "onnxruntime"
INTERFACE = 1  # of layers.c: which functions and types these are
ACTIVATIONS = ("gelu_new", "gelu", "relu", "silu")  # in the order of `enum activation`
# Options that change the layers as this library can, or do not change the layers.
OPTIONS = {
    "brightmart_layout", "scale_embedding", "gru", "gru_layers", "gru_residual", "attention_bias", "relative_reach",
    "head_size", "classifier", "prelude_layers", "coda_layers",
}  # fmt: skip
NORMS = ("attention_norm", "ffn_norm")
MATRICES = (
    "attention.query.weight",
    "attention.key.weight",
    "attention.value.weight",
    "attention.output.weight",
    "ffn.up.weight",
    "ffn.down.weight",
)
DOWN = 3  # the number of the product whose inputs are shifted
MOST_THREADS = 64  # each has its own working memory
Pointer = ctypes.c_void_p


class Shape(ctypes.Structure):
    """`Shape` of layers.c."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("hidden", "heads", "head_size", "inner", "activation", "reach")),
        *((name, ctypes.c_int) for name in ("layers", "threads")),
        ("eps", ctypes.c_float), ("shift", ctypes.c_float),
    ]  # fmt: skip


def library() -> ctypes.CDLL | None:
    """The fastest library that this processor can run, or the one that ALBERTKIT_LAYERS names; None without one."""
    choice = os.environ.get(CHOICE, "")
    if choice not in ("", "onnxruntime", *LIBRARIES):
        raise AlbertkitError(
            f"{CHOICE}={choice!r} is unknown. Set it to {', '.join(LIBRARIES)} or onnxruntime, or unset it."
        )
    names = [name for name in LIBRARIES if choice in ("", name)]
    fastest = next((loaded for loaded in map(load, names) if loaded is not None), None)
    if fastest is None and choice in LIBRARIES:
        raise AlbertkitError(
            f"{CHOICE}={choice!r} cannot run: its library is not installed, or this processor lacks one of "
            f"{', '.join(sorted(LIBRARIES[choice]))}. Unset {CHOICE}."
        )
    return fastest


@cache
def load(name: str) -> ctypes.CDLL | None:
    """A library; None where it is not installed, was built from other sources, or cannot run."""
    path = FOLDER / f"layers_{name}.so"
    if platform.machine() != "x86_64" or not processor_flags() >= LIBRARIES[name] or not path.is_file():
        return None
    try:
        loaded = ctypes.CDLL(str(path))
        declare_functions(loaded)
    except (OSError, AttributeError):  # for example, built for another C library, or from older sources
        return None
    return loaded if loaded.albertkit_start() == INTERFACE else None


def declare_functions(loaded: ctypes.CDLL) -> None:
    """Set the types of the library's functions."""
    loaded.albertkit_new.restype = Pointer
    loaded.albertkit_new.argtypes = [ctypes.POINTER(Shape)]
    loaded.albertkit_set_product.argtypes = [Pointer, *[ctypes.c_int] * 4, *[Pointer] * 5]
    loaded.albertkit_set_norms.argtypes = [Pointer, ctypes.c_int, Pointer, Pointer]
    loaded.albertkit_run.argtypes = [Pointer, Pointer, Pointer, ctypes.c_int, ctypes.c_int, Pointer, ctypes.c_int]
    loaded.albertkit_free.argtypes = [Pointer]
    loaded.albertkit_free.restype = None
    loaded.albertkit_new_embedding.restype = Pointer
    loaded.albertkit_new_embedding.argtypes = [ctypes.c_int, ctypes.c_int, *[Pointer] * 3, ctypes.c_float]
    loaded.albertkit_embed.argtypes = [Pointer, Pointer, ctypes.c_int, Pointer]
    loaded.albertkit_free_embedding.argtypes = [Pointer]
    loaded.albertkit_free_embedding.restype = None


@cache
def processor_flags() -> frozenset[str]:
    """The features of the processor; empty if they are unknown."""
    try:
        with Path("/proc/cpuinfo").open(encoding="ascii", errors="ignore") as file:
            return frozenset(next((line for line in file if line.startswith("flags")), "").split())
    except OSError:
        return frozenset()


def can_run(config: AlbertConfig, weights: Weights) -> bool:
    """Whether a library runs here and computes all options of this model."""
    prefix = "encoder.groups."
    kinds = {
        isinstance(weights[name], QuantizedMatrix)
        for name in weights
        if name.startswith(prefix) and name.endswith(MATRICES)
    }
    has_options = set(config.options.active()) <= OPTIONS and config.options.attention_bias in ("", "relative")
    return len(kinds) == 1 and has_options and config.hidden_act in ACTIVATIONS and library() is not None


def product_shapes(config: AlbertConfig) -> tuple[tuple[int, int], ...]:
    """(outputs, inputs) of the four products, in the order of `layers.c`."""
    hidden, inner, context = config.hidden_size, config.intermediate_size, config.num_attention_heads * config.head_size
    return (3 * context, hidden), (hidden, context), (inner, hidden), (hidden, inner)


def address(array: np.ndarray | None) -> int | None:
    """Where an array begins."""
    return None if array is None else array.ctypes.data


def check_memory(result: int) -> None:
    """Raise for a call that found no memory."""
    if result:
        raise MemoryError("there is no memory for the layers")


class NativeLayers:
    """The layers of a model, packed for the processor."""

    def __init__(self, config: AlbertConfig, weights: Weights, prefixes: Sequence[str], threads: int) -> None:
        relative = config.options.attention_bias == "relative"
        shape = Shape(
            config.hidden_size, config.num_attention_heads, config.head_size, config.intermediate_size,
            ACTIVATIONS.index(config.hidden_act), config.options.relative_reach if relative else 0,
            len(prefixes), min(threads, MOST_THREADS), config.layer_norm_eps, LOWEST[config.hidden_act],
        )  # fmt: skip
        loaded = library()
        assert loaded is not None, "`can_run` was False"
        self.config, self._library, self._layers = config, loaded, len(prefixes)
        self._model = loaded.albertkit_new(ctypes.byref(shape))
        if not self._model:
            raise MemoryError("the layers do not fit into memory")
        for number, prefix in enumerate(prefixes):
            self._set_layer(number, prefix, weights)

    def _set_layer(self, number: int, prefix: str, weights: Weights) -> None:
        attention, ffn = f"{prefix}.attention", f"{prefix}.ffn"
        names = (*(f"{attention}.{name}" for name in QKV), f"{attention}.output", f"{ffn}.up", f"{ffn}.down")
        matrices = [weights[f"{name}.weight"] for name in names]
        biases = [as_float(weights[f"{name}.bias"]) for name in names]
        self._set_product(number, 0, stack_rows(matrices[:3]), np.concatenate(biases[:3]))
        for product in (1, 2, 3):
            self._set_product(number, product, matrices[product + 2], biases[product + 2])
        norms = [as_float(weights[f"{prefix}.{name}.{kind}"]) for name in NORMS for kind in ("weight", "bias")]
        theta = None
        if self.config.options.attention_bias:
            theta = np.ascontiguousarray(as_float(weights[f"{attention}.theta"]), np.float32)
            columns = 2 * self.config.options.relative_reach + 1
            theta = theta.reshape(self.config.num_attention_heads, columns)
        stacked = np.ascontiguousarray(np.stack(norms), np.float32).reshape(4, self.config.hidden_size)
        check_memory(self._library.albertkit_set_norms(self._model, number, address(stacked), address(theta)))

    def _set_product(self, layer: int, product: int, matrix: np.ndarray | QuantizedMatrix, bias: np.ndarray) -> None:
        rows: np.ndarray
        values = numbers = scale = smooth = None
        if isinstance(matrix, QuantizedMatrix):
            values = np.ascontiguousarray(matrix.values, np.int8)
            scale = np.ascontiguousarray(matrix.scale, np.float32)
            smooth = None if matrix.smooth is None else np.ascontiguousarray(matrix.smooth, np.float32)
            rows = values
            if product == DOWN:  # its inputs are shifted to be at least 0
                shift = LOWEST[self.config.hidden_act] * values.sum(axis=1, dtype=np.int64) * scale
                bias = bias - shift
        else:
            rows = numbers = np.ascontiguousarray(matrix, np.float32)
        bias = np.ascontiguousarray(bias, np.float32)
        expected = product_shapes(self.config)[product]
        if rows.shape != expected or bias.shape != expected[:1]:
            raise ValueError(
                f"a matrix {rows.shape} with {len(bias)} biases does not fit the config, which has {expected}"
            )
        arrays = (values, numbers, scale, bias, smooth)
        check_memory(
            self._library.albertkit_set_product(self._model, layer, product, *rows.shape, *map(address, arrays))
        )

    def apply(self, hidden: np.ndarray, lengths: np.ndarray, layers: range, depth: int) -> np.ndarray:
        """Hidden states (texts, length, H) after some of `depth` layers."""
        inner = self.config.inner_group_num
        order = [self.config.group_of(layer, depth) * inner + number for layer in layers for number in range(inner)]
        if not order:
            return hidden
        out = np.array(hidden, np.float32, order="C")
        texts, length, size = out.shape
        lengths, steps = np.ascontiguousarray(lengths, np.int32), np.array(order, np.int32)
        if size != self.config.hidden_size or lengths.shape != (texts,) or (texts and lengths.max() > length):
            raise ValueError(f"hidden states {out.shape} and lengths {lengths.shape} do not belong together")
        if (texts and lengths.min() < 0) or (len(steps) and not 0 <= steps.min() <= steps.max() < self._layers):
            raise ValueError("lengths and layers must be at least 0, and layers must exist")
        check_memory(
            self._library.albertkit_run(
                self._model, address(out), address(lengths), texts, length, address(steps), len(steps)
            )
        )
        return out

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self._library.albertkit_free(self._model)
