"""The compiled layers compute what onnxruntime computes. Tests of a library skip where it or its processor is missing."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from albertkit import Albert, AlbertConfig, AlbertkitError
from albertkit.model import AlbertModel
from albertkit.options import Options
from albertkit.quantized import quantize_rows
from albertkit.runtime import native_layers
from albertkit.runtime.engine import Engine, OnnxLayers
from albertkit.runtime.graph_builder import MAX_LEVEL
from albertkit.runtime.native_layers import NativeLayers, can_run
from tests.conftest import ROOT


@pytest.fixture(params=native_layers.LIBRARIES, autouse=True)
def kind(request, monkeypatch) -> str:
    """Each library in turn, so that a processor with AMX tests both."""
    if native_layers.load(request.param) is None:
        pytest.skip(f"layers_{request.param}.so is not built, or this processor cannot run it")
    monkeypatch.setenv(native_layers.CHOICE, request.param)
    return str(request.param)


# Sizes below, at and above the blocks of 4, 12, 16 and 32 numbers.
SHAPES = [(24, 2, 40), (32, 2, 64), (48, 3, 100), (64, 4, 256), (72, 1, 90)]
TEXTS = ["a cat", "The committee will publish its report next year. " * 9, "naïve café", "", "a"]


def made_config(
    hidden: int = 64, heads: int = 4, inner: int = 256, options: Options | None = None, **more
) -> AlbertConfig:
    return AlbertConfig(
        vocab_size=50, embedding_size=16, hidden_size=hidden, num_attention_heads=heads, intermediate_size=inner,
        num_hidden_layers=3, max_position_embeddings=300, options=options or Options(), **more,
    )  # fmt: skip


def made_weights(config: AlbertConfig, bits: int) -> dict:
    import torch

    torch.manual_seed(0)
    model = AlbertModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    weights = {name: np.asarray(array, np.float32) for name, array in model.weights().items()}
    is_layer = [
        name for name, array in weights.items() if array.ndim == 2 and ".groups." in name and "theta" not in name
    ]
    return weights | ({name: quantize_rows(weights[name]) for name in is_layer} if bits == 8 else {})


def prefixes(config: AlbertConfig) -> list[str]:
    return [f"encoder.groups.{g}.{i}" for g in range(config.layer_groups) for i in range(config.inner_group_num)]


def layers_of(config: AlbertConfig, bits: int, threads: int) -> NativeLayers:
    return NativeLayers(config, made_weights(config, bits), prefixes(config), threads)


def both(config: AlbertConfig, bits: int, threads: int = 1) -> tuple[NativeLayers, OnnxLayers]:
    weights = made_weights(config, bits)
    return (
        NativeLayers(config, weights, prefixes(config), threads),
        OnnxLayers(config, weights, prefixes(config), threads, MAX_LEVEL),
    )


def batch(config: AlbertConfig, lengths: list[int], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(len(lengths), max(lengths), config.hidden_size)).astype(np.float32), np.array(
        lengths, np.int32
    )


def check_equal(config: AlbertConfig, bits: int, lengths: list[int], depth: int = 3) -> None:
    native, onnx = both(config, bits)
    hidden, real = batch(config, lengths)
    result, expected = (layers.apply(hidden, real, range(depth), depth) for layers in (native, onnx))
    for text, length in enumerate(lengths):
        a, b = result[text, :length].astype(np.float64), expected[text, :length].astype(np.float64)
        error = np.linalg.norm(a - b) / np.linalg.norm(b)
        # One different rounding of an 8-bit activation changes the result by about a hundredth of a step.
        assert error < (1e-5 if bits == 32 else 0.03), (text, error)


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_onnxruntime_for_any_shape(shape, bits):
    check_equal(made_config(*shape), bits, [1, 5, 12, 13, 33, 100, 130])


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("activation", native_layers.ACTIVATIONS)
def test_equals_onnxruntime_for_any_activation(activation, bits):
    check_equal(made_config(hidden_act=activation), bits, [3, 40])


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize(
    "options",
    [
        Options(attention_bias="relative"),
        Options(attention_bias="relative", relative_reach=3),
        Options(prelude_layers=1, coda_layers=1),
    ],
)
def test_equals_onnxruntime_with_options(options, bits):
    check_equal(made_config(options=options), bits, [7, 61])


def test_equals_onnxruntime_with_several_groups():
    check_equal(made_config(num_hidden_groups=3, inner_group_num=2), 32, [7, 20])


def test_one_8_bit_layer_differs_in_rounding_only(kind):
    native, onnx = both(made_config(), 8)
    hidden, lengths = batch(made_config(), [64] * 4)
    result, expected = (layers.apply(hidden, lengths, range(1), 1) for layers in (native, onnx))
    errors = np.abs(result - expected)
    assert np.median(errors) < (1e-6 if kind == "vnni" else 0.01)  # with AMX, attention rounds to bfloat16
    assert errors.max() < 0.1


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_text_has_the_same_bits_alone_and_in_any_batch(threads, bits):
    config = made_config()
    native, _ = both(config, bits, threads)
    lengths = [5, 300, 1, 64, 13, 200, 2, 96, 97, 31] * 4
    hidden, real = batch(config, lengths)
    together = native.apply(hidden, real, range(3), 3)
    for text, length in enumerate(lengths[:10]):
        alone = native.apply(hidden[text : text + 1, :length], real[text : text + 1], range(3), 3)
        assert np.array_equal(alone[0], together[text, :length])


@pytest.mark.parametrize("threads", [1, 2])
def test_depth_is_the_number_of_layers(threads):
    config = made_config()
    native, _ = both(config, 8, threads)
    hidden, lengths = batch(config, [9, 4])
    assert np.array_equal(native.apply(hidden, lengths, range(0), 3), hidden)
    in_steps = native.apply(native.apply(hidden, lengths, range(2), 3), lengths, range(2, 3), 3)
    assert np.array_equal(in_steps, native.apply(hidden, lengths, range(3), 3))


def test_empty_batches_and_empty_texts_pass():
    config = made_config()
    native, _ = both(config, 8)
    assert native.apply(np.zeros((0, 4, 64), np.float32), np.zeros(0, np.int32), range(3), 3).shape == (0, 4, 64)
    hidden, lengths = batch(config, [4, 2])
    result = native.apply(hidden, np.array([4, 0], np.int32), range(3), 3)
    assert np.array_equal(result[0], native.apply(hidden[:1], lengths[:1], range(3), 3)[0])


def test_numbers_of_any_size_stay_finite():
    config = made_config()
    native, onnx = both(config, 8)
    hidden, lengths = batch(config, [6, 6])
    hidden[0] *= 1e15
    hidden[1] = 0
    result = native.apply(hidden, lengths, range(3), 3)
    assert np.isfinite(result).all()
    assert np.isfinite(onnx.apply(hidden, lengths, range(3), 3)).all()


@pytest.mark.parametrize("lengths", [[5], [5, -1], [5, 9]])
def test_lengths_that_do_not_belong_to_the_texts_are_an_error(lengths):
    native, _ = both(made_config(), 8)
    with pytest.raises(ValueError):
        native.apply(np.zeros((2, 8, 64), np.float32), np.array(lengths, np.int32), range(3), 3)


def test_matrices_of_another_shape_are_an_error():
    config = made_config()
    weights = made_weights(config, 8)
    wrong = weights | {"encoder.groups.0.0.ffn.down.weight": quantize_rows(np.ones((64, 128), np.float32))}
    with pytest.raises(ValueError, match="does not fit the config"):
        NativeLayers(config, wrong, ["encoder.groups.0.0"], 1)


def compile_library(kind: str, library: Path, *options: str) -> None:
    """The library of a kind, with more options for the compiler. Skips the test without gcc."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs gcc")
    sys.path.insert(0, str(ROOT))
    from hatch_build import FLAGS, LIBRARIES

    source = str(native_layers.FOLDER / "layers.c")
    command = [compiler, *FLAGS, *LIBRARIES[kind], *options, "-o", str(library), source, "-lm"]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.slow
