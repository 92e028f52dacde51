"""The sizes that the planner predicts are those of the files that `quantize` writes."""

from __future__ import annotations

import json
import sys

import pytest

from albertkit.artifact import QUANTIZED_FILE, WEIGHTS_FILE, read_artifact, write_artifact
from albertkit.builtin import resolve
from albertkit.cli import entry_point as cli
from albertkit.compress.cost import FORMATS, model_candidates, shape_cost, stored_heads
from albertkit.compress.quantize import quantize
from tests.runtime.test_graph import TEXTS, make


def predicted(artifact, bits: int) -> int:
    """What `plan` predicts for a model as it is, in a number format."""
    heads = stored_heads(artifact.weights)
    whole = next(c for c in model_candidates("m", artifact.config, heads=heads) if c.bits == bits)
    assert whole.config == artifact.config
    assert whole.file_bytes == shape_cost(artifact.config, 16, 1, heads).bytes[FORMATS[bits]]
    return whole.file_bytes


@pytest.mark.parametrize("bits", [32, 8, 4])
def test_predicted_sizes_of_the_built_in_model_are_those_of_its_files(bits, tmp_path):
    """Embeddings stay at 8 bits and the heads are stored too: 5.32 MB at 4 bits, where 3.69 MB was predicted once."""
    artifact = read_artifact(resolve("small-pretrained"))
    write_artifact(artifact, tmp_path / "m", bits=None if bits == 32 else bits)
    written = (tmp_path / "m" / (WEIGHTS_FILE if bits == 32 else QUANTIZED_FILE)).stat().st_size
    assert predicted(artifact, bits) == pytest.approx(written, rel=0.02)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("options", [{}, {"low_rank": 24, "value_size": 40, "output_rank": 60, "gru": True}], ids=str)
def test_predicted_sizes_are_those_that_quantize_writes(bits, options, tmp_path):
    artifact = make(options, hidden_size=256, num_attention_heads=8, intermediate_size=512, embedding_size=64)
    write_artifact(artifact, tmp_path / "m")
    assert predicted(artifact, bits) == pytest.approx(
        quantize(tmp_path / "m", tmp_path / "q", bits, TEXTS).bytes, rel=0.02
    )


def test_plan_counts_the_heads_of_a_model(monkeypatch, capsys):
    def plan(*args):
        monkeypatch.setattr(sys, "argv", ["albertkit", "plan", *args])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        return capsys.readouterr().out

    sizes = json.loads(plan("small-pretrained", "--json"))["bytes"]
    assert sizes["4-bit"] == pytest.approx(5.32e6, rel=0.02) and sizes["int8"] == pytest.approx(6.22e6, rel=0.02)
    assert "weights with the heads mlm, sop" in plan("small-pretrained")
    assert "weights of the encoder" in plan("base")
