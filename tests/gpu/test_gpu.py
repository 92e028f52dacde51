"""On a GPU: equal to the CPU with every option, in every precision, compiled and in bulk. Skipped without a GPU.

Run it with `make gpu-test`, or `python -m pytest tests/gpu` where make's environment is not installed.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

from albertkit.albert import Albert  # noqa: E402
from albertkit.runtime.packed_texts import OutputRequest, PackedTexts  # noqa: E402
from albertkit.runtime.torch_engine import TorchEngine  # noqa: E402
from tests.bulk.sample_texts import cosines, run_bulk, texts, vectors, write_lines  # noqa: E402
from tests.bulk.test_engines import keys  # noqa: E402
from tests.model.test_options import CASES  # noqa: E402
from tests.runtime.test_graph import by_torch, ids, make  # noqa: E402

LENGTHS = (40, 3, 22, 9, 2, 1, 17, 9, 40, 38)
CLOSE = {"float32": 0.99999, "bf16": 0.997, "float16": 0.9999}  # smallest cosine with float32 on the CPU


def rows(engine: TorchEngine, lists: list[list[int]], depth: int) -> np.ndarray:
    return engine.outputs(PackedTexts.of(lists), depth, [OutputRequest(None)])[0]


@pytest.mark.parametrize("is_compiled", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("case", CASES)
def test_every_option_gives_the_hidden_states_of_the_cpu(case, is_compiled):
    artifact = make(CASES[case], num_hidden_layers=4)
    engine = TorchEngine(artifact.config, dict(artifact.weights), "cuda")
    engine.token_budget = 64
    if is_compiled:
        engine.compile()
    for lists in (ids(LENGTHS), ids((8, 8)), ids((30,))):
        assert np.abs(rows(engine, lists, 4) - np.concatenate(by_torch(artifact, lists, 4))).max() < 1e-3


@pytest.mark.parametrize("precision", ["bf16", "float16"])
@pytest.mark.parametrize("case", CASES)
def test_every_option_computes_in_half_precision(case, precision):
    artifact, lists = make(CASES[case], num_hidden_layers=4), ids(LENGTHS)
    engine = TorchEngine(artifact.config, dict(artifact.weights), "cuda", precision)
    found, expected = rows(engine, lists, 4), np.concatenate(by_torch(artifact, lists, 4))
    assert np.isfinite(found).all() and cosines(found, expected).min() > 0.98


@pytest.mark.parametrize("depth", [6, 12])
@pytest.mark.parametrize("model", ["small", "small-zh"])
def test_compiled_vectors_of_built_in_models_equal_those_of_the_cpu(model, depth):
    lines = texts(400) if model == "small" else ["我想退货", "今天天气很好", "怎么把东西退掉，多少钱？"] * 40
    expected = Albert(model, device="torch", depth=depth).embed(lines)
    for precision, limit in CLOSE.items():
        albert = Albert(model, device="cuda", precision=precision, depth=depth)
        albert.engine.compile()
        assert cosines(albert.embed(lines), expected).min() > limit, precision


def test_bulk_on_a_gpu_gives_the_same_file_twice(tmp_path):
    file = write_lines(tmp_path / "a.txt", lines := texts(3000))
    run = partial(run_bulk, "embed", [str(file)], device="cuda", precision="float16", part_rows=500)
    assert run(str(tmp_path / "one"), workers=1).rows == run(str(tmp_path / "more"), workers=4).rows == 3000
    for path in sorted((tmp_path / "one").glob("part-*")):
        assert path.read_bytes() == (tmp_path / "more" / path.name).read_bytes()
    found, computed = vectors(tmp_path / "more")
    assert found == keys((file, 3000))
    assert cosines(computed, Albert(device="torch").embed(lines)).min() > CLOSE["float16"]


def test_masks_and_early_exit_compute_in_bf16():
    albert = Albert(device="cuda", precision="bf16")
    assert albert.embed_early_exit(texts(20), "cosine:0.9").vectors.shape == (20, 384)
    assert albert.token_vectors("a cat").vectors.dtype == np.float32