def test_no_memory_error_under_sanitizers(kind, tmp_path: Path):
    """The library is compiled with checks of every access, and runs texts of many lengths in 8 bits and in floats."""
    checks = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    compile_library(kind, tmp_path / f"layers_{kind}.so", *checks)
    paths = [
        subprocess.check_output(["gcc", f"-print-file-name=lib{name}.so"], text=True).strip()
        for name in ("asan", "ubsan")
    ]
    code = f"""
from collections.abc import Iterator
from pathlib import Path
import numpy as np
from albertkit.options import Options
from albertkit.runtime import native_layers
native_layers.FOLDER = Path({str(tmp_path)!r})
from tests.runtime.test_native_layers import SHAPES, batch, made_config, layers_of
for shape in SHAPES:
    for bits in (8, 32):
        config = made_config(*shape, options=Options(attention_bias="relative"))
        for threads in (1, 2):
            hidden, lengths = batch(config, [1, 5, 12, 13, 33, 100, 0, 130])
            assert np.isfinite(layers_of(config, bits, threads).apply(hidden, lengths, range(3), 3)).all()
from tests.runtime.test_native_embedding import check_sizes
check_sizes()
print("done")
"""
    environment = os.environ | {"LD_PRELOAD": " ".join(paths), "ASAN_OPTIONS": "detect_leaks=0"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment)
    assert ran.stdout == "done\n", ran.stderr[-2000:]


