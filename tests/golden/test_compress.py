"""Golden results: the weights that quantizing, pruning and distilling into a static table write, and their vectors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from albertkit import Albert
from tests.golden.comparison import INT8_TOLERANCE, Results, differences, one_thread, sample, tensors
from tests.golden.material import albertkit, finetuned, place, sentences, text_file, tiny_model

TEXTS = sentences(6, seed=3)


def single() -> Path:
    return finetuned("single")[0]


CASES: dict[str, tuple[str, Callable[[], Path], tuple[object, ...]]] = {
    "int8": ("quantize", tiny_model, ("--bits", 8, "-f", text_file)),
    "int8-own-texts": ("quantize", tiny_model, ("--bits", 8)),
    "int8-task": ("quantize", single, ("--bits", 8, "-f", text_file)),
    "int4": ("quantize", tiny_model, ("--bits", 4, "-f", text_file)),
    "int4-task": ("quantize", single, ("--bits", 4, "-f", text_file)),
    "pruned": ("prune", tiny_model, ("--ffn", "1/2", "--heads", "2/4", "-f", text_file)),
    "pruned-without-fit": ("prune", tiny_model, ("--ffn", 20, "--no-fit", "-f", text_file)),
    "pruned-layers": ("prune", tiny_model, ("--layers", 2)),
    "pruned-vocabulary": ("prune", tiny_model, ("--vocabulary", text_file)),
    "static": ("static", tiny_model, ("-f", text_file, "--dim", 16)),
}


def results() -> Results:
    found: Results = {}
    for name, (command, source, options) in CASES.items():
        out = place() / f"compressed-{name}"
        albertkit(command, source(), out, *(one() if callable(one) else one for one in options))
        found[f"{name}/weights"] = tensors(out)
        found |= sample(f"{name}/vectors", Albert(out, threads=1).embed(TEXTS), 4)
    for bits in (8, 4):
        found |= sample(f"opened-int{bits}/vectors", Albert(tiny_model(), bits=bits, threads=1).embed(TEXTS), 4)
    return found


def test_compression_writes_the_recorded_weights():
    with one_thread():
        assert differences("compress", results(), INT8_TOLERANCE) == []
