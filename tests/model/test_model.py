"""The model by itself: packing, depth, dropout sites, checkpointing, pooling, own heads, artifacts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import nn

from albertkit.artifact import read_artifact
from albertkit.config import Options
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch, Encoder, EncoderOutput, attention, pool
from albertkit.model.albert_model import build_head
from albertkit.weights import HEADS, encoder_shapes, head_shapes
from tests.conftest import tiny


def random_model(config=None, **kwargs) -> AlbertModel:
    torch.manual_seed(3)
    model = AlbertModel(config or tiny(), **kwargs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model.eval()


MODEL = random_model()
texts = st.lists(st.lists(st.integers(0, 96), min_size=1, max_size=40), min_size=1, max_size=6)


@given(texts)
@settings(max_examples=40)
def test_packed_equals_padded_and_alone(ids):
    """Any mixture of lengths in one row gives each text the vectors it gets alone, and in a padded batch."""
    batch = Batch.of(ids)
    longest = max(batch.lengths)
    padded = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
    with torch.no_grad():
        packed = MODEL(batch).encoded
        unpadded = MODEL(Batch.unpad(padded, mask)).encoded
        assert (packed.hidden - unpadded.hidden).abs().max() <= 1e-5
        for row, part in zip(ids, packed.hidden.split(list(batch.lengths)), strict=True):
            alone = MODEL(Batch.of([row])).encoded.hidden
            assert (alone - part).abs().max() <= 1e-5
    back = batch.pad(packed.hidden)
    assert back.shape == (len(ids), longest, 32) and torch.equal(back[mask.bool()], packed.hidden)


def reference_layer(layer, hidden, heads, attention_p, p):
    """The original code's layer for one text, in the plainest torch, with its three dropouts."""
    n, size = hidden.shape
    a = layer.attention
    split = [f(hidden).view(1, n, heads, -1).transpose(1, 2) for f in (a.query, a.key, a.value)]
    weights = torch.softmax(split[0] @ split[1].transpose(-1, -2) / (size // heads) ** 0.5, -1)
    context = (F.dropout(weights, attention_p) @ split[2]).transpose(1, 2).reshape(n, size)
    hidden = layer.attention_norm(hidden + F.dropout(a.output(context), p))
    inner = F.gelu(layer.ffn.up(hidden), approximate="tanh")
    return layer.ffn_norm(hidden + F.dropout(layer.ffn.down(inner), p))


def test_dropout_is_where_the_original_has_it():
    """With the same generator, a plain re-statement of the original draws the same masks and gives the same numbers."""
    config = tiny(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
    model = random_model(config).train()
    e = model.encoder.embeddings
    batch = Batch.of([[5, 6, 7, 8, 9, 10, 11]])
    torch.manual_seed(7)
    got = model(batch).encoded.hidden
    torch.manual_seed(7)
    summed = e.word(batch.ids) + e.segment(batch.segments) + e.position(batch.positions)
    hidden = e.projection(F.dropout(e.norm(summed), 0.3))
    for _ in range(config.num_hidden_layers):
        hidden = reference_layer(model.encoder.groups[0][0], hidden, config.num_attention_heads, 0.2, 0.3)
    assert (got - hidden).abs().max() <= 1e-5
    assert (model.eval()(batch).encoded.hidden - hidden).abs().max() > 1e-2


def test_dropout_sites_are_counted(monkeypatch):
    config = tiny(num_hidden_layers=5, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    model = random_model(config).train()
    calls = {"hidden": 0, "attention": 0}
    for module in model.modules():
        if isinstance(module, nn.Dropout) and module.p > 0:
            module.register_forward_hook(lambda *_: calls.__setitem__("hidden", calls["hidden"] + 1))
    plain = F.scaled_dot_product_attention

    def counted(*args, dropout_p=0.0, **kwargs):
        calls["attention"] += dropout_p == 0.1
        return plain(*args, dropout_p=dropout_p, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)
    model(Batch.of([[1, 2, 3]]))
    assert calls == {"hidden": 1 + 2 * 5, "attention": 5}


@pytest.mark.parametrize("options", [Options(), Options(brightmart_layout=True)])
def test_every_head_has_the_shapes_of_the_table(options):
    config = tiny(options=options)
    model = AlbertModel(config, {name: build_head(name, config, labels=7) for name in HEADS})
    shapes = encoder_shapes(config)
    for name in HEADS:
        shapes |= head_shapes(config, name, labels=7)
    assert {n: tuple(p.shape) for n, p in model.state_dict().items()} == shapes


def test_checkpointing_changes_memory_not_gradients():
    config = tiny(hidden_dropout_prob=0.1, num_hidden_groups=2, inner_group_num=2)
    batch = Batch.of([[3, 4, 5, 6], [7, 8]])
    grads, kept = [], []
    for on in (False, True):
        model = random_model(config).train()
        model.encoder.checkpointing = on
        torch.manual_seed(11)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (sizes.append(t.numel()), t)[1], lambda t: t):
            loss = model(batch).encoded.hidden.square().sum()
        loss.backward()
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        kept.append(sum(sizes))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*grads, strict=True))
    assert kept[1] < kept[0] / 2


def test_depth_is_a_knob():
    batch = Batch.of([[1, 2, 3, 4]])
    with torch.no_grad():
        full = MODEL(batch, keep_layers=True).encoded
        for depth in (1, 2, 3):
            assert torch.equal(MODEL(batch, depth=depth).encoded.hidden, full.layers[depth])
        assert MODEL(batch, depth=7, keep_layers=True).encoded.layers[-1].shape == (4, 32)
    with pytest.raises(AlbertkitError, match="depth=0 is not available"):
        MODEL(batch, depth=0)


@pytest.mark.parametrize("options", [{}, {"inner_group_num": 2}, {"checkpointing": True}], ids=str)
def test_the_first_tokens_alone_are_the_same_and_learn_the_same(options):
    """What is left out of the last layer is what nobody reads."""
    torch.manual_seed(0)
    options = dict(options)
    checkpointing = options.pop("checkpointing", False)
    model = AlbertModel(tiny(**options), {"classify": build_head("classify", tiny(), 3)}).train()
    model.encoder.checkpointing = checkpointing
    found = []
    for first_only in (False, True):
        model.zero_grad()
        out = model(Batch.of(TEXTS), first_only=first_only)
        out.heads["classify"].logits.square().sum().backward()
        found.append((out.heads["classify"].logits, {n: p.grad.clone() for n, p in model.named_parameters()}))
        assert len(out.encoded.hidden) == (len(TEXTS) if first_only else sum(map(len, TEXTS)))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-6)
    for name, gradient in found[0][1].items():
        assert torch.allclose(gradient, found[1][1][name], atol=1e-5), name


