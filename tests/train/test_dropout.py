"""Dropout of a fine-tuning: as asked, kept in the config, and no part of what a model says."""

from __future__ import annotations

import numpy as np
import pytest

from albertkit.albert import Albert
from albertkit.artifact import read_artifact
from albertkit.errors import AlbertkitError
from albertkit.train import finetune as tune
from albertkit.train.train_settings import FinetuneSettings
from tests.train.test_elastic import QUICK
from tests.train.test_elastic import start as start  # the fixture
from tests.train.test_finetune import texts


def test_dropout_is_that_which_was_asked_for(start, tmp_path):
    made = {
        rate: tune.finetune_examples("classify", texts(48), texts(12, 9), tmp_path / str(rate), start, FinetuneSettings(epochs=1, dropout=rate, **QUICK)).model
        for rate in (None, 0.0, 0.3)
    }  # fmt: skip
    configs = {rate: read_artifact(folder).config for rate, folder in made.items()}
    assert configs[0.3].hidden_dropout_prob == configs[0.3].attention_probs_dropout_prob == 0.3
    assert configs[None] == start.config
    lines = [e.text for e in texts(8, 3)]
    said = {rate: [r.probability for r in Albert(folder).classify(lines)] for rate, folder in made.items()}
    assert said[0.3] == [r.probability for r in Albert(made[0.3]).classify(lines)]  # reading has none
    assert not np.allclose(said[0.0], said[0.3])


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_dropout_out_of_range_is_refused(rate):
    with pytest.raises(AlbertkitError, match="dropout is"):
        FinetuneSettings(dropout=rate)