@pytest.fixture
def emulated_amx(kind, monkeypatch, tmp_path: Path) -> Iterator[None]:
    """The library for AMX with its tile instructions in plain C."""
    if kind != "vnni" or "avx512_bf16" not in native_layers.processor_flags():
        pytest.skip("runs once, on processors with AVX-512 bf16")
    compile_library(
        "amx", tmp_path / "layers_amx.so", "-O2", "-include", str(Path(__file__).parent / "amx_emulation.h")
    )
    flags = native_layers.processor_flags() | native_layers.LIBRARIES["amx"]
    monkeypatch.setattr(native_layers, "FOLDER", tmp_path)
    monkeypatch.setattr(native_layers, "processor_flags", lambda: flags)
    monkeypatch.setenv(native_layers.CHOICE, "amx")
    native_layers.load.cache_clear()
    yield
    native_layers.load.cache_clear()


def test_amx_library_equals_onnxruntime_with_emulated_tiles(emulated_amx):
    for shape in SHAPES:
        check_equal(made_config(*shape), 8, [1, 5, 12, 13, 33, 130])
    check_equal(made_config(options=Options(attention_bias="relative", relative_reach=3)), 8, [7, 61])
    config = made_config()
    native = layers_of(config, 8, 2)
    hidden, lengths = batch(config, [5, 1, 64, 33, 97])
    together = native.apply(hidden, lengths, range(3), 3)
    for text, length in enumerate(lengths):
        alone = native.apply(hidden[text : text + 1, :length], lengths[text : text + 1], range(3), 3)
        assert np.array_equal(alone[0], together[text, :length])


def test_nan_stays_nan():
    native, _ = both(made_config(), 32)
    hidden, lengths = batch(made_config(), [6])
    hidden[0, 2, 3] = np.nan
    assert np.isnan(native.apply(hidden, lengths, range(3), 3)).any()


