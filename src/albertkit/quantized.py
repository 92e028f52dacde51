"""Weights in 8 or 4 bits: how they are stored, and how they come back.

In: float matrices (rows, columns), one row for each output. Out: `QuantizedMatrix`. Each row has one float scale, so that a weight is
value · scale with a value from -127 to 127. Where `moments` say what inputs a matrix sees (`calibrate.py`), it also has a
number for each column (`smooth`): inputs are multiplied by it and weights divided, so that the few large channels of a
LayerNorm do not spoil the 8 bits of all others (Xiao et al., SmoothQuant, arXiv 2211.10438), and weights are rounded so that their
errors cancel on such inputs: a shared layer makes the same error at each of its uses, so that it adds up even at 8 bits.

At 4 bits a value is q · step, where q is from -8 to 7 and the step, a whole number from 1 to 15, is shared by a block
of 32 neighbouring weights. A 4-bit matrix therefore *is* an 8-bit one, written in half the space: it opens into int8 by
one integer multiplication, exactly, and runs on the same kernels. Nothing is quantised again at start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from albertkit.errors import AlbertkitError

BLOCK = 32
BITS = (8, 4)


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix of whole numbers and the scale of each row."""

    values: np.ndarray  # (rows, columns) int8
    scale: np.ndarray  # (rows,) float32
    smooth: np.ndarray | None = None  # (columns,) float32: what inputs are multiplied by

    def floats(self) -> np.ndarray:
        """The weights as float32."""
        weights = self.values * self.scale[:, None]
        return weights if self.smooth is None else weights * self.smooth


def quantize_rows(weight: np.ndarray, moments: np.ndarray | None = None) -> QuantizedMatrix:
    """8 bits: the largest weight of a row becomes ±127. `moments`: as for `quantize_blocks`."""
    top = np.abs(weight).max(axis=1)
    scale = np.where(top > 0, top / 127, 1).astype(np.float32)
    factor = None if moments is None else _inverse_factor(moments)
    return QuantizedMatrix(_round(weight, factor, lambda start, left: scale, (-127, 127)), scale)


