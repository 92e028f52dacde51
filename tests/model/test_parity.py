"""Our model against transformers': the same numbers, in eval and in train mode, for the encoder and for each head."""

from __future__ import annotations

import pytest
import torch

from albertkit.artifact import Artifact, public_config
from albertkit.interop.huggingface import from_state_dict
from albertkit.model import AlbertModel, Batch
from albertkit.weights import encoder_shapes
from tests.conftest import tiny

transformers = pytest.importorskip("transformers")


def twin(cls_name: str, config, classifier: str = "classify", **extra):
    """A transformers model with random weights (biases and norms too) and ours with the same ones."""
    torch.manual_seed(0)
    settings = {k: v for k, v in config.to_dict().items() if k != "model_type"}
    theirs = getattr(transformers, cls_name)(
        transformers.AlbertConfig(**settings, attn_implementation="eager", **extra)
    )
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.normal_(mean=1.0 if "orm.weight" in name else 0.0, std=0.2)
    state = {name: value.numpy() for name, value in theirs.state_dict().items()}
    fitted, weights = from_state_dict(state, config.to_dict(), classifier)
    return theirs, AlbertModel.from_artifact(Artifact(fitted, weights))


def inputs(config, texts: int = 5, length: int = 17, seed: int = 1):
    """Random ids, random segments and random masks (holes included)."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, config.vocab_size, (texts, length), generator=g)
    segments = torch.randint(0, 2, (texts, length), generator=g)
    mask = (torch.rand(texts, length, generator=g) < 0.7).long()
    mask[:, 0] = 1
    return ids, mask, segments


GROUPS = [
    {"num_hidden_layers": 3},
    {"num_hidden_layers": 4, "num_hidden_groups": 2},
    {"num_hidden_layers": 12, "num_hidden_groups": 5},
]


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu", "silu", "tanh"])
@pytest.mark.parametrize("inner", [1, 2])
@pytest.mark.parametrize("groups", GROUPS, ids=["one", "two", "five-of-twelve"])
def test_encoder_equals_transformers(groups, inner, activation):
    config = tiny(**groups, inner_group_num=inner, hidden_act=activation)
    theirs, ours = twin("AlbertModel", config)
    ids, mask, segments = inputs(config)
    with torch.no_grad():
        want = theirs.eval()(ids, attention_mask=mask, token_type_ids=segments, output_hidden_states=True)
        got = ours(Batch.unpad(ids, mask, segments), keep_layers=True).encoded
    kept = mask.bool()
    assert (got.hidden - want.last_hidden_state[kept]).abs().max() <= 1e-5
    assert (got.pooled - want.pooler_output).abs().max() <= 1e-5
    assert len(got.layers) == config.num_hidden_layers + 1
    # transformers keeps a state for each inner layer, we for each use of a group
    for mine, other in zip(got.layers, want.hidden_states[::inner], strict=True):
        assert (mine - other[kept]).abs().max() <= 1e-5


@pytest.mark.parametrize("groups", GROUPS, ids=["one", "two", "five-of-twelve"])
def test_train_mode_and_gradients_equal_transformers(groups):
    config = tiny(**groups, inner_group_num=2)
    theirs, ours = twin("AlbertModel", config)
    ids, mask, segments = inputs(config)
    theirs.double().train()  # double precision: the sums of 24 layers' gradients would round differently in single
    ours.double().train()
    want = theirs(ids, attention_mask=mask, token_type_ids=segments)
    got = ours(Batch.unpad(ids, mask, segments)).encoded
    assert (got.hidden - want.last_hidden_state[mask.bool()]).abs().max() <= 1e-9
    (want.last_hidden_state[mask.bool()].square().sum() + want.pooler_output.square().sum()).backward()
    (got.hidden.square().sum() + got.pooled.square().sum()).backward()
    grads = {name: value.grad.numpy() for name, value in theirs.named_parameters()}
    _, expected = from_state_dict(grads, config.to_dict())
    for name, value in ours.named_parameters():
        assert abs(value.grad.numpy() - expected[name]).max() <= 1e-9 * max(1.0, abs(expected[name]).max()), name


HEADS = {
    "AlbertForPreTraining": "classify",
    "AlbertForMaskedLM": "classify",
    "AlbertForSequenceClassification": "classify",
    "AlbertForTokenClassification": "tag",
    "AlbertForQuestionAnswering": "classify",
    "AlbertForMultipleChoice": "choose",
}


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("cls_name", HEADS)
def test_heads_equal_transformers(cls_name, mode):
    config = tiny()
    extra = {"num_labels": 5} if cls_name.endswith(("SequenceClassification", "TokenClassification")) else {}
    theirs, ours = twin(cls_name, config, HEADS[cls_name], **extra)
    theirs.train(mode == "train")
    ours.train(mode == "train")
    ids, mask, segments = inputs(config, texts=6)
    batch, kept = Batch.unpad(ids, mask, segments), mask.bool()

    def close(mine, other):
        assert mine.shape == other.shape
        assert (mine - other).abs().max() <= 1e-5

    with torch.no_grad():
        if cls_name == "AlbertForMultipleChoice":
            shaped = [t.view(2, 3, -1) for t in (ids, mask, segments)]
            want = theirs(shaped[0], attention_mask=shaped[1], token_type_ids=shaped[2])
            close(ours(batch, inputs={"choose": {"choices": 3}}).heads["choose"].logits, want.logits)
            return
        want = theirs(ids, attention_mask=mask, token_type_ids=segments)
        got = ours(batch).heads
    if cls_name == "AlbertForPreTraining":
        close(got["mlm"].logits, want.prediction_logits[kept])
        close(got["sop"].logits, want.sop_logits)
    elif cls_name == "AlbertForMaskedLM":
        close(got["mlm"].logits, want.logits[kept])
        chosen = torch.tensor([0, 5, 9])
        some = ours(batch, inputs={"mlm": {"positions": chosen}}).heads["mlm"]
        close(some.logits, want.logits[kept][chosen])
    elif cls_name == "AlbertForSequenceClassification":
        close(got["classify"].logits, want.logits)
    elif cls_name == "AlbertForTokenClassification":
        close(got["tag"].logits, want.logits[kept])
    else:
        close(got["answer"].start, want.start_logits[kept])
        close(got["answer"].end, want.end_logits[kept])


@pytest.mark.parametrize("cls_name", HEADS)
def test_folder_opens_in_transformers_and_comes_back_bit_equal(cls_name, tmp_path):
    from albertkit.artifact import ArtifactMetadata, read_artifact
    from albertkit.interop.huggingface import read_folder
    from albertkit.tokenizer import Tokenizer
    from tests.conftest import SPIECE

    config = tiny(vocab_size=30000)
    extra = {"num_labels": 4} if "Classification" in cls_name else {}
    _, ours = twin(cls_name, config, HEADS[cls_name], **extra)
    task = next((h for h in ("classify", "tag", "choose", "answer") if h in ours.heads), "pretrain")
    labels = ("a", "b", "c", "d") if extra else ()
    tokenizer = Tokenizer.from_spiece(SPIECE)
    ours.save(tmp_path / "one", tokenizer, ArtifactMetadata(task=task, labels=labels))
    opened, report = getattr(transformers, cls_name).from_pretrained(tmp_path / "one", output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"]
    assert not report["unexpected_keys"] or cls_name.endswith(("TokenClassification", "QuestionAnswering", "MaskedLM"))
    opened.save_pretrained(tmp_path / "two")
    tokenizer.save(tmp_path / "two")
    back = read_folder(tmp_path / "two")
    first = read_artifact(tmp_path / "one")
    assert first.metadata.labels == back.metadata.labels == labels
    assert set(back.weights) <= set(first.weights)
    assert {n for n in first.weights if n not in back.weights} <= {
        "encoder.pooler.weight",
        "encoder.pooler.bias",
    }
    for name, array in back.weights.items():
        assert (array == first.weights[name]).all(), name
    assert public_config(first)["architectures"] == [cls_name]
    ids, mask, segments = inputs(config)
    with torch.no_grad():
        want = opened.albert(ids, attention_mask=mask, token_type_ids=segments).last_hidden_state[mask.bool()]
        got = AlbertModel.from_artifact(tmp_path / "one")(Batch.unpad(ids, mask, segments), heads=()).encoded.hidden
    assert (want - got).abs().max() <= 1e-5


def test_tokenizer_of_a_written_folder_equals_transformers(tmp_path):
    from albertkit.tokenizer import Tokenizer
    from tests.conftest import SPIECE

    tokenizer = Tokenizer.from_spiece(SPIECE)
    AlbertModel(tiny(vocab_size=30000)).save(tmp_path / "m", tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    for pair in (("this is a test", None), ("In 1990, he said: 10,000 naïve cafés!", "Is it  so?")):
        want = theirs(*[t for t in pair if t is not None])
        got = tokenizer.encode(*pair)
        assert got.ids == want["input_ids"] and got.segments == want["token_type_ids"]


def test_the_table_of_shapes_is_the_model():
    for config in (tiny(), tiny(num_hidden_groups=2, inner_group_num=2)):
        for pooler in (True, False):
            model = AlbertModel(config, pooler=pooler)
            assert {n: tuple(p.shape) for n, p in model.state_dict().items()} == encoder_shapes(config, pooler)