TEXTS = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10], [11], [12, 13, 14, 15, 16], [17, 18], [19, 20, 21]]


def test_padded_attention_is_the_same():
    """The way a GPU takes for many lengths, on the CPU."""
    batch, layer = Batch.of(TEXTS), attention.Attention(tiny()).eval()
    mixed = torch.randn(sum(map(len, TEXTS)), 3, 2, 4, requires_grad=True)
    query, key, value = mixed.unbind(1)
    for first, queries in ((False, query), (True, torch.randn(len(TEXTS), 2, 4))):
        one = layer.attend(queries, key, value, batch, first, local=False)
        two = layer.attend_padded(queries, key, value, batch, first, local=False)
        if first:
            parts = zip(queries, key.split(list(batch.lengths)), value.split(list(batch.lengths)), strict=True)
            alone = [
                torch.einsum("hl,lhd->hd", torch.einsum("hd,lhd->hl", q / 2, k).softmax(-1), v) for q, k, v in parts
            ]
            assert torch.allclose(one, torch.stack(alone), atol=1e-6)
        assert torch.allclose(one, two, atol=1e-6)
        gradients = [torch.autograd.grad(x.sin().sum(), mixed, retain_graph=True)[0] for x in (one, two)]
        assert torch.allclose(*gradients, atol=1e-6)


def test_pooling():
    batch = Batch.of([[1, 2, 3], [4, 5]])
    with torch.no_grad():
        out = MODEL(batch).encoded
    first, second = out.hidden.split([3, 2])
    assert torch.allclose(pool(out, "mean"), torch.stack([first.mean(0), second.mean(0)]))
    assert torch.equal(pool(out, "cls"), torch.stack([first[0], second[0]]))
    assert torch.equal(pool(out, "max"), torch.stack([first.amax(0), second.amax(0)]))
    assert torch.equal(pool(out, "pooler"), out.pooled)
    with pytest.raises(AlbertkitError, match="did you mean 'mean'"):
        pool(out, "men")


@pytest.mark.parametrize(
    ("ids", "segments", "message"),
    [
        ([[97]], None, "token id 97 is outside"),
        ([[-1]], None, "token id -1 is outside"),
        ([[1]], [[2]], "segment 2 is outside"),
        ([[1] * 41], None, "position 40 is outside"),
    ],
)
def test_values_outside_the_tables_are_refused(ids, segments, message):
    with pytest.raises(AlbertkitError, match=message):
        MODEL(Batch.of(ids, segments))


