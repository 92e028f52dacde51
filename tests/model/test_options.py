"""The documents' options in torch: each against its formula written out plainly, alone and in a batch, and through
training.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from albertkit.artifact import Artifact, read_artifact
from albertkit.cli import entry_point as cli
from albertkit.compress.benchmark import timed_shape
from albertkit.compress.cost import (
    activation_memory,
    model_candidates,
    operations,
    parameter_counts,
    shape_cost,
    weight_bytes,
)
from albertkit.config import AlbertConfig, Options, preset
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch
from albertkit.model.albert_model import build_head
from albertkit.model.optional_modules import ConfigurableAttention, DocumentNorm, EmbeddingGru
from albertkit.options import given_options
from albertkit.tasks import make_task
from albertkit.tokenizer import Tokenizer
from albertkit.train import loop
from albertkit.train.distributed import ProcessGroup
from albertkit.train.elastic import MultiDepthModel
from albertkit.train.finetune_task import FinetuneTask
from albertkit.train.pretrain import PretrainTask, consistency_loss
from albertkit.train.train_settings import PretrainSettings, TrainSettings
from albertkit.weights import encoder_shapes, layer_shapes, size
from tests.conftest import tiny
from tests.train.conftest import VOCAB, write_shards
from tests.train.test_finetune import texts

CASES = {
    "low_rank": {"low_rank": 3},
    "window": {"window": 4},
    "window, mixed": {"window": 3, "global_every": 2},
    "wide window": {"window": 13},
    "window of half a text": {"window": 25, "attention_bias": "head"},
    "window beyond texts": {"window": 2048},
    "shared_heads": {"shared_heads": True},
    "head bias": {"attention_bias": "head"},
    "relative bias": {"attention_bias": "relative", "relative_reach": 5},
    "window, relative bias": {"window": 4, "attention_bias": "relative", "relative_reach": 9},
    "window, head bias": {"window": 4, "attention_bias": "head"},
    "all of attention": {"low_rank": 5, "window": 2, "shared_heads": True, "attention_bias": "relative"},
    "output_rank": {"output_rank": 6},
    "value_size": {"value_size": 5},
    "wide values": {"value_size": 11, "window": 4, "attention_bias": "head"},
    "document 000": {"low_rank": 3, "value_size": 5, "output_rank": 7, "shared_heads": True, "window": 4},
    "gru": {"gru": True},
    "gru, document 003": {"gru": True, "gru_layers": 3, "gru_residual": False},
    "norm": {"norm": "document"},
    "classifier": {"classifier": "mean"},
    "scale_embedding": {"scale_embedding": True},
    "gated_ffn": {"gated_ffn": True},
    "pre_norm": {"pre_norm": True},
    "pre_norm, relative bias": {"pre_norm": True, "attention_bias": "relative", "norm": "document", "classifier": "mean"},
    "prelude": {"prelude_layers": 1},
    "coda": {"coda_layers": 1},
    "outer layers": {
        "prelude_layers": 1, "coda_layers": 1, "outer_intermediate_size": 24, "attention_bias": "relative",
        "pre_norm": True,
    },
    "ffn_groups": {"ffn_groups": 2},
    "ffn_groups, prelude": {"ffn_groups": 2, "prelude_layers": 1, "pre_norm": True, "gated_ffn": True, "window": 4},
    "gru, brightmart": {"gru": True, "brightmart_layout": True, "norm": "document", "scale_embedding": True},
    "everything": {
        "low_rank": 4, "window": 4, "global_every": 2, "shared_heads": True, "attention_bias": "head", "gru": True,
        "norm": "document", "classifier": "mean", "value_size": 6, "output_rank": 9, "gru_layers": 2,
        "gated_ffn": True, "pre_norm": True,
    },
}  # fmt: skip
ALONE = ProcessGroup(0, 1, torch.device("cpu"))
EACH = (
    "low_rank",
    "window, mixed",
    "shared_heads",
    "head bias",
    "relative bias",
    "output_rank",
    "value_size",
    "document 000",
    "gru",
    "gru, document 003",
    "norm",
    "classifier",
    "scale_embedding",
    "gated_ffn",
    "pre_norm",
    "outer layers",
    "ffn_groups",
    "everything",
)
ATTENTION = [name for name, options in CASES.items() if Options(**options).has_attention_options]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("corpus") / "shards", train=60, held=20)


def made(config: AlbertConfig, heads=("mlm", "sop", "classify"), seed: int = 0) -> AlbertModel:
    """A model whose every weight counts."""
    torch.manual_seed(seed)
    model = AlbertModel(config, {name: build_head(name, config) for name in heads}).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.15)
    return model


def ids(*lengths: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(5, 97, n).tolist() for n in lengths]


# Formulas --------------------------------------------------------------------------------------------------------


def plain_attention(attention, config: AlbertConfig, x: torch.Tensor, local: bool, seen=None) -> torch.Tensor:
    """The corrected formulas of docs/reference/artifact.md for one text, token by token."""
    o, n, d = config.options, len(x), config.head_size
    query, key, value = (
        part(x).view(n, -1, wide).expand(n, config.num_attention_heads, wide)
        for part, wide in ((attention.query, d), (attention.key, d), (attention.value, o.value_size or d))
    )
    if o.low_rank:
        low = attention.low
        query, key, value = query @ low.query.T, key @ low.key.T, value @ low.value.T
    scores = torch.einsum("ihd,jhd->hij", query, key) / math.sqrt(o.low_rank or d)
    for i in range(n):
        for j in range(n):
            if o.attention_bias == "head" and j == 0:
                scores[:, i, j] += attention.theta
            if o.attention_bias == "relative":
                reach = o.relative_reach
                scores[:, i, j] += attention.theta[:, max(-reach, min(reach, j - i)) + reach]
            hidden = local and abs(i - j) > o.window and 0 not in (i, j)
            if hidden or (seen is not None and not seen[i, j]):
                scores[:, i, j] = -math.inf
    context = torch.einsum("hij,jhd->ihd", scores.softmax(-1), value)
    context = context @ attention.low.lift.T if o.low_rank else context
    context = context.flatten(1)
    return attention.output(context @ attention.output_down.weight.T if o.output_rank else context)


@pytest.mark.parametrize("length", [1, 5, 11, 30])
@pytest.mark.parametrize("case", ATTENTION)
def test_attention_is_its_formula(case, length):
    """Lengths within the window, where a mask is used, and beyond, where blocks are."""
    config = tiny(options=Options(**CASES[case]))
    attention = made(config).encoder.groups[0][0].attention
    batch, x = Batch.of(ids(length, length)), torch.randn(2 * length, config.hidden_size)
    for local in {False, bool(config.options.window)}:
        wanted = torch.cat([plain_attention(attention, config, part, local) for part in x.split(length)])
        torch.testing.assert_close(attention(x, batch, False, local), wanted, rtol=1e-4, atol=1e-5)
        first = attention(x, batch, True, local)
        torch.testing.assert_close(first, wanted[::length], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ATTENTION)
def test_padded_and_seen_are_the_same_formula(case, monkeypatch):
    """What a GPU does with many lengths, and what generation does with who sees whom."""
    config = tiny(options=Options(**CASES[case]))
    attention = made(config).encoder.groups[0][0].attention
    lengths = (30, 17, 4, 3, 2, 1)
    batch = Batch.of(ids(*lengths))
    x = torch.randn(sum(lengths), config.hidden_size)
    seen = torch.ones(len(lengths), 30, 30, dtype=torch.bool).tril() | (torch.arange(30) < 3)
    shown = dataclasses.replace(batch, attention_mask=seen)
    for local in {False, bool(config.options.window)}:
        wanted = [plain_attention(attention, config, part, local) for part in x.split(lengths)]
        torch.testing.assert_close(attention(x, batch, False, local), torch.cat(wanted), rtol=1e-4, atol=1e-5)
        everyone = dataclasses.replace(batch, attention_mask=torch.ones_like(seen))
        torch.testing.assert_close(attention(x, everyone, False, local), torch.cat(wanted), rtol=1e-4, atol=1e-5)
        wanted = [plain_attention(attention, config, p, local, s) for p, s in zip(x.split(lengths), seen, strict=True)]
        torch.testing.assert_close(attention(x, shown, False, local), torch.cat(wanted), rtol=1e-4, atol=1e-5)
        tops = torch.stack([text[0] for text in wanted])
        torch.testing.assert_close(attention(x, shown, True, local), tops, rtol=1e-4, atol=1e-5)


def test_blocks_over_padding_are_the_same_as_alone():
    """Blocks of texts of several lengths at once, as on a GPU."""
    config = tiny(options=Options(window=3, attention_bias="relative", shared_heads=True))
    attention = made(config).encoder.groups[0][0].attention
    batch = Batch.of(ids(40, 23, 9, 1))
    heads, d = config.num_attention_heads, config.head_size
    query, key, value = torch.randn(3, 73, heads, d).unbind(0)
    padding = batch.padding
    table = [x[padding.tokens].transpose(1, 2) for x in (query, key, value)]
    found = attention.attend_texts(*table, False, True, padding.mask[:, None, None]).transpose(1, 2).flatten(0, 1)
    wanted = attention.attend(query, key, value, batch, False, True)
    torch.testing.assert_close(found[padding.positions], wanted, rtol=1e-4, atol=1e-5)


def test_the_documents_norm_and_its_gradient_for_equal_numbers():
    norm = DocumentNorm(8, eps=1e-5)
    x = torch.randn(5, 8)
    wanted = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)
    torch.testing.assert_close(norm(x), wanted)
    flat = torch.ones(2, 8, requires_grad=True)
    norm(flat).sum().backward()
    assert bool(flat.grad.isfinite().all())


def test_the_gru_is_torchs_and_knows_no_later_token():
    torch.manual_seed(0)
    front, theirs = EmbeddingGru(6), torch.nn.GRU(6, 6, batch_first=True)
    names = ("input_weight", "state_weight", "input_bias", "state_bias")
    with torch.no_grad():
        for mine, own in zip(names, theirs.parameters(), strict=True):
            getattr(front, mine).copy_(own)
    batch, x = Batch.of(ids(7, 7, 3, 1)), torch.randn(18, 6)
    wanted = torch.cat([part + theirs(part[None])[0][0] for part in x.split([7, 7, 3, 1])])
    torch.testing.assert_close(front(x, batch), wanted)
    changed = x.clone()
    changed[5:7] += 1
    torch.testing.assert_close(front(changed, batch)[:5], wanted[:5])


def test_the_mean_classifier_reads_the_mean():
    config = tiny(options=Options(classifier="mean"))
    model, rows = made(config), ids(9, 9, 4)
    assert model.encoder.pooler is None and "encoder.pooler.weight" not in encoder_shapes(config)
    out = model(Batch.of(rows), first_only=True)
    means = torch.stack([text.mean(0) for text in out.encoded.hidden.split([9, 9, 4])])
    for name in ("classify", "sop"):
        torch.testing.assert_close(out.heads[name].logits, model.heads[name].linear(means))


@pytest.mark.parametrize(("act", "function"), [("gelu", F.gelu), ("silu", F.silu)])
def test_the_gated_feed_forward_is_its_formula(act, function):
    """GeGLU and SwiGLU: the activation of one product times another product."""
    ffn = made(tiny(options=Options(gated_ffn=True), hidden_act=act)).encoder.groups[0][0].ffn
    x = torch.randn(7, 32)
    wide = function(x @ ffn.gate.weight.T + ffn.gate.bias) * (x @ ffn.up.weight.T + ffn.up.bias)
    torch.testing.assert_close(ffn(x), wide @ ffn.down.weight.T + ffn.down.bias)


def test_pre_norm_is_its_formula_at_every_depth():
    """Each half adds to its input and reads its norm; what is read at a depth is normalised once more."""
    model, batch = made(tiny(options=Options(pre_norm=True))), Batch.of(ids(9, 9, 4))
    layer = model.encoder.groups[0][0]
    with torch.no_grad():
        x, kept = model.encoder.embeddings(batch), model.encoder(batch, keep_layers=True).layers
        torch.testing.assert_close(kept[0], x)
        for depth in (1, 2, 3):
            x = x + layer.attention(layer.attention_norm(x), batch)
            x = x + layer.ffn(layer.ffn_norm(x))
            wanted = model.encoder.output_norm(x)
            whole = model.encoder(batch, depth=depth)
            torch.testing.assert_close(whole.hidden, wanted)
            torch.testing.assert_close(kept[depth], wanted)
            torch.testing.assert_close(whole.pooled, torch.tanh(model.encoder.pooler(batch.first(wanted))))
            first = model.encoder(batch, depth=depth, first_only=True)
            torch.testing.assert_close(first.hidden, batch.first(wanted), rtol=1e-4, atol=1e-5)


def test_prelude_first_and_coda_last_at_every_depth():
    """The layers between them are the core's, as many as the depth leaves; a model beyond its depth has more of them."""
    config = tiny(num_hidden_layers=7, num_hidden_groups=2, options=Options(prelude_layers=1, coda_layers=2))
    wanted = {
        1: [0], 2: [0, 3], 3: [0, 3, 4], 4: [0, 1, 3, 4], 5: [0, 1, 1, 3, 4], 6: [0, 1, 1, 2, 3, 4],
        7: [0, 1, 1, 2, 2, 3, 4], 9: [0, 1, 1, 2, 2, 2, 2, 3, 4],
    }  # fmt: skip
    model, batch = made(config), Batch.of(ids(9, 9, 4))
    encoder = model.encoder
    with torch.no_grad():
        kept = encoder(batch, depth=7, keep_layers=True).layers
        for depth, groups in wanted.items():
            assert [config.group_of(layer, depth) for layer in range(depth)] == groups
            x = encoder.embeddings(batch)
            for group in groups:
                x = encoder.groups[group][0](x, batch)
            torch.testing.assert_close(encoder(batch, depth=depth).hidden, x)
            first = encoder(batch, depth=depth, first_only=True).hidden
            torch.testing.assert_close(first, batch.first(x), rtol=1e-4, atol=1e-5)
            if depth < 8:
                torch.testing.assert_close(kept[depth], x)


