"""Variants that the documents only discuss: each equals an option, or an option multiplied out."""

from __future__ import annotations

import math

import numpy as np
import torch

from albertkit.artifact import Artifact
from albertkit.compress.prune import PruneSettings, prune_heads_and_ffn
from albertkit.config import Options
from albertkit.model import Batch
from albertkit.model.optional_modules import EmbeddingGru
from albertkit.runtime.activation_moments import token_moments
from albertkit.weights import encoder_shapes, size
from tests.conftest import tiny
from tests.model.test_options import ids, made


def copy_gru(front: EmbeddingGru, theirs: torch.nn.GRU) -> None:
    """torch's weights in our names: those of the first layer without a number, then _1, _2 …"""
    with torch.no_grad():
        for layer in range(theirs.num_layers):
            number = f"_{layer}" if layer else ""
            for mine, own in (
                ("input_weight", "weight_ih"),
                ("state_weight", "weight_hh"),
                ("input_bias", "bias_ih"),
                ("state_bias", "bias_hh"),
            ):
                getattr(front, mine + number).copy_(getattr(theirs, f"{own}_l{layer}"))


def test_the_gru_of_document_003_has_layers_and_no_residual():
    """Its `nn.GRU(input_size, hidden_size, num_layers, batch_first=True)`, whose output is all that the layers read."""
    torch.manual_seed(0)
    theirs = torch.nn.GRU(6, 6, 3, batch_first=True)
    batch, x = Batch.of(ids(7, 7, 3, 1)), torch.randn(18, 6)
    wanted = torch.cat([theirs(part[None])[0][0] for part in x.split([7, 7, 3, 1])])
    for has_residual in (False, True):
        front = EmbeddingGru(6, 3, has_residual)
        copy_gru(front, theirs)
        torch.testing.assert_close(front(x, batch), wanted + x if has_residual else wanted)


def test_a_gru_that_reads_embeddings_of_size_e_is_one_that_reads_them_projected():
    """Document 003 has `input_size` and `hidden_size`: an input matrix (3H, E) is one of (3H, H) after the projection."""
    torch.manual_seed(0)
    theirs, x = torch.nn.GRU(4, 6, 2, batch_first=True), torch.randn(5, 4)
    projection = torch.eye(6, 4)  # (H, E)
    front, same = EmbeddingGru(6, 2, residual=False), torch.nn.GRU(6, 6, 2)
    with torch.no_grad():
        for mine, own in zip(same.parameters(), theirs.parameters(), strict=True):
            mine.copy_(own @ projection.T if own.shape == (18, 4) else own)
    copy_gru(front, same)
    torch.testing.assert_close(front(x @ projection.T, Batch.of(ids(5))), theirs(x[None])[0][0])


class DocumentAttention(torch.nn.Module):
    """The class `AlbertAttention` of document 000, with its missing import."""

    def __init__(self, hidden_size: int, heads: int, embedding_size: int) -> None:
        super().__init__()
        self.num_attention_heads, self.attention_head_size = heads, hidden_size // heads
        self.query, self.key, self.value = (torch.nn.Linear(hidden_size, hidden_size) for _ in range(3))
        self.projection_a = torch.nn.Linear(hidden_size, embedding_size, bias=False)
        self.projection_b = torch.nn.Linear(embedding_size, hidden_size, bias=False)

    def forward(self, hidden_states):
        query, key, value = (
            part(hidden_states).unflatten(-1, (self.num_attention_heads, -1)).permute(0, 2, 1, 3)
            for part in (self.query, self.key, self.value)
        )
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(self.attention_head_size)
        context = torch.matmul(torch.nn.Softmax(dim=-1)(scores), value).permute(0, 2, 1, 3).flatten(2)
        return self.projection_b(self.projection_a(context))


