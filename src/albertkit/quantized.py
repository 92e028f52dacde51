"""Storage of weights in 8 or 4 bits: rounding, packing and reading of matrices.

In: float matrices (rows, columns), one row for each output. Out: `QuantizedMatrix`. `artifact.py` stores the tensors.

8 bits: each row has one float scale; a weight is value · scale with a value from -127 to 127. With `moments` of the
inputs, a matrix also has one factor per column (`smooth`), so that a few large LayerNorm channels do not dominate the
8-bit range (Xiao et al., SmoothQuant, arXiv 2211.10438). Weights are then rounded so that their errors cancel on such
inputs. This matters even at 8 bits, because a shared layer repeats its error at every use.

4 bits: a value is q · step, with q from -8 to 7 and an integer step from 1 to 15 for each block of 32 neighbouring
weights. Therefore a 4-bit matrix unpacks exactly into an int8 matrix, and uses the same kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from albertkit.errors import AlbertkitError

if TYPE_CHECKING:
    from albertkit.tensor_file import StoredTensor

BLOCK = 32
BITS = (8, 4)


@dataclass(frozen=True)
class QuantizedMatrix:
    """An int8 matrix with one scale per row."""

    values: np.ndarray  # (rows, columns) int8
    scale: np.ndarray  # (rows,) float32
    smooth: np.ndarray | None = None  # (columns,) float32: inputs are multiplied by it

    def arrays(self) -> list[np.ndarray]:
        """The arrays that define the matrix."""
        return [self.values, self.scale, *([] if self.smooth is None else [self.smooth])]

    def floats(self) -> np.ndarray:
        weights = self.values * self.scale[:, None]
        return weights if self.smooth is None else weights * self.smooth


def quantize_rows(weight: np.ndarray, moments: np.ndarray | None = None) -> QuantizedMatrix:
    """Round to 8 bits: the largest weight of a row becomes ±127. `moments`: as for `quantize_blocks`."""
    largest = np.abs(weight).max(axis=1)
    scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    factor = None if moments is None else _inverse_factor(moments)
    return QuantizedMatrix(_round_columns(weight, factor, lambda start, remaining: scale, (-127, 127)), scale)


def quantize_blocks(weight: np.ndarray, moments: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round to 4 bits: packed values (rows, ⌈columns/32⌉·16), steps (rows, ⌈columns/32⌉) and row scales.

    Every step is tried for each block, and the one with the smallest squared error is used. With `moments`, the mean of
    x·xᵀ over the inputs x of the matrix, columns are rounded one after the other, and the following columns compensate
    the error of each one (Frantar et al., GPTQ, arXiv 2210.17323).
    """
    rows, columns = weight.shape
    blocks = -(-columns // BLOCK)
    largest = np.abs(weight).max(axis=1)
    scale = np.where(largest > 0, largest / 120, 1).astype(np.float32)  # 8 · 15: the largest value of a block
    factor = None if moments is None else _inverse_factor(moments)
    steps = np.ones((rows, blocks), np.uint8)

    def step_size(start: int, remaining: np.ndarray) -> np.ndarray:
        importance = None if factor is None else 1 / np.square(np.diag(factor)[start : start + BLOCK])
        steps[:, start // BLOCK] = _best_block_steps(remaining / scale[:, None], importance)
        return np.asarray(scale * steps[:, start // BLOCK])

    values = np.zeros((rows, blocks * BLOCK), np.int8)
    values[:, :columns] = _round_columns(weight, factor, step_size, (-8, 7))
    nibbles = (values + 8).astype(np.uint8)
    return nibbles[:, 0::2] | nibbles[:, 1::2] << 4, steps, scale


def _round_columns(
    weight: np.ndarray,
    factor: np.ndarray | None,
    step_size: Callable[[int, np.ndarray], np.ndarray],
    limits: tuple[int, int],
) -> np.ndarray:
    """Integers within `limits` for each weight, block by block; with a `factor` (`_inverse_factor`), errors cancel.

    step_size: function that returns the step of each row, from the first column of a block and its remaining weights.
    """
    columns = weight.shape[1]
    remaining = weight.astype(np.float32, copy=True)  # weights to store, plus the errors of earlier columns
    values = np.zeros(weight.shape, np.int8)
    for start in range(0, columns, BLOCK):
        stop = min(columns, start + BLOCK)
        step = step_size(start, remaining[:, start:stop])
        if factor is None:
            values[:, start:stop] = np.clip(np.rint(remaining[:, start:stop] / step[:, None]), *limits)
            continue
        errors = np.zeros((len(remaining), stop - start), np.float32)
        for j in range(start, stop):
            values[:, j] = np.clip(np.rint(remaining[:, j] / step), *limits)
            errors[:, j - start] = (remaining[:, j] - values[:, j] * step) / factor[j, j]
            remaining[:, j + 1 : stop] -= np.outer(errors[:, j - start], factor[j, j + 1 : stop])
        remaining[:, stop:] -= errors @ factor[start:stop, stop:]
    return values


def _best_block_steps(block: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
    """The step of each row of one block, by (weighted) squared error."""
    best = np.full(len(block), np.inf)
    steps = np.ones(len(block), np.uint8)
    for step in range(1, 16):
        squares = np.square(np.clip(np.rint(block / step), -8, 7) * step - block)
        error = squares.sum(axis=1, dtype=np.float64) if importance is None else squares @ importance
        better = error < best
        best[better], steps[better] = error[better], step
    return steps


def _inverse_factor(moments: np.ndarray) -> np.ndarray:
    """U, upper triangular, with UᵀU the inverse of the moments (1 % of their mean added to the diagonal)."""
    square = moments.astype(np.float64, copy=True)
    diagonal = np.diag(square).copy()
    square[np.diag_indices(len(square))] += np.where(diagonal > 0, 0.01 * diagonal.mean(), 1.0)
    return np.asarray(np.linalg.cholesky(np.linalg.inv(square)).T, np.float32)


def unpack_blocks(packed: np.ndarray, steps: np.ndarray, scale: np.ndarray, columns: int) -> QuantizedMatrix:
    """Unpack a 4-bit matrix into the equivalent 8-bit matrix."""
    rows, blocks = steps.shape
    if steps.max(initial=0) > 15:
        raise AlbertkitError(f"a 4-bit matrix has a step of {steps.max()}; steps are 1 to 15, so the file is damaged")
    nibbles = np.empty((rows, blocks * BLOCK), np.int8)
    nibbles[:, 0::2] = packed & 15
    nibbles[:, 1::2] = packed >> 4
    nibbles -= 8
    nibbles.reshape(rows, blocks, BLOCK)[:] *= steps.astype(np.int8)[:, :, None]
    return QuantizedMatrix(np.ascontiguousarray(nibbles[:, :columns]), scale)


def is_quantizable(name: str, array: np.ndarray) -> bool:
    """Whether a tensor is quantized: matrices of the encoder and of the masked-language-model head.

    Segment tables, task heads and the small matrices of the options (`.low.`, `.theta`) stay float.
    """
    floats = (".segment.", ".linear.", ".low.", ".theta")
    return array.ndim == 2 and not any(part in name for part in floats) and name.startswith(("encoder.", "heads.mlm."))


def uses_four_bits(name: str) -> bool:
    """Whether a matrix is stored in 4 bits: shared layers and pooler, but not the embeddings."""
    return name.startswith(("encoder.groups.", "encoder.pooler."))


SMOOTHED = (
    "attention.query", "attention.key", "attention.value", "attention.output", "attention.output_down", "ffn.up",
    "ffn.gate",
)  # fmt: skip


def smoothing_factors(name: str, moments: np.ndarray | None, bits: int) -> np.ndarray | None:
    """The `smooth` of a matrix: the root mean square of each input channel to the power of -1/2.

    At 4 bits the power is -1/4, because smoothing moves range from the inputs to the weights, and 4-bit weights have
    little range. The down projection has no `smooth`: no channel dominates the output of the activation.
    """
    if moments is None or not name.removesuffix(".weight").endswith(SMOOTHED):
        return None
    size = np.sqrt(np.maximum(np.diag(moments), 0))
    middle = float(np.median(size)) or 1.0
    return (np.clip(size / middle, 1e-3, 1e3) ** (-0.5 if bits == 8 else -0.25)).astype(np.float32)


def quantize_weights(
    weights: dict[str, np.ndarray],
    bits: int,
    moments: dict[str, np.ndarray] | None = None,
    smooth: dict[str, np.ndarray] | None = None,
    cancel_errors: bool = True,
) -> dict[str, np.ndarray]:
    """Float weights to the tensors of a quantized file: `NAME`, `NAME.scale`, `NAME.smooth`, at 4 bits `NAME.step`.

    smooth: the factors that weights were trained with (`train/recover.py`).
    cancel_errors: False rounds 8-bit weights to the nearest value, which saves one inverse per matrix.
    """
    if bits not in BITS:
        raise AlbertkitError(f"bits={bits!r} is not available: weights are stored in 8 or 4 bits. Pass one of these.")
    quantized: dict[str, np.ndarray] = {}
    for name, array in weights.items():
        if not is_quantizable(name, array):
            quantized[name] = np.ascontiguousarray(array, np.float32)
            continue
        inputs = (moments or {}).get(name)
        factors = smoothing_factors(name, inputs, bits) if smooth is None else smooth.get(name)
        if factors is not None:
            quantized[f"{name}.smooth"] = factors
            array = array / factors
            inputs = None if inputs is None else inputs * factors * factors[:, None]
        if bits == 8 or not uses_four_bits(name):
            matrix = quantize_rows(array, inputs if cancel_errors else None)
            quantized |= {name: matrix.values, f"{name}.scale": matrix.scale}
            continue
        packed, steps, scale = quantize_blocks(array, inputs)
        quantized |= {name: packed, f"{name}.step": steps, f"{name}.scale": scale}
    return quantized


def pack_kept(weights: dict[str, np.ndarray], kept: dict[str, QuantizedMatrix]) -> dict[str, np.ndarray]:
    """The tensors of a quantized file: the matrices in `kept` unchanged, everything else as floats."""
    out: dict[str, np.ndarray] = {n: np.asarray(a, np.float32) for n, a in weights.items() if n not in kept}
    for name, matrix in kept.items():
        out |= {name: matrix.values, f"{name}.scale": matrix.scale}
        if matrix.smooth is not None:
            out[f"{name}.smooth"] = matrix.smooth
    return out


def unpack_weights(
    tensors: dict[str, np.ndarray], shapes: dict[str, tuple[int, ...]]
) -> dict[str, np.ndarray | QuantizedMatrix]:
    """The tensors of a quantized file as float arrays and `QuantizedMatrix`; `shapes` has the width of each matrix."""
    unpacked: dict[str, np.ndarray | QuantizedMatrix] = {}
    for name in float_shapes(tensors, shapes):
        array, scale, steps, smooth = (tensors.get(f"{name}{part}") for part in ("", ".scale", ".step", ".smooth"))
        assert array is not None
        if scale is None:
            unpacked[name] = array
        elif steps is None:
            unpacked[name] = QuantizedMatrix(array, scale.astype(np.float32), smooth)
        else:
            matrix = unpack_blocks(array, steps, scale.astype(np.float32), shapes[name][1])
            unpacked[name] = QuantizedMatrix(matrix.values, matrix.scale, smooth)
    return unpacked


def float_shapes(
    tensors: Mapping[str, np.ndarray | StoredTensor], shapes: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """The shape of each weight in a quantized file. Raises if the parts of a matrix do not have the sizes of `shapes`.

    Only types and shapes are used, so the numbers need not have been read.
    """
    float_shapes_by_name: dict[str, tuple[int, ...]] = {}
    for name, array in tensors.items():
        if name.endswith((".scale", ".step", ".smooth")) and name.rpartition(".")[0] in tensors:
            continue
        float_shapes_by_name[name] = array.shape
        scale, steps, smooth = (tensors.get(f"{name}.{part}") for part in ("scale", "step", "smooth"))
        if scale is None:
            continue
        if len(shapes.get(name, ())) != 2 or len(array.shape) != 2:
            raise AlbertkitError(f"tensor {name!r} is quantized, but this model has no such matrix")
        rows, columns = shapes[name]
        if smooth is not None and (smooth.dtype != np.float32 or smooth.shape != (columns,)):
            raise AlbertkitError(f"tensor {name!r} has {smooth.shape} smoothing factors and {(columns,)} columns")
        if steps is not None:
            if array.dtype != np.uint8 or steps.dtype != np.uint8:
                raise AlbertkitError(f"tensor {name!r} has type {array.dtype}; at 4 bits it must be packed uint8")
            blocks, parts = -(-columns // BLOCK), (array.shape, steps.shape, scale.shape)
            if parts != ((rows, blocks * BLOCK // 2), (rows, blocks), (rows,)):
                text = f"{parts[0]}, {parts[1]} and {parts[2]}"
                raise AlbertkitError(f"a 4-bit matrix has parts of shapes {text}, which do not match: it is damaged")
            float_shapes_by_name[name] = shapes[name]
        elif array.dtype != np.int8 or scale.shape != array.shape[:1]:
            text = f"{array.dtype} with {scale.shape} scales"
            raise AlbertkitError(f"tensor {name!r} has {text}; at 8 bits it must be int8 with one scale per row")
    return float_shapes_by_name