def test_layers_share_attention_and_not_the_feed_forward_part():
    """Group i·m // n of attention and part i·N // n of feed-forward, for layer i of the n layers of the core."""
    options = Options(ffn_groups=6, prelude_layers=1, coda_layers=1)
    config = tiny(num_hidden_layers=8, num_hidden_groups=2, options=options)
    wanted = {
        8: [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (3, 0)],
        5: [(0, 0), (1, 0), (1, 1), (1, 2), (3, 0)],
        9: [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (2, 2), (3, 0)],
    }
    model, batch = made(config), Batch.of(ids(9, 9, 4))
    encoder = model.encoder
    with torch.no_grad():
        for depth, parts in wanted.items():
            assert [(config.group_of(i, depth), config.ffn_of(i, depth)) for i in range(depth)] == parts
            x = encoder.embeddings(batch)
            for group, number in parts:
                layer = encoder.groups[group][0]
                x = layer.attention_norm(x + layer.attention(x, batch))
                half = layer if layer.ffn_groups is None else layer.ffn_groups[number]
                x = half.ffn_norm(x + half.ffn(x))
            torch.testing.assert_close(encoder(batch, depth=depth).hidden, x)


def test_consistency_by_cosine_and_by_product():
    layers = tuple(torch.randn(4, 6) for _ in range(3))
    pairs = [(0, 1), (0, 2), (1, 2)]
    dots = torch.stack([(layers[a] * layers[b]).sum(-1) for a, b in pairs])
    torch.testing.assert_close(consistency_loss(layers, "dot"), -F.logsigmoid(dots).mean())
    cosines = torch.stack([F.cosine_similarity(layers[a], layers[b]) for a, b in pairs])
    torch.testing.assert_close(consistency_loss(layers), -F.logsigmoid(cosines).mean())
    alike = consistency_loss((layers[0], layers[0]))
    assert alike < consistency_loss((layers[0], -layers[0]))  # likeness is rewarded
    with pytest.raises(AlbertkitError, match="cosine, dot"):
        PretrainSettings(consistency_similarity="angle")