def test_odd_batches_are_refused():
    for make in (
        lambda: Batch.of([]),
        lambda: Batch.of([[]]),
        lambda: Batch.of([[1]], [[0, 0]]),
        lambda: Batch.unpad(torch.zeros(3, dtype=torch.long)),
        lambda: Batch.unpad(torch.zeros(2, 3, dtype=torch.long), torch.tensor([[1, 1, 1], [0, 0, 0]])),
    ):
        with pytest.raises(AlbertkitError):
            make()


# Row 18 of the specification: custom layers on top of the encoder, as in docs/guides/own-layers.md.


@dataclass(frozen=True)
class Stars:
    logits: torch.Tensor  # (texts, 5)


class StarHead(nn.Module):
    """Mean of the token vectors, a hidden layer, five classes."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden_size, 8)
        self.outer = nn.Linear(8, 5)

    def forward(self, encoded: EncoderOutput) -> Stars:
        return Stars(self.outer(torch.tanh(self.inner(pool(encoded, "mean")))))


def test_own_head_trains_saves_and_loads(tmp_path):
    torch.manual_seed(0)
    config = tiny()
    model = AlbertModel(config, {"stars": StarHead(config.hidden_size)})
    ids = torch.randint(5, 97, (30, 9)).tolist()
    batch, labels = Batch.of(ids), torch.tensor([row[0] % 5 for row in ids])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        loss = F.cross_entropy(model(batch).heads["stars"].logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    model.eval().save(tmp_path / "stars")
    again = AlbertModel.from_artifact(tmp_path / "stars", heads={"stars": StarHead(config.hidden_size)})
    assert torch.equal(again(batch).heads["stars"].logits, model(batch).heads["stars"].logits)
    with pytest.raises(AlbertkitError, match="custom head 'stars'"):
        AlbertModel.from_artifact(tmp_path / "stars")
    assert read_artifact(tmp_path / "stars").heads == ["stars"]


def test_head_names_and_pooler_are_checked():
    with pytest.raises(AlbertkitError, match="did you mean 'classify'"):
        build_head("clasify", tiny())
    with pytest.raises(AlbertkitError, match="no head 'mlm'"):
        MODEL(Batch.of([[1]]), heads=("mlm",))
    config = tiny()
    bare = AlbertModel(config, {"classify": build_head("classify", config)}, pooler=False)
    with pytest.raises(AlbertkitError, match="needs a pooler"):
        bare(Batch.of([[1]]))
    three = AlbertModel(config, {"choose": build_head("choose", config)})
    with pytest.raises(AlbertkitError, match="5 texts cannot be split"):
        three(Batch.of([[1]] * 5), inputs={"choose": {"choices": 3}})


def test_fresh_weights_follow_the_original():
    torch.manual_seed(0)
    weight = Encoder(tiny(vocab_size=5000)).embeddings.word.weight
    assert abs(weight.std().item() - 0.02 * 0.88) < 1e-3 and weight.abs().max() <= 0.04


# Who sees whom, and vectors in the place of words ------------------------------------------------------------------


def test_a_text_that_may_see_part_of_itself_is_that_part():
    """Tokens that may look at the first n only are as if the text ended there; in the same batch, others see all."""
    ids = [[2, 5, 6, 7, 3], [2, 8, 3], [2, 9, 10, 3]]
    seen = torch.ones(3, 5, 5, dtype=torch.bool)
    seen[0, :, 3:] = False
    batch = Batch.of(ids)
    found = MODEL(replace(batch, attention_mask=seen)).encoded.hidden.split([5, 3, 4])
    assert torch.allclose(found[0][:3], MODEL(Batch.of([ids[0][:3]])).encoded.hidden, atol=1e-5)
    for got, row in zip(found[1:], ids[1:], strict=True):
        assert torch.allclose(got, MODEL(Batch.of([row])).encoded.hidden, atol=1e-5)
    firsts = MODEL(replace(batch, attention_mask=seen), first_only=True).encoded
    assert torch.allclose(firsts.hidden, torch.stack([part[0] for part in found]), atol=1e-5)
    with pytest.raises(AlbertkitError, match="attention_mask has shape"):
        replace(batch, attention_mask=seen[:2])


def test_vectors_stand_in_the_place_of_words():
    batch = Batch.of([[2, 5, 6, 3], [2, 7, 3]])
    table = MODEL.encoder.embeddings.word.weight.detach()
    places = torch.tensor([1, 5])
    other = replace(batch, ids=batch.ids.index_fill(0, places, 1), vectors=table[batch.ids[places]], places=places)
    assert torch.allclose(MODEL(other).encoded.hidden, MODEL(batch).encoded.hidden, atol=1e-6)
    given = torch.randn(2, table.shape[1], requires_grad=True)
    MODEL(replace(batch, vectors=given, places=places)).encoded.hidden.sum().backward()
    assert given.grad.abs().sum() > 0
    with pytest.raises(AlbertkitError, match="Pass both or neither"):
        replace(batch, places=places)