def quantize_blocks(weight: np.ndarray, moments: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """4 bits: packed values (rows, ⌈columns/32⌉·16), steps (rows, ⌈columns/32⌉) and row scales.

    For each block every step is tried, and the one with the smallest squared error is kept. With `moments`, the mean of
    x·xᵀ over the inputs x that the matrix sees, columns are rounded one after the other and each one's error is made
    good by the columns that follow (Frantar et al., GPTQ, arXiv 2210.17323).
    """
    rows, columns = weight.shape
    blocks = -(-columns // BLOCK)
    top = np.abs(weight).max(axis=1)
    scale = np.where(top > 0, top / 120, 1).astype(np.float32)  # 8 · 15: the largest value a block can write
    factor = None if moments is None else _inverse_factor(moments)
    steps = np.ones((rows, blocks), np.uint8)

    def grid(start: int, left: np.ndarray) -> np.ndarray:
        weighed = None if factor is None else 1 / np.square(np.diag(factor)[start : start + BLOCK])
        steps[:, start // BLOCK] = _best_steps(left / scale[:, None], weighed)
        found: np.ndarray = scale * steps[:, start // BLOCK]
        return found

    values = np.zeros((rows, blocks * BLOCK), np.int8)
    values[:, :columns] = _round(weight, factor, grid, (-8, 7))
    nibbles = (values + 8).astype(np.uint8)
    return nibbles[:, 0::2] | nibbles[:, 1::2] << 4, steps, scale


def _round(
    weight: np.ndarray,
    factor: np.ndarray | None,
    grid_of: Callable[[int, np.ndarray], np.ndarray],
    ends: tuple[int, int],
) -> np.ndarray:
    """Whole numbers between `ends` for each weight, block by block of columns; with a `factor` (see `_inverse_factor`), errors cancel.

    grid_of: the first column of a block, and what is still to be written there → the size of a step for each row.
    """
    columns = weight.shape[1]
    left = weight.astype(np.float32, copy=True)  # what is still to be written, errors of earlier columns included
    values = np.zeros(weight.shape, np.int8)
    for start in range(0, columns, BLOCK):
        stop = min(columns, start + BLOCK)
        grid = grid_of(start, left[:, start:stop])
        if factor is None:
            values[:, start:stop] = np.clip(np.rint(left[:, start:stop] / grid[:, None]), *ends)
            continue
        errors = np.zeros((len(left), stop - start), np.float32)
        for j in range(start, stop):
            values[:, j] = np.clip(np.rint(left[:, j] / grid), *ends)
            errors[:, j - start] = (left[:, j] - values[:, j] * grid) / factor[j, j]
            left[:, j + 1 : stop] -= np.outer(errors[:, j - start], factor[j, j + 1 : stop])
        left[:, stop:] -= errors @ factor[start:stop, stop:]
    return values


def _best_steps(cut: np.ndarray, weighed: np.ndarray | None) -> np.ndarray:
    """The step of each row of one block, by (weighed) squared error."""
    best = np.full(len(cut), np.inf)
    steps = np.ones(len(cut), np.uint8)
    for step in range(1, 16):
        off = np.square(np.clip(np.rint(cut / step), -8, 7) * step - cut)
        error = off.sum(axis=1, dtype=np.float64) if weighed is None else off @ weighed
        better = error < best
        best[better], steps[better] = error[better], step
    return steps


def _inverse_factor(moments: np.ndarray) -> np.ndarray:
    """U, upper triangular, with UᵀU the inverse of the moments (a hundredth of their mean added to the diagonal)."""
    square = moments.astype(np.float64, copy=True)
    diagonal = np.diag(square).copy()
    square[np.diag_indices(len(square))] += np.where(diagonal > 0, 0.01 * diagonal.mean(), 1.0)
    factor: np.ndarray = np.linalg.cholesky(np.linalg.inv(square)).T.astype(np.float32)
    return factor


def unpack_blocks(packed: np.ndarray, steps: np.ndarray, scale: np.ndarray, columns: int) -> QuantizedMatrix:
    """A 4-bit matrix as the 8-bit one it stands for."""
    rows, blocks = steps.shape
    if packed.shape != (rows, blocks * BLOCK // 2) or scale.shape != (rows,) or columns > blocks * BLOCK:
        raise AlbertkitError(
            f"a 4-bit matrix has parts of shapes {packed.shape}, {steps.shape}, {scale.shape}; they do not fit"
        )
    if steps.max(initial=0) > 15:
        raise AlbertkitError(f"a 4-bit matrix has a step of {steps.max()}; steps are 1 to 15, so the file is damaged")
    nibbles = np.empty((rows, blocks * BLOCK), np.int8)
    nibbles[:, 0::2] = packed & 15
    nibbles[:, 1::2] = packed >> 4
    nibbles -= 8
    nibbles.reshape(rows, blocks, BLOCK)[:] *= steps.astype(np.int8)[:, :, None]
    return QuantizedMatrix(np.ascontiguousarray(nibbles[:, :columns]), scale)


def is_quantizable(name: str, array: np.ndarray) -> bool:
    """What is quantised: the matrices of the encoder and of the masked-word head. Segment tables and task heads are
    small, and stay float, as do the small matrices of the options (`.low.`, `.theta`).
    """
    kept = (".segment.", ".linear.", ".low.", ".theta")
    return array.ndim == 2 and not any(part in name for part in kept) and name.startswith(("encoder.", "heads.mlm."))


def uses_four_bits(name: str) -> bool:
    """What 4 bits are for: the shared layers and the pooler. Embeddings stay at 8, since a rare word's row is read alone."""
    return name.startswith(("encoder.groups.", "encoder.pooler."))


SMOOTHED = ("attention.query", "attention.key", "attention.value", "attention.output", "ffn.up")


def smoothing_factors(name: str, moments: np.ndarray | None, bits: int) -> np.ndarray | None:
    """The `smooth` of a matrix: each input channel's usual size (its root mean square) to the power of -1/2.

    At 4 bits -1/4, since what is taken from the inputs is given to the weights, which have little room there. The down
    product is left alone: its inputs are an activation's, which no channel dominates.
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
    smooths: dict[str, np.ndarray] | None = None,
    quick: bool = False,
) -> dict[str, np.ndarray]:
    """Float weights to the tensors of a quantised file: `NAME`, `NAME.scale`, `NAME.smooth` and, at 4 bits, `NAME.step`.

    smooths: of weights that were trained for few bits (`train/qat.py`), the `smooth` they were trained with; they are rounded as they are.
    quick: 8-bit weights are smoothed and rounded one by one; that errors cancel costs an inverse for each matrix.
    """
    if bits not in BITS:
        raise AlbertkitError(f"bits is {bits!r}; choose 8 or 4")
    out: dict[str, np.ndarray] = {}
    for name, array in weights.items():
        if not is_quantizable(name, array):
            out[name] = np.ascontiguousarray(array, np.float32)
            continue
        seen = (moments or {}).get(name)
        smooth = smoothing_factors(name, seen, bits) if smooths is None else smooths.get(name)
        if smooth is not None:
            out[f"{name}.smooth"] = smooth
            array = array / smooth
            seen = None if seen is None else seen * smooth * smooth[:, None]
        if bits == 8 or not uses_four_bits(name):
            matrix = quantize_rows(array, None if quick else seen)
            out |= {name: matrix.values, f"{name}.scale": matrix.scale}
            continue
        packed, steps, scale = quantize_blocks(array, seen)
        out |= {name: packed, f"{name}.step": steps, f"{name}.scale": scale}
    return out


def unpack_weights(
    tensors: dict[str, np.ndarray], shapes: dict[str, tuple[int, ...]]
) -> dict[str, np.ndarray | QuantizedMatrix]:
    """The tensors of a quantised file to float arrays and `QuantizedMatrix`es; `shapes` says how wide each matrix is."""
    out: dict[str, np.ndarray | QuantizedMatrix] = {}
    for name, array in tensors.items():
        if name.endswith((".scale", ".step", ".smooth")) and name.rpartition(".")[0] in tensors:
            continue
        scale, steps, smooth = (tensors.get(f"{name}.{part}") for part in ("scale", "step", "smooth"))
        if scale is None:
            out[name] = array
            continue
        if name not in shapes or array.ndim != 2:
            raise AlbertkitError(f"tensor {name!r} is quantised, and is no matrix of this model")
        if smooth is not None and (smooth.dtype != np.float32 or smooth.shape != shapes[name][1:]):
            raise AlbertkitError(
                f"tensor {name!r} has {smooth.shape} numbers to smooth with; it has {shapes[name][1:]} columns"
            )
        if steps is not None:
            if array.dtype != np.uint8 or steps.dtype != np.uint8 or steps.ndim != 2:
                raise AlbertkitError(f"tensor {name!r} holds {array.dtype}; at 4 bits it must be packed uint8")
            matrix = unpack_blocks(array, steps, scale.astype(np.float32), shapes[name][1])
        elif array.dtype != np.int8 or scale.shape != array.shape[:1]:
            raise AlbertkitError(
                f"tensor {name!r} holds {array.dtype} with {scale.shape} scales; at 8 bits it must be int8, a scale a row"
            )
        else:
            matrix = QuantizedMatrix(array, scale.astype(np.float32))
        out[name] = QuantizedMatrix(matrix.values, matrix.scale, smooth)
    return out