# Whole models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_packed_is_alone_and_the_table_is_the_model(case):
    groups = 1 if "ffn_groups" in CASES[case] else 2
    config = tiny(options=Options(**CASES[case]), num_hidden_groups=groups, num_hidden_layers=4)
    model, rows = made(config), ids(40, 21, 21, 6, 1)
    table = encoder_shapes(config)
    assert {n: tuple(p.shape) for n, p in model.encoder.named_parameters(prefix="encoder")} == table
    with torch.no_grad():
        whole = model(Batch.of(rows))
        for at, row in enumerate(rows):
            alone = model(Batch.of([row]))
            got = whole.encoded.hidden.split([len(r) for r in rows])[at]
            torch.testing.assert_close(got, alone.encoded.hidden, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(
                whole.heads["sop"].logits[at], alone.heads["sop"].logits[0], rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("case", ["outer layers", "ffn_groups, prelude"])
def test_elastic_training_reads_the_result_of_each_depth(case):
    model, batch = made(tiny(options=Options(**CASES[case]), num_hidden_layers=5)), Batch.of(ids(9, 9, 4))
    with torch.no_grad():
        outputs, _ = MultiDepthModel(model, ("classify",))(batch, range(1, 6))
        for depth, output in outputs.items():
            wanted = model(batch, depth=depth, heads=["classify"]).heads["classify"].logits
            torch.testing.assert_close(output.heads["classify"].logits, wanted)


@pytest.mark.parametrize("case", EACH)
def test_steps_of_pretraining_reach_every_weight(case, shards, tmp_path):
    drops = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    config = tiny(options=Options(**CASES[case]), **drops)
    settings = TrainSettings(steps=10, batch_size=4, device="cpu", learning_rate=0.01)
    goals = PretrainSettings(
        lengths="24",
        short_ratio=0.0,
        eval_rows=8,
        consistency_weight=0.1,
        consistency_similarity="dot",
        layer_decay=0.9,
    )
    work = PretrainTask(shards, config, settings, goals)
    before = {name: p.detach().clone() for name, p in work.model.named_parameters()}
    run = loop.TrainingRun(work, settings, tmp_path, ALONE, print)
    for _ in range(2):
        run.step(0.5)
    assert bool(run.sums.isfinite().all()) and all(math.isfinite(value) for value in work.evaluate().values())
    for name, p in work.model.named_parameters():
        assert not torch.equal(p, before[name]), name


def test_pretraining_learns_with_options(shards, tmp_path):
    """A loss that falls, with everything on, in bf16."""
    config = tiny(options=Options(**CASES["everything"]), num_hidden_layers=2, initializer_range=0.1)
    losses = []
    for steps in (1, 25):
        settings = TrainSettings(
            steps=steps, batch_size=16, evaluations=1, log_every=100, tensorboard=False, device="cpu", learning_rate=0.01, precision="bf16",
        )  # fmt: skip
        work = PretrainTask(shards, config, settings, PretrainSettings(lengths="24", short_ratio=0.0, eval_rows=64))
        with torch.backends.mkldnn.flags(enabled=False):  # which some processors without bf16 do not survive
            losses.append(loop.train(work, settings, tmp_path / str(steps)).metrics["mlm_loss"])
    assert losses[1] < losses[0] - 0.2
    back = read_artifact(tmp_path / "25" / "model")
    assert back.config == work.config and set(back.weights) == set(work.model.state_dict())


@pytest.mark.parametrize("case", EACH)
def test_a_few_steps_of_fine_tuning(case, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n")
    config = tiny(vocab_size=len(VOCAB), max_position_embeddings=64, options=Options(**CASES[case]))
    start = Artifact(config, made(config, ()).weights(), Tokenizer.from_vocab(path))
    examples = texts(24)
    settings = TrainSettings(steps=3, batch_size=8, evaluations=1, tensorboard=False, device="cpu")
    work = FinetuneTask(make_task("classify", examples), start, examples, examples[:8], settings)
    before = {name: p.detach().clone() for name, p in work.model.named_parameters()}
    run = loop.TrainingRun(work, settings, tmp_path, ALONE, print)
    for _ in range(3):
        run.step(0.5)
    assert 0 <= work.evaluate()["accuracy"] <= 1
    new = [
        n for n in before if any(part in n for part in (".low.", ".theta", ".gru.", "output_down", "heads.classify"))
    ]
    assert new and all(not torch.equal(dict(work.model.named_parameters())[n], before[n]) for n in new)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["everything", "ffn_groups, prelude"])
def test_a_layer_can_be_compiled(case):
    """As one graph, whichever backend then makes of it."""
    config = tiny(options=Options(**CASES[case]))
    model = made(config)
    layer, batch = model.encoder.groups[-1][0], Batch.of(ids(30, 30))
    x = torch.randn(60, config.hidden_size)
    for local, ffn in product({False, bool(config.options.window)}, range(config.ffns_per_group)):
        graph = torch.compile(layer, backend="eager", fullgraph=True, dynamic=False)
        torch.testing.assert_close(graph(x, batch, False, local, ffn), layer(x, batch, False, local, ffn))


# Counting, refusing, the command line ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_the_planner_counts_what_there_is(case):
    config = tiny(options=Options(**CASES[case]), max_position_embeddings=64)
    parts = parameter_counts(config)
    total = parts.pop("total")
    parts.pop("heads (masked word, order)")
    assert sum(parts.values()) == total == size(encoder_shapes(config))
    made_plan = shape_cost(config, length=64)
    ops = made_plan.operations.copy()
    assert ops.pop("total") == pytest.approx(sum(ops.values()))
    assert made_plan.bytes["4-bit"] < made_plan.bytes["int8"] < made_plan.bytes["float32"] == 4 * total
    assert all(n > 0 for n in activation_memory(config, 64, 2).values())
    for candidate in model_candidates("mine", config):
        assert candidate.file_bytes > 0 and candidate.memory(64, 0.0) > 0 and timed_shape(candidate.config)


def test_what_saves_operations_and_what_does_not():
    base = preset("base")

    def of(length=512, **options):
        return operations(base.replace(options=Options(**options)), length)["total"]

    def count(**options):
        return size(encoder_shapes(base.replace(options=Options(**options))))

    assert of(low_rank=32) < of() and of(shared_heads=True) < of() and of(window=64) < of()
    assert of(window=64, global_every=3) > of(window=64)
    assert of(output_rank=128) < of() and of(value_size=32) < of() < of(value_size=96)
    assert of(gru=True, gru_layers=3) - of(gru=True) == 2 * (of(gru=True) - of())
    assert of(low_rank=32, value_size=48) == of(low_rank=32)  # heads of size d_a either way
    assert of(window=64, length=60) == of(length=60) and of(gru=True) > of() < of(attention_bias="relative")
    assert of(gated_ffn=True) - of() == 2 * 768 * 3072 * 12
    assert count(gated_ffn=True) - count() == 769 * 3072
    layer = size(layer_shapes(base, "layer"))
    assert of(prelude_layers=1, coda_layers=2) == of() and count(prelude_layers=1, coda_layers=2) - count() == 3 * layer
    ffn = size({name: shape for name, shape in layer_shapes(base, "layer").items() if "attention" not in name})
    assert of(ffn_groups=3) == of() and count(ffn_groups=3) - count() == 2 * ffn
    small = {"prelude_layers": 1, "coda_layers": 2, "outer_intermediate_size": 1024}
    assert of(**small) - of() == 3 * 2 * 2 * 768 * (1024 - 3072)
    assert count(**small) - count(prelude_layers=1, coda_layers=2) == 3 * (2 * 768 + 1) * (1024 - 3072)
    assert of(pre_norm=True) == of() and count(pre_norm=True) - count() == 2 * 768
    shapes = encoder_shapes(base.replace(options=Options(low_rank=32)))
    assert weight_bytes(shapes)["int8"] - weight_bytes(encoder_shapes(base))["int8"] == 4 * 4 * 64 * 32  # stays float


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"low_rank": 8}, "below the head size"),
        ({"low_rank": -1}, "0 to"),
        ({"global_every": 2}, "without a window"),
        ({"window": 4, "global_every": 1}, "every layer global"),
        ({"relative_reach": 8}, "attention_bias=relative"),
        ({"attention_bias": "row"}, "head"),
        ({"norm": "layer"}, "document"),
        ({"classifier": "max"}, "mean"),
        ({"gru": 1}, "must be of type bool"),
        ({"value_size": 8}, "the head size"),
        ({"value_size": 4, "low_rank": 4}, "below the size of values"),
        ({"value_size": 100_000}, "0 to"),
        ({"output_rank": 32}, "below hidden_size"),
        ({"output_rank": -1}, "0 to"),
        ({"gru_layers": 2}, "gru=true"),
        ({"gru_residual": False}, "gru=true"),
        ({"gru": True, "gru_layers": 0}, "1 to"),
        ({"gru": True, "gru_layers": 99}, "1 to"),
        ({"window": True}, "must be of type int"),
        ({"static": True, "gru": True}, "without layers"),
        ({"prelude_layers": 1, "coda_layers": 2}, "num_hidden_layers is 3; .* it must be 4 or more"),
        ({"prelude_layers": -1}, "0 to"),
        ({"ffn_groups": 4}, "ffn_groups is 4; it must be .* up to 3"),
        ({"ffn_groups": 1}, "ffn_groups is 1; it must be .* above 1"),
        ({"outer_intermediate_size": 24}, "prelude_layers or coda_layers"),
        ({"prelude_layers": 1, "outer_intermediate_size": 48}, "the intermediate_size. Omit it"),
    ],
    ids=str,
)
def test_refusals(options, says):
    with pytest.raises(AlbertkitError, match=says):
        tiny(options=Options(**options))