def test_threads_of_callers_get_their_own_results():
    from concurrent.futures import ThreadPoolExecutor

    config = made_config()
    native, _ = both(config, 8, 2)
    batches = [batch(config, [n + 1, 40], n) for n in range(24)]
    right = [native.apply(*one, range(3), 3) for one in batches]
    with ThreadPoolExecutor(4) as pool:
        for expected, result in zip(right, pool.map(lambda one: native.apply(*one, range(3), 3), batches), strict=True):
            assert np.array_equal(expected, result)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_works_in_a_fork():
    code = (
        "import os, numpy as np\nfrom albertkit import Albert\n"
        "albert = Albert('small', threads=2)\nbefore = albert.embed(['a cat', 'b ' * 60])\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if np.array_equal(before, albert.embed(['a cat', 'b ' * 60])) else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_works_in_a_fork_while_other_threads_compute():
    code = (
        "import os, threading, numpy as np\nfrom albertkit import Albert\n"
        "albert, stop = Albert('small', threads=2), threading.Event()\nbefore = albert.embed('b ' * 60)\n"
        "def work():\n    while not stop.is_set(): albert.embed(['b ' * 60] * 4)\n"
        "worker = threading.Thread(target=work)\nworker.start()\n"
        "ended = []\n"
        "for _ in range(5):\n"
        "    child = os.fork()\n"
        "    if child == 0: os._exit(0 if np.array_equal(before, albert.embed('b ' * 60)) else 1)\n"
        "    ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "stop.set()\nworker.join()\n"
        "raise SystemExit(any(ended))"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=120).returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_library_that_is_opened_again_still_forks(kind):
    code = (
        "import os\nfrom albertkit.runtime import native_layers\n"
        f"native_layers.load({kind!r})\nnative_layers.load.cache_clear()\nnative_layers.load({kind!r})\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_projections_with_unequal_factors_are_floats():
    """Query, key and value are one product in 8 bits only if their inputs have equal factors."""
    config = made_config()
    weights = made_weights(config, 8)
    for group in range(config.layer_groups):
        name = f"encoder.groups.{group}.0.attention.query.weight"
        weights[name] = dataclasses.replace(weights[name], smooth=np.full(config.hidden_size, 1.1, np.float32))
    assert can_run(config, weights)
    hidden, lengths = batch(config, [7])
    prefixes = [f"encoder.groups.{group}.0" for group in range(config.layer_groups)]
    one, two = (
        NativeLayers(config, weights, prefixes, threads).apply(hidden, lengths, range(3), 3) for threads in (1, 2)
    )
    assert np.array_equal(one, two)


@pytest.mark.parametrize("model", ["small", "small-zh", "small-pretrained"])
def test_built_in_models_have_close_vectors(model):
    albert = Albert(model, threads=1)
    assert isinstance(albert.engine, Engine) and isinstance(albert.engine._layers, NativeLayers)
    compiled = albert.embed(TEXTS)
    albert.engine = onnx_engine(model)
    assert (compiled * albert.embed(TEXTS)).sum(axis=1).min() > 0.97


def onnx_engine(model: str) -> Engine:
    """The engine of a built-in model with its layers in onnxruntime."""
    from albertkit.artifact import read_stored
    from albertkit.builtin import resolve

    stored = read_stored(resolve(model))
    return Engine(stored.config, dict(stored.weights), 1, MAX_LEVEL)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_act": "tanh"},
        {"options": Options(window=8)},
        {"options": Options(gated_ffn=True)},
        {"options": Options(pre_norm=True)},
    ],
)
def test_other_models_use_onnxruntime(change):
    config = made_config(**change)
    assert not can_run(config, made_weights(config, 8))


def test_mixed_precision_uses_onnxruntime():
    config = made_config()
    floats, bytes_ = made_weights(config, 32), made_weights(config, 8)
    assert can_run(config, floats) and can_run(config, bytes_)
    name = "encoder.groups.0.0.ffn.down.weight"
    assert not can_run(config, bytes_ | {name: floats[name]})


def test_other_processors_use_onnxruntime(kind, monkeypatch):
    native_layers.load.cache_clear()
    monkeypatch.delenv(native_layers.CHOICE)
    missing = native_layers.LIBRARIES[kind] - {"avx512_vnni"}
    monkeypatch.setattr(native_layers, "processor_flags", lambda: missing)
    assert not can_run(made_config(), made_weights(made_config(), 8))
    native_layers.load.cache_clear()


def test_damaged_library_uses_onnxruntime(kind, monkeypatch, tmp_path: Path):
    native_layers.load.cache_clear()
    monkeypatch.setattr(native_layers, "FOLDER", tmp_path)
    (tmp_path / f"layers_{kind}.so").write_bytes(b"not a library")
    with pytest.raises(AlbertkitError, match=f"ALBERTKIT_LAYERS='{kind}' cannot run: its library is not installed"):
        native_layers.library()
    monkeypatch.delenv(native_layers.CHOICE)
    assert not can_run(made_config(), made_weights(made_config(), 8))
    native_layers.load.cache_clear()


def test_environment_chooses_onnxruntime(monkeypatch):
    monkeypatch.setenv(native_layers.CHOICE, "onnxruntime")
    assert not can_run(made_config(), made_weights(made_config(), 8))
    monkeypatch.setenv(native_layers.CHOICE, "fast")
    with pytest.raises(AlbertkitError, match="'fast' is unknown. Set it to amx, bf16, vnni or onnxruntime"):
        native_layers.library()
