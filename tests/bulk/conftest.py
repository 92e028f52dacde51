"""Small models of two kinds, and one Ray for all tests."""

from __future__ import annotations

import pytest

from albertkit.artifact import write_artifact
from tests.bulk.sample_texts import texts
from tests.conftest import tiny
from tests.test_albert import make


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folders of a float and an int8 model."""
    from albertkit.compress.quantize import quantize

    folder = tmp_path_factory.mktemp("models")
    write_artifact(make(tiny(vocab_size=3000, max_position_embeddings=64), heads=()), folder / "float")
    quantize(folder / "float", folder / "int8", 8, texts(20))
    return folder


@pytest.fixture(scope="session")
def ray():
    """A Ray on this machine."""
    ray = pytest.importorskip("ray")
    from albertkit.bulk.engines import connect_ray

    with connect_ray(None, 2):
        yield ray