def test_options_go_through_config_json():
    config = tiny(options=Options(**CASES["everything"]))
    data = json.loads(json.dumps(config.to_dict()))
    assert data["model_type"] == "albertkit" and AlbertConfig.from_dict(data) == config
    with pytest.raises(AlbertkitError, match="unknown option 'windw'.*window"):
        AlbertConfig.from_dict({**data, "albertkit": {"windw": 4}})


def test_options_from_the_command_line(shards, tmp_path, monkeypatch, capsys):
    assert given_options(["low_rank=4", "gru=yes", "norm=document"]) == Options(low_rank=4, gru=True, norm="document")
    for wrong, says in (
        ("gru", "no value"),
        ("gru=maybe", "true or false"),
        ("window=a", "whole number"),
        ("window=" + "9" * 5000, "whole number"),
        ("grv=true", "gru"),
    ):
        with pytest.raises(AlbertkitError, match=says):
            given_options([wrong])
    with pytest.raises(AlbertkitError, match="twice"):
        given_options(["window=4", "window=5"])

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["albertkit", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    shape = tmp_path / "shape.json"
    shape.write_text(json.dumps(tiny().to_dict()))
    given = ("--option", "window=4", "--option", "gru=true")
    quick = (
        "--lengths",
        "16",
        "--batch-size",
        "4",
        "--device",
        "cpu",
        "--eval-rows",
        "8",
        "--no-tensorboard",
        "--steps",
        "2",
    )
    code, out, err = run("pretrain", shards, "-o", tmp_path / "run", "--shape", shape, *given, *quick)
    assert code == 0, err
    assert read_artifact(json.loads(out)["model"]).config.options == Options(window=4, gru=True)
    code, out, _ = run("plan", "base", *given, "--json")
    assert code == 0 and json.loads(out)["parameters"]["GRU"] == 2 * (3 * 768 * 768 + 3 * 768)
    code, _, err = run("plan", "base", "--option", "windw=4")
    assert code != 0 and "window" in err


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 40])
def test_relative_bias_and_its_gradient_equal_a_table_of_distances(length):
    attention = ConfigurableAttention(tiny(options=Options(attention_bias="relative", relative_reach=5))).double()
    torch.nn.init.normal_(attention.theta)
    place = torch.arange(length)
    for asked in {1, length}:
        table = attention.distance_bias(place[None] - place[:asked, None])
        bias = attention.bias(asked, length, torch.device("cpu"))
        assert torch.equal(bias, table)
        weight = torch.randn_like(table)
        found, wanted = (torch.autograd.grad((x * weight).sum(), attention.theta)[0] for x in (bias, table))
        torch.testing.assert_close(found, wanted)