def test_the_code_of_document_000_is_an_output_matrix_of_low_rank():
    """Its A and B equal `output_rank`, and also canonical attention whose output matrix is B·A, without a bias."""
    torch.manual_seed(0)
    config = tiny(options=Options(output_rank=6))
    theirs = DocumentAttention(config.hidden_size, config.num_attention_heads, 6)
    batch, x = Batch.of(ids(9, 9)), torch.randn(18, config.hidden_size)
    wanted = theirs(x.view(2, 9, -1)).flatten(0, 1)
    ours, plain = (made(shape).encoder.groups[0][0].attention for shape in (config, tiny()))
    down, up = theirs.projection_a.weight, theirs.projection_b.weight
    with torch.no_grad():
        for attention in (ours, plain):
            for part in ("query", "key", "value"):
                getattr(attention, part).load_state_dict(getattr(theirs, part).state_dict())
            attention.output.bias.zero_()
        ours.output_down.weight.copy_(down)
        ours.output.weight.copy_(up)
        plain.output.weight.copy_(up @ down)
    torch.testing.assert_close(ours(x, batch), wanted, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(plain(x, batch), wanted, rtol=1e-4, atol=1e-6)
    h, wide = config.hidden_size, config.attention_size
    saved = size(encoder_shapes(tiny())) - size(encoder_shapes(config))
    assert saved == h * wide - 6 * (h + wide) == plain.output.weight.numel() - down.numel() - up.numel()


def test_values_of_another_size_are_low_rank_values_multiplied_out():
    """V·C·D with C (d, d_v) and D (d_v, d) for all heads is a special case of values of size d_v."""
    torch.manual_seed(0)
    config = tiny(options=Options(value_size=3))
    h, d, heads = config.hidden_size, config.head_size, config.num_attention_heads
    small, plain = (made(shape).encoder.groups[0][0].attention for shape in (config, tiny()))
    down, up = torch.randn(d, 3), torch.randn(3, d)
    batch, x = Batch.of(ids(9)), torch.randn(9, h)
    with torch.no_grad():
        query, key, value = plain.project(x, batch, False)
        context = plain.attend(query, key, value @ down @ up, batch, False, False)
        wanted = plain.output(context.flatten(1))
        for part in ("query", "key"):
            getattr(small, part).load_state_dict(getattr(plain, part).state_dict())
        small.value.weight.copy_((down.T @ plain.value.weight.view(heads, d, h)).flatten(0, 1))
        small.value.bias.copy_((plain.value.bias.view(heads, d) @ down).flatten())
        small.output.weight.copy_((plain.output.weight.view(h, heads, d) @ up.T).flatten(1))
        small.output.bias.copy_(plain.output.bias)
        torch.testing.assert_close(small(x, batch), wanted, rtol=1e-4, atol=1e-5)


def test_pruning_and_calibration_see_the_product_of_both_output_matrices():
    """The model with A and B, and the canonical one with B·A: the same heads are kept, with the same outputs."""
    options = Options(output_rank=9, head_size=8, value_size=6)
    factored = Artifact(tiny(options=options), made(tiny(options=options), ()).weights())
    single = tiny(options=Options(head_size=8, value_size=6))
    weights, name = dict(factored.weights), "encoder.groups.0.0.attention.output"
    weights[f"{name}.weight"] = weights[f"{name}.weight"] @ weights.pop(f"{name}_down.weight")
    product = Artifact(single, weights)
    texts = ids(30, 21, 8, 34)
    found, wanted = (prune_heads_and_ffn(a, PruneSettings(heads=2), texts).weights for a in (factored, product))
    assert found[f"{name}_down.weight"].shape == (9, 12)
    for part in ("query.weight", "key.bias", "value.weight"):
        np.testing.assert_array_equal(found[f"{name[:-7]}.{part}"], wanted[f"{name[:-7]}.{part}"])
    np.testing.assert_allclose(
        found[f"{name}.weight"] @ found[f"{name}_down.weight"], wanted[f"{name}.weight"], rtol=1e-3, atol=1e-4
    )
    np.testing.assert_allclose(found[f"{name}.bias"], wanted[f"{name}.bias"], rtol=1e-3, atol=1e-4)
    moments = token_moments(factored.config, dict(factored.weights), texts)
    context = token_moments(single, dict(product.weights), texts)[f"{name}.weight"]
    down = factored.weights[f"{name}_down.weight"]
    np.testing.assert_allclose(moments[f"{name}_down.weight"], context, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(moments[f"{name}.weight"], down @ context @ down.T, rtol=1e-3, atol=1e-4)
