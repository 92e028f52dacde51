"""The losses: against transformers, against plain restatements, and the same however a batch is shared."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from albertkit.albert import Albert
from albertkit.artifact import Artifact, read_artifact, write_artifact
from albertkit.config import Options
from albertkit.data import masking
from albertkit.data.row_stream import RowStream
from albertkit.errors import AlbertkitError
from albertkit.interop.huggingface import from_state_dict
from albertkit.model import AlbertModel, Batch, Encoder
from albertkit.model.albert_model import build_head
from albertkit.tokenizer import Tokenizer
from albertkit.train.checkpoint import TrainState
from albertkit.train.distributed import ProcessGroup
from albertkit.train.loop import TrainingRun
from albertkit.train.pretrain import (
    PretrainObjective,
    PretrainTask,
    consistency_loss,
    fit_vocabulary,
    masking_ids,
    rows_to_device,
)
from albertkit.train.train_settings import PretrainSettings, TrainSettings
from tests.conftest import tiny

CPU = torch.device("cpu")
ALONE = ProcessGroup(0, 1, CPU)


def random_weights(model: torch.nn.Module, std: float = 0.2) -> None:
    """Weights that make every path count, norms and biases too."""
    torch.manual_seed(5)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(1.0 if "norm.weight" in name else 0.0, std)


def gradients(work: PretrainTask, settings: TrainSettings, out) -> dict[str, torch.Tensor]:
    """The gradient of one update as the loop makes it, before the optimizer."""
    run = TrainingRun(work, settings, out, ALONE, print)
    found = {}

    class Keep(torch.optim.SGD):
        def step(self, closure=None):
            found.update({n: p.grad.clone() for n, p in work.objective.named_parameters() if p.grad is not None})

    run.optimizers = [Keep(list(work.objective.parameters()), lr=0.0)]
    run.peak_rates = [[0.0]]
    run.reset_sums()
    run.step(0.5)
    return found


@pytest.mark.parametrize("goals", [{}, {"consistency_weight": 0.3}, {"sop_weight": 0.0}, {"layer_decay": 0.7}], ids=str)
def test_parts_add_up_to_the_batch(bench, goals, tmp_path):
    """One part of 12 rows, or 2, 3, 4 or 12 parts: one gradient."""
    made = {}
    for micro in (None, 6, 4, 3, 1):
        settings = TrainSettings(steps=10, batch_size=12, micro_batch_size=micro, max_grad_norm=0, device="cpu")
        work = bench.work(settings, PretrainSettings(lengths="24", **goals))
        random_weights(work.model)
        made[micro] = gradients(work, settings, tmp_path)
    for micro, found in made.items():
        assert set(found) == set(made[None])
        for name, gradient in found.items():
            wanted = made[None][name]
            assert (gradient - wanted).abs().max() <= 1e-6 * max(1.0, float(wanted.abs().max())), (micro, name)


def test_the_loss_equals_transformers(bench, corpus):
    """The same masked ids through AlbertForPreTraining, in train mode: sums of both losses, and which words are right."""
    transformers = pytest.importorskip("transformers")
    tokenizer = corpus.tokenizer()
    config = fit_vocabulary(tiny(), tokenizer)
    torch.manual_seed(0)
    plain = {k: v for k, v in config.to_dict().items() if k != "model_type"}
    theirs = transformers.AlbertForPreTraining(transformers.AlbertConfig(**plain, attn_implementation="eager"))
    random_weights(theirs)
    state = {name: value.detach().numpy() for name, value in theirs.state_dict().items()}
    fitted, weights = from_state_dict(state, config.to_dict())
    ours = AlbertModel.from_artifact(Artifact(fitted, weights))
    goals = PretrainSettings(lengths="32")
    objective = PretrainObjective(ours, masking_ids(tokenizer), goals).train()
    pairs = RowStream(corpus.split("train"), 32, seed=3).take(20)
    key = masking.random_key(1, 4, CPU)
    loss, sums = objective(*rows_to_device(pairs, CPU), key, masking.to_device(0, CPU))
    asked = masking.mask_rows(*rows_to_device(pairs, CPU), key, 0, masking_ids(tokenizer), goals.mask_ratio)
    labels = torch.full((asked.ids.numel(),), -100)
    labels[asked.positions[asked.words >= 0]] = asked.words[asked.words >= 0]
    out = theirs.train()(asked.ids, token_type_ids=asked.segments)
    words = F.cross_entropy(out.prediction_logits.flatten(0, 1), labels, reduction="sum")
    order = F.cross_entropy(out.sop_logits, asked.order, ignore_index=-100, reduction="sum")
    wanted = words / (len(pairs) * 29 * goals.mask_ratio) + order / len(pairs)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    right = (out.prediction_logits.flatten(0, 1).argmax(-1) == labels).sum()
    ordered_right = (out.sop_logits.argmax(-1) == asked.order).sum()
    counts = [(words, (labels >= 0).sum()), (right, (labels >= 0).sum())]
    counts += [(order, pairs.ordered.sum()), (ordered_right, pairs.ordered.sum())]
    for found, (total, count) in zip(sums.tolist(), counts, strict=True):
        assert found[1] == int(count) and found[0] == pytest.approx(total.item(), rel=1e-5)
    assert 0 < int(pairs.ordered.sum()) <= 20


def test_word_scores_are_computed_at_masked_tokens_alone(bench, monkeypatch):
    settings = TrainSettings(steps=10, batch_size=16, device="cpu")
    work = bench.work(settings)
    seen = []
    inner = work.model.heads["mlm"].forward
    monkeypatch.setattr(
        work.model.heads["mlm"], "forward", lambda e, positions: seen.append(inner(e, positions)) or seen[-1]
    )
    [part], tokens = work.next_batch(0, 0.0, ALONE)
    work.objective.train()(*part)
    rows = 16 * 16
    assert tokens == rows and len(seen[0].logits) == len(seen[0].positions) < rows / 2
    asked = masking.mask_rows(*part[:4], 0, masking_ids(work.tokenizer), 0.15)
    assert torch.equal(seen[0].positions, asked.positions)
    assert len(seen[0].logits) <= int(16 * 13 * 0.15 * 1.03) + 64


def test_padding_of_the_vocabulary_is_never_asked_for(bench):
    work = bench.work(TrainSettings(steps=1, device="cpu"))
    assert work.tokenizer.vocab_size == 50 and work.config.vocab_size == 56
    assert work.objective.words.max() < 50 and work.objective.words.min() >= 5


def test_different_batches_at_each_step(bench):
    work = bench.work(TrainSettings(steps=10, batch_size=8, device="cpu"))
    one, other = work.next_batch(0, 0.0, ALONE)[0][0], work.next_batch(1, 0.1, ALONE)[0][0]
    assert not torch.equal(one[0], other[0]) and not torch.equal(one[3], other[3])


# Layer decay -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    "shape", [{}, {"num_hidden_layers": 4, "num_hidden_groups": 2}, {"inner_group_num": 2}], ids=str
)
def test_layer_decay_weighs_each_use_of_the_shared_layer(shape, checkpointing):
    """Against L copies of the layer, each with a gradient of its own: their sum, weighed by decay^(uses after it)."""
    config = tiny(**shape)
    encoder = Encoder(config).double().train()
    random_weights(encoder)
    plain = copy.deepcopy(encoder)
    encoder.layer_decay, encoder.checkpointing = 0.6, checkpointing
    batch = Batch.of([[5, 6, 7, 8, 9], [10, 11, 12]])
    hidden = encoder(batch).hidden
    hidden.square().sum().backward()

    depth = config.num_hidden_layers
    copies = [copy.deepcopy(plain.groups[config.group_of(layer)]) for layer in range(depth)]
    state = plain.embeddings(batch)
    for group in copies:
        for inner in group:
            state = inner(state, batch)
    assert torch.equal(hidden, state)  # forward is unchanged, to the bit
    state.square().sum().backward()
    for number, group in enumerate(encoder.groups):
        for name, p in group.named_parameters():
            uses = [layer for layer in range(depth) if config.group_of(layer) == number]
            wanted = sum(0.6 ** (depth - 1 - use) * dict(copies[use].named_parameters())[name].grad for use in uses)
            assert (p.grad - wanted).abs().max() <= 1e-10 * max(1.0, float(wanted.abs().max())), name
    for name, p in encoder.embeddings.named_parameters():  # what is below the layers gets its whole gradient
        assert torch.allclose(p.grad, dict(plain.embeddings.named_parameters())[name].grad, atol=1e-10)


def test_layer_decay_is_for_training_alone(bench):
    work = bench.work(TrainSettings(steps=1, device="cpu"), PretrainSettings(lengths="16", layer_decay=0.5))
    assert work.model.encoder.layer_decay == 0.5
    random_weights(work.model)
    batch = Batch.of([[5, 6, 7]])
    work.model.eval()
    work.model(batch).encoded.hidden.square().sum().backward()
    half = {n: p.grad.clone() for n, p in work.model.encoder.groups.named_parameters()}
    work.model.zero_grad()
    work.model.encoder.layer_decay = 1.0
    work.model(batch).encoded.hidden.square().sum().backward()
    for name, p in work.model.encoder.groups.named_parameters():
        assert torch.equal(p.grad, half[name])


# Consistency -----------------------------------------------------------------------------------------------------


def test_consistency_by_hand():
    """-log σ(cos): least for equal directions, most for opposite ones, and log 2 for perpendicular ones."""
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    sigma = lambda c: -math.log(1 / (1 + math.exp(-c)))  # noqa: E731
    assert float(consistency_loss((x, 3 * x))) == pytest.approx(sigma(1))
    assert float(consistency_loss((x, y))) == pytest.approx(math.log(2))
    assert float(consistency_loss((x, -x))) == pytest.approx(sigma(-1))
    assert float(consistency_loss((x, x, y))) == pytest.approx(
        (sigma(1) + 2 * math.log(2)) / 3
    )  # every two layers once
    assert float(consistency_loss((x,))) == 0.0


def test_consistency_is_least_for_identical_layers_and_falls_when_followed():
    torch.manual_seed(0)
    layers = [torch.randn(7, 16, requires_grad=True) for _ in range(4)]
    floor = consistency_loss((layers[0], layers[0], layers[0])).item()
    values = []
    for _ in range(60):
        loss = consistency_loss(tuple(layers))
        values.append(loss.item())
        for layer, gradient in zip(layers, torch.autograd.grad(loss, layers), strict=True):
            layer.data -= 20 * gradient
    assert values == sorted(values, reverse=True) and values[0] > floor + 0.2
    assert floor < values[-1] < floor + 0.05
    cosine = F.cosine_similarity(layers[0], layers[3]).mean()
    assert cosine > 0.8


def test_consistency_adds_its_weight_to_the_loss(bench):
    """λ times the mean over tokens and pairs of layers, the embeddings left out."""
    losses = {}
    for weight in (0.0, 0.5):
        work = bench.work(
            TrainSettings(steps=1, batch_size=8, device="cpu"),
            PretrainSettings(lengths="16", consistency_weight=weight),
        )
        random_weights(work.model)
        [part], _ = work.next_batch(0, 0.0, ALONE)
        losses[weight] = work.objective.train()(*part)
        asked = masking.mask_rows(*part, masking_ids(work.tokenizer))
        layers = work.model(Batch.unpad(asked.ids, segments=asked.segments), keep_layers=True).encoded.layers
    assert work.metric_names[-1] == "consistency_loss" and len(layers) == 3
    value = consistency_loss(layers[1:]).item()
    assert (losses[0.5][0] - losses[0.0][0]).item() == pytest.approx(0.5 * value, rel=1e-4)
    assert losses[0.5][1][-1].tolist() == pytest.approx([value, 1.0])


def test_order_left_out_trains_no_head_for_it(bench, tmp_path):
    work = bench.work(
        TrainSettings(steps=1, batch_size=8, device="cpu"), PretrainSettings(lengths="16", sop_weight=0.0)
    )
    found = gradients(work, work.settings, tmp_path)
    assert work.metric_names == ("mlm_loss", "mlm_accuracy")
    assert not any("sop" in name or "pooler" in name for name in found)


# The scaled embedding --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("brightmart", [False, True])
def test_scaled_embeddings_are_the_same_in_torch_and_in_the_runtime(corpus, tmp_path, brightmart):
    tokenizer = corpus.tokenizer()
    texts = ["one cat dog cow .", "two dog cow hen pig . three cow"]
    vectors = {}
    for scaled in (False, True):
        config = fit_vocabulary(tiny(options=Options(scale_embedding=scaled, brightmart_layout=brightmart)), tokenizer)
        model = AlbertModel(config, {"mlm": build_head("mlm", config)})
        random_weights(model)
        model.eval()
        folder = model.save(tmp_path / f"scaled-{scaled}", tokenizer)
        batch = Batch.of([tokenizer.encode(text).ids for text in texts])
        with torch.no_grad():
            hidden = model(batch).encoded.hidden.split(list(batch.lengths))
        vectors[scaled] = F.normalize(torch.stack([h.mean(0) for h in hidden]), dim=-1).numpy()
        found = Albert(folder).embed(texts)
        assert np.abs(found - vectors[scaled]).max() <= 1e-5
        again = read_artifact(folder)
        assert again.config == config and again.config.options.scale_embedding is scaled
        write_artifact(again, tmp_path / f"again-{scaled}")
        assert np.array_equal(Albert(tmp_path / f"again-{scaled}").embed(texts), found)
    assert np.abs(vectors[True] - vectors[False]).max() > 0.01


def test_the_scale_is_the_root_of_the_embedding_size():
    """By hand: √16 times the word vectors, and nothing else, before the sum."""
    torch.manual_seed(0)
    plain, scaled = Encoder(tiny()), Encoder(tiny(options=Options(scale_embedding=True)))
    scaled.load_state_dict(plain.state_dict())
    batch = Batch.of([[5, 6, 7]])
    with torch.no_grad():
        plain.embeddings.word.weight *= 4
        assert torch.allclose(plain.embeddings(batch), scaled.embeddings(batch), atol=1e-6)


# The work --------------------------------------------------------------------------------------------------------


def test_rows_longer_than_the_positions_are_refused(bench):
    with pytest.raises(AlbertkitError, match="rows of 64 tokens do not fit: this shape has 40 positions"):
        bench.work(TrainSettings(steps=1, device="cpu"), PretrainSettings(lengths="64"))


def test_held_out_rows_are_asked_the_same_each_time(bench):
    work = bench.work(TrainSettings(steps=1, device="cpu"))
    work.objective.eval()
    first = work.evaluate()
    assert first == work.evaluate() and set(first) == set(work.metric_names)
    work.next_batch(0, 0.0, ALONE)
    assert first == work.evaluate()
    assert first["mlm_loss"] == pytest.approx(math.log(56), rel=0.1)  # fresh weights know nothing


def test_a_start_brings_its_weights_and_new_heads_follow_the_seed(bench, tmp_path):
    """An encoder without heads gets them, the same ones for the same seed."""
    work = bench.work(TrainSettings(steps=1, device="cpu"))
    bare = AlbertModel(work.config)
    random_weights(bare)
    artifact = Artifact(work.config, bare.weights(), work.tokenizer)
    made = [bench.work(TrainSettings(steps=1, seed=seed, device="cpu"), model=artifact).model for seed in (1, 1, 2)]
    for model in made:
        for name, p in bare.encoder.named_parameters():
            assert torch.equal(dict(model.encoder.named_parameters())[name], p)
    heads = [torch.cat([p.flatten() for p in model.heads.parameters()]) for model in made]
    assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])
    assert list(made[0].heads) == ["mlm", "sop"]  # in one order, whatever the hash of a name


def test_a_start_keeps_its_own_shape_and_must_know_the_same_words(bench, corpus):
    """50 pieces and 50 rows in its table, where a fresh model would round up to 56."""
    config = tiny(vocab_size=50)
    model = AlbertModel(config, {name: build_head(name, config) for name in ("mlm", "sop")})
    start = Artifact(config, model.weights(), corpus.tokenizer())
    settings = TrainSettings(steps=1, batch_size=4, device="cpu")
    work = bench.work(settings, config=config, model=start)
    assert work.config == work.model.config == config
    work.to_artifact({}, TrainState())  # the weights fit the shape they are saved with
    small = tiny(vocab_size=40)
    with pytest.raises(AlbertkitError, match="50 tokens.*40"):
        bench.work(settings, config=small, model=Artifact(small, AlbertModel(small).weights()))
    other = Tokenizer.train(["some other words than those of the corpus"] * 9, "wordpiece", 50, min_count=1)
    with pytest.raises(AlbertkitError, match="tokenizer"):
        bench.work(settings, config=config, model=Artifact(config, model.weights(), other))
