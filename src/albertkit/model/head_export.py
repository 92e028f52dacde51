"""A custom head as an ONNX graph: the export of a user's module, and the comparison of both.

In: a module that takes `hidden` (texts, length, H) and `mask` (texts, length), and returns scores. Out: the bytes of
`head-NAME.onnx`. The graph does not depend on the weights, so it is made before training, and a module that cannot be
stored fails at once. After this file: `albert_model.CustomHead` uses it; `head_graph.py` reads the graph.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from albertkit import head_graph
from albertkit.errors import AlbertkitError, need, short_reason
from albertkit.head_graph import HEAD_OPSET, INPUTS, HeadSession
from albertkit.onnx_model import ModelProto
from albertkit.weights import CUSTOM_HEADS, TOKEN_HEADS

LENGTHS = ((7, 3, 2), (2,), (11, 11))  # of the texts in the batches that are compared; the first one is traced
TOLERANCE = 1e-4  # relative to the largest score
REMEDY = "Change its forward, or train it with a task of your own (docs/guides/own-layers.md)"


def export_head(name: str, module: nn.Module, hidden_size: int, outputs: int | None = None) -> bytes:
    """The graph of a module, after comparing it with the module for several batches.

    outputs: the number of scores of a text or token; None: any.
    """
    check_module(name, module)
    sample = _with_distinct_weights(module)
    hidden, mask = _random_batch(LENGTHS[0], hidden_size)
    _scores(name, sample, hidden, mask, outputs)
    graph = _finished(name, _torch_export(sample, hidden, mask))
    compare_graph(name, sample, graph, hidden_size, outputs)
    return graph


def _torch_export(module: nn.Module, hidden: Tensor, mask: Tensor) -> bytes:
    """The file of `torch.onnx.export`, with the weights as inputs. Its names of weights are those of the module."""
    need("onnx", "train", "a custom head")  # torch imports it
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that needs no onnxscript is deprecated
        try:
            torch.onnx.export(
                module,
                (hidden, mask),
                Path(scratch) / "head.onnx",
                dynamo=False,
                export_params=False,
                do_constant_folding=False,
                opset_version=HEAD_OPSET,
                input_names=list(INPUTS),
                output_names=["scores"],
                dynamic_axes={name: {0: "texts", 1: "length"} for name in INPUTS},
            )
        except Exception as error:  # the exporter raises errors of many classes
            raise _refusal(module, f"torch cannot export it to ONNX ({short_reason(error)})") from error
        return (Path(scratch) / "head.onnx").read_bytes()


def check_module(name: str, module: nn.Module) -> None:
    """Raise if a module cannot be a custom head."""
    if name not in CUSTOM_HEADS:
        raise _refusal(module, f"the head {name!r} cannot be replaced, only {', '.join(CUSTOM_HEADS)} can")
    if not any(True for _ in module.parameters()):
        raise _refusal(module, "it has no parameters")
    for key, tensor in module.state_dict().items():
        if tensor.dtype != torch.float32:
            raise _refusal(
                module,
                f"its tensor {key!r} has type {tensor.dtype}, and torch.float32 is needed. Register "
                "other buffers with persistent=False",
            )


def _refusal(module: nn.Module, reason: str) -> AlbertkitError:
    return AlbertkitError(f"the head {type(module).__name__} cannot be stored: {reason}. {REMEDY}.")


def _with_distinct_weights(module: nn.Module) -> nn.Module:
    """A copy on the CPU whose tensors all differ: the exporter merges equal ones, such as two new LayerNorms."""
    sample = copy.deepcopy(module).cpu().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in sample.state_dict().values():
            tensor += 0.02 * torch.rand(tensor.shape, generator=generator)
    return sample


def _finished(name: str, data: bytes) -> bytes:
    """The exported file with the names of our tensors; the source lines of the user's code are not decoded."""
    model = ModelProto.decode(data)
    weights = {entry.name for entry in model.graph.input if entry.name not in INPUTS}
    for entry in model.graph.input:
        if entry.name in weights:
            entry.name = f"heads.{name}.module.{entry.name}"
    for node in model.graph.node:
        node.input = [f"heads.{name}.module.{used}" if used in weights else used for used in node.input]
    return model.encode()


# The comparison --------------------------------------------------------------------------------------------------


def compare_graph(name: str, module: nn.Module, graph: bytes, hidden_size: int, outputs: int | None = None) -> None:
    """Raise unless a graph computes the scores of its module, for texts of any length and in any batch."""
    module = copy.deepcopy(module).cpu().eval()
    weights = {f"heads.{name}.module.{key}": tensor.numpy() for key, tensor in module.state_dict().items()}
    session = HeadSession(name, graph, weights)
    for lengths in LENGTHS:
        hidden, mask = _random_batch(lengths, hidden_size)
        expected = _scores(name, module, hidden, mask, outputs)
        try:
            scores = session.scores(hidden.numpy(), np.array(lengths))
        except AlbertkitError as error:
            reason = str(error).removesuffix(head_graph.REMEDY)
            raise _refusal(module, f"its graph fails for {tuple(mask.shape)} tokens: {reason}") from None
        if not _are_close(name, scores, expected, lengths):
            raise _refusal(module, f"its ONNX graph computes other scores for {tuple(mask.shape)} tokens")
        for text, length in enumerate(lengths):
            alone = _scores(name, module, hidden[text : text + 1, :length], mask[text : text + 1, :length], outputs)
            if not _are_close(name, alone, expected[text : text + 1], (length,)):
                raise _refusal(module, "the scores of a text change with padding. Use mask, which is False at padding")


def _random_batch(lengths: tuple[int, ...], hidden_size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    hidden = torch.randn(len(lengths), max(lengths), hidden_size, generator=generator)
    return hidden * mask[..., None], mask


def _scores(name: str, module: nn.Module, hidden: Tensor, mask: Tensor, outputs: int | None) -> np.ndarray:
    try:
        with torch.no_grad():
            scores = module(hidden, mask)
    except Exception as error:  # of any class: this is code of the user
        raise _refusal(module, f"its forward fails for {tuple(mask.shape)} tokens ({short_reason(error)})") from error
    check_scores(name, module, scores, mask, outputs)
    return np.asarray(scores.numpy(), np.float32)


def check_scores(name: str, module: nn.Module, scores: object, mask: Tensor, outputs: int | None = None) -> None:
    """Raise if scores do not have one row per text, or per token for `tag` and `answer`."""
    rows = tuple(mask.shape) if name in TOKEN_HEADS else (len(mask),)
    shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    is_right = isinstance(scores, Tensor) and shape[:-1] == rows and outputs in (None, shape[-1])
    if not is_right:
        width = "outputs" if outputs is None else outputs
        kind = "(texts, length, outputs)" if name in TOKEN_HEADS else "(texts, outputs)"
        raise _refusal(
            module, f"it returns {shape} for {tuple(mask.shape)} tokens; {kind} is needed, here {(*rows, width)}"
        )


def _are_close(name: str, scores: np.ndarray, expected: np.ndarray, lengths: tuple[int, ...]) -> bool:
    """Whether scores are equal up to rounding, at the tokens of each text."""
    pairs = zip(scores, expected, lengths, strict=True)
    rows = [(a[:n], b[:n]) if name in TOKEN_HEADS else (a, b) for a, b, n in pairs]
    largest = max(1.0, *(float(np.abs(b).max(initial=0)) for _, b in rows))
    return all(bool((np.abs(a - b) <= TOLERANCE * largest).all()) for a, b in rows)
