"""The plain numpy forward beside the engine and torch: hidden states of every layer, and attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from albertkit.albert import Albert
from albertkit.artifact import Artifact, ArtifactMetadata, read_stored, write_artifact
from albertkit.config import Options
from albertkit.errors import AlbertkitError
from albertkit.explain import Explainer
from albertkit.explain.activations import MAX_TOKENS, ActivationEncoder, erf
from albertkit.model import AlbertModel
from albertkit.runtime.batching import token_batches
from albertkit.runtime.engine import open_engine
from tests.conftest import tiny

IDS = [2, 17, 5, 44, 9, 3]
SEGMENTS = [0, 0, 0, 1, 1, 1]
SHAPES = [
    {},
    {"hidden_act": "gelu", "num_hidden_groups": 2, "inner_group_num": 2},
    {"hidden_act": "silu", "options": Options(head_size=5)},
    {"hidden_act": "relu", "options": Options(brightmart_layout=True, scale_embedding=True)},
    {"hidden_act": "tanh", "options": Options(scale_embedding=True)},
]


def weights_of(config, seed=1):
    torch.manual_seed(seed)
    model = AlbertModel(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(mean=1.0 if "norm.weight" in name else 0.0, std=0.15)
    return model.weights()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape.get("hidden_act", "plain")))
def test_every_layer_is_the_engines(shape):
    config = tiny(**shape)
    weights = weights_of(config)
    seen = ActivationEncoder(config, weights).run(IDS, SEGMENTS, depth=4)  # beyond the model's own three
    engine = open_engine(config, dict(weights), 1)
    (batch,) = token_batches([IDS], [SEGMENTS])
    for depth in range(5):
        assert np.abs(seen.hidden[depth] - engine.run(batch, depth)[0]).max() < 1e-3
    assert seen.attention.shape == (4, config.num_attention_heads, 6, 6)
    assert np.allclose(seen.attention.sum(-1), 1, atol=1e-5) and seen.attention.min() >= 0


def test_attention_is_that_of_transformers():
    transformers = pytest.importorskip("transformers")
    from albertkit.weights import tensor_names

    config = tiny()
    torch.manual_seed(0)
    theirs = transformers.AlbertModel(transformers.AlbertConfig(**config.to_dict())).eval()
    theirs.set_attn_implementation("eager")  # the only one that tells
    state = {name: tensor.numpy() for name, tensor in theirs.state_dict().items()}
    public = {n.torch.removeprefix("albert."): n.ours for n in tensor_names(config)}
    weights = {public[name]: array for name, array in state.items() if name in public}
    with torch.no_grad():
        wanted = theirs(torch.tensor([IDS]), token_type_ids=torch.tensor([SEGMENTS]), output_attentions=True)
    seen = ActivationEncoder(config, weights).run(IDS, SEGMENTS)
    for layer, attention in enumerate(wanted.attentions):
        assert np.abs(seen.attention[layer] - attention[0].numpy()).max() < 1e-5


def test_the_built_in_model_and_eight_bits():
    """The engine also rounds activations to 8 bits, so that it is close to this and not the same."""
    albert = Albert(threads=1)
    text = "A man plays the guitar."
    ids = albert.tokenizer.encode(text).ids
    seen = Explainer(albert).encoder.run(ids, depth=12)
    for layer in (0, 3, 12):
        mine, engine = seen.hidden[layer], albert.token_vectors(text, layer=layer).vectors
        cosines = (mine * engine).sum(1) / np.linalg.norm(mine, axis=1) / np.linalg.norm(engine, axis=1)
        assert cosines.min() > 0.99, (layer, cosines)
    assert seen.attention.shape == (12, 6, len(ids), len(ids))


def test_limits_and_depth(tmp_path):
    config = tiny()
    folder = write_artifact(
        Artifact(config, weights_of(config), None, ArtifactMetadata(task="embed", depth=2)), tmp_path / "m"
    )
    stored = read_stored(folder)
    encoder = ActivationEncoder(stored.config, stored.weights, stored.metadata.depth)
    assert len(encoder.run(IDS).hidden) == 3  # the depth that the model was made for
    assert encoder.run(IDS, depth=0).attention.shape == (0, 4, 6, 6)
    most = min(MAX_TOKENS, config.max_position_embeddings)
    with pytest.raises(AlbertkitError, match=f"needs 1 to {most}"):
        encoder.run([5] * (most + 1))
    with pytest.raises(AlbertkitError, match="no layers"):
        ActivationEncoder(tiny(options=Options(static=True)), {})


def test_erf():
    import math

    x = np.linspace(-4, 4, 801, dtype=np.float32)
    assert np.abs(erf(x) - np.array([math.erf(v) for v in x])).max() < 5e-7
