"""Only depths for which a model was trained are shown: in Python, on the command line and by the server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from albertkit import Albert, AlbertkitError, finetune
from albertkit.cli.entry_point import app
from albertkit.runtime.runtime_model import trained_depths
from tests.serve.conftest import Served

EXAMPLES = Path(__file__).parents[2] / "examples" / "messages.tsv"
TEXT = "Where is my parcel?"


@pytest.fixture(scope="module")
def messages(tmp_path_factory) -> Path:
    """The classifier of the README: a head on the frozen vectors of the built-in model."""
    return finetune("classify", EXAMPLES, output=tmp_path_factory.mktemp("readme") / "messages", freeze=True).model


@pytest.mark.parametrize("name", ["small", "small-zh", "messages"])
def test_explain_shows_trained_depths_only(messages, name):
    albert = Albert(messages if name == "messages" else name)
    trained = list(trained_depths(albert.config, albert.metadata, albert.depth))
    found = albert.explain(TEXT)
    assert [layer.depth for layer in found.layers] == trained and 1 not in trained and trained[-1] == albert.depth
    assert found.stable_depth is None or found.stable_depth in trained
    with pytest.raises(AlbertkitError, match="depth=2 is not available: this model was trained for depths"):
        albert.explain(TEXT, depth=2)


def test_early_exit_of_a_frozen_head_uses_trained_depths(messages):
    albert = Albert(messages)
    assert albert.classify(TEXT, early_exit="entropy:1").depth == trained_depths(albert.config, albert.metadata)[0]


def test_command_line_shows_trained_depths_only(messages):
    printed = CliRunner().invoke(app, ["explain", "-m", str(messages), "--json", TEXT]).stdout
    assert [layer["depth"] for layer in json.loads(printed)["layers"]] == [3, 6]
    full = CliRunner().invoke(app, ["explain", "-m", str(messages), "--json", "--depth", "full", TEXT]).stdout
    assert [layer["depth"] for layer in json.loads(full)["layers"]] == [3, 6, 9, 12]


def test_server_explains_a_frozen_head(messages):
    with Served(f"messages={messages}", "--threads", 1) as server:
        found = server.post("/explain", {"text": TEXT, "vectors": True})
        assert found.status_code == 200, found.text
        body = found.json()
        assert [one["depth"] for one in body["depths"]] == [3, 6, 9, 12]
        assert body["kind"] == "classify" and body["stable_depth"] in (3, 6, 9, 12)
        default = next(one for one in body["depths"] if one["depth"] == body["full_depth"] == 6)
        assert default["matches_full_depth"] and default["cosine"] == pytest.approx(1, abs=1e-5)
        assert server.get("/v1/models").json()["data"][0]["depths"] == [3, 6, 9, 12]


def test_server_names_the_model_that_fills_masks():
    with Served("small-zh", "--threads", 1) as server:
        for request in ({"texts": "[MASK]"}, {"texts": "[MASK]", "model": "small-zh"}):
            refused = server.post("/fill", request)
            assert refused.status_code == 424 and "serve small-zh-pretrained too" in refused.json()["error"]
