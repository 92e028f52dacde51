"""Writing word by word with what was kept equals computing everything anew with the mask, in torch."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from albertkit.albert import Albert
from albertkit.artifact import Artifact, ArtifactMetadata, write_artifact
from albertkit.cli.entry_point import app
from albertkit.config import Options
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel, Batch
from albertkit.model.albert_model import build_head
from albertkit.runtime.batching import token_batches
from albertkit.runtime.generate import (
    MAX_BATCHES,
    Hypothesis,
    KeyValueCache,
    TextGenerator,
    expand_beams,
)
from albertkit.tasks.examples import RewriteExample
from albertkit.tasks.generation import GenerateTask, check_can_generate
from albertkit.tokenizer import Tokenizer
from albertkit.train.finetune_task import pack_features
from tests.conftest import tiny
from tests.train.conftest import TOPICS, VOCAB

WORDS = [word for topic in TOPICS[:3] for word in topic]
SOURCES = ["red cat oak", "gold", "blue dog elm fir hen one two three four", "pink pig yew bay fig", "grey owl"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n")
    return Tokenizer.from_vocab(path)


def made(tokenizer, folder, target_length=6, **changes):
    """A model of random weights that says it can write, and its torch twin."""
    torch.manual_seed(3)
    shape = {"vocab_size": len(VOCAB), "initializer_range": 0.5, "max_position_embeddings": 48}
    config = tiny(**{**shape, **changes})
    model = AlbertModel(config, {"mlm": build_head("mlm", config)}).eval()
    for value in model.parameters():  # biases too, so that a forgotten one is seen
        torch.nn.init.normal_(value, std=0.3) if value.dim() == 1 else None
    meta = ArtifactMetadata(task="generate", details={"max_length": 30, "target_length": target_length, "words": 3})
    write_artifact(Artifact(config, model.weights(), tokenizer, meta), folder)
    return model, folder


def torch_chances(model, tokenizer, source: list[int], words: list[int]) -> np.ndarray:
    """Log-probabilities of the next word, everything computed at once with the mask that training uses."""
    count, begin = len(words), len(source)
    ids = [*source, *words, tokenizer.mask_id]
    size = len(ids)
    seen = torch.ones(1, size, size, dtype=torch.bool)
    seen[0, :begin, begin:] = False
    seen[0, begin:, begin:] = torch.ones(count + 1, count + 1, dtype=torch.bool).tril()
    segments = torch.tensor([0] * begin + [1] * (count + 1))
    batch = Batch(torch.tensor(ids), segments, torch.arange(size), ((1, size),), attention_mask=seen)
    with torch.no_grad():
        logits = model(batch, inputs={"mlm": {"positions": torch.tensor([size - 1])}}).heads["mlm"].logits[0].double()
    banned = [tokenizer.pad_id, tokenizer.cls_id, tokenizer.mask_id, tokenizer.unk_id]
    logits[banned] = -torch.inf
    return logits.log_softmax(-1).numpy()


def torch_greedy(model, tokenizer, source: list[int], most: int) -> tuple[list[int], float, bool]:
    words, total = [], 0.0
    for _ in range(most):
        chances = torch_chances(model, tokenizer, source, words)
        best = int(chances.argmax())
        total += float(chances[best])
        if best == tokenizer.sep_id:
            return words, total / (len(words) + 1), True
        words.append(best)
    return words, total / len(words), False


SHAPES = {
    "canonical": {},
    "groups": {"num_hidden_groups": 2, "inner_group_num": 2, "num_hidden_layers": 3},
    "scaled": {"options": Options(scale_embedding=True), "hidden_act": "gelu"},
    "pruned heads": {"options": Options(head_size=5), "num_attention_heads": 3},
    "brightmart": {"options": Options(brightmart_layout=True)},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_with_what_was_kept_is_greedy_computed_anew(tokenizer, tmp_path, shape):
    model, folder = made(tokenizer, tmp_path / "m", **SHAPES[shape])
    albert = Albert(folder, threads=1)
    found = albert.generate(SOURCES, max_tokens=9)
    sources = albert.task.sources(SOURCES, tokenizer, 30)
    for source, written in zip(sources, found, strict=True):
        words, score, ended = torch_greedy(model, tokenizer, source, 9)
        assert written.text == tokenizer.decode(words)
        assert written.score == pytest.approx(score, abs=1e-4)
        assert written.finished == ended


def test_each_step_of_a_mixed_batch_has_the_chances_of_torch(tokenizer, tmp_path):
    model, folder = made(tokenizer, tmp_path / "m")
    albert = Albert(folder, threads=1)
    sources = albert.task.sources(SOURCES, tokenizer, 30)
    (batch,) = token_batches(sources, token_budget=10_000)
    writer, rng = albert.generator, np.random.default_rng(0)
    kept, last, written = writer.read(batch, 3, 5), None, [[] for _ in SOURCES]
    for _ in range(5):
        chances = writer.step(kept, last, 3)
        for row, place, words in zip(chances, batch.order, written, strict=True):
            np.testing.assert_allclose(row, torch_chances(model, tokenizer, sources[place], words), atol=1e-4)
        last = rng.integers(6, len(VOCAB), len(SOURCES))
        for words, word in zip(written, last.tolist(), strict=True):
            words.append(word)


def test_training_asks_what_use_asks(tokenizer, tmp_path):
    """All masks in one pass say what one mask at a time says."""
    model, _ = made(tokenizer, tmp_path / "m")
    task = GenerateTask(target_length=6)
    examples = [RewriteExample("red cat", "dog hen"), RewriteExample("oak elm one two", "fir bay fig palm")]
    features = task.features(examples, tokenizer, 30)
    batch = pack_features(features)
    asked = torch.tensor([t != -100 for f in features for t in f.target]).nonzero()[:, 0]
    with torch.no_grad():
        logits = model(batch, inputs={"mlm": {"positions": asked}}).heads["mlm"].logits.double()
    logits[:, [tokenizer.pad_id, tokenizer.cls_id, tokenizer.mask_id, tokenizer.unk_id]] = -torch.inf
    rows_ = iter(logits.log_softmax(-1).numpy())
    for feature, source in zip(features, task.sources([e.source for e in examples], tokenizer, 30), strict=True):
        right = [t for t in feature.target if t != -100]
        assert right[-1] == tokenizer.sep_id
        for count in range(len(right)):
            np.testing.assert_allclose(
                next(rows_), torch_chances(model, tokenizer, source, right[:count]), atol=1e-5, rtol=1e-5
            )


def test_a_text_does_not_depend_on_its_neighbours(tokenizer, tmp_path):
    _, folder = made(tokenizer, tmp_path / "m")
    albert = Albert(folder, threads=1)
    for style in ({}, {"beams": 3}):
        together = albert.generate(SOURCES, **style)
        alone = [albert.generate(text, **style) for text in SOURCES]
        assert [w.text for w in together] == [w.text for w in alone]
        assert [w.score for w in together] == pytest.approx([w.score for w in alone], abs=1e-5)


def test_wide_beams_find_the_best_text_of_all(tokenizer, tmp_path):
    """With as many beams as words and two tokens, beam search leaves nothing out."""
    model, folder = made(tokenizer, tmp_path / "m")
    albert = Albert(folder, threads=1)
    (source,) = albert.task.sources(["red cat oak"], tokenizer, 30)
    first = torch_chances(model, tokenizer, source, [])
    best, text = first[tokenizer.sep_id], []
    for word in np.flatnonzero(np.isfinite(first)):
        if word != tokenizer.sep_id:
            second = torch_chances(model, tokenizer, source, [int(word)])
            top = int(second.argmax())
            total = (first[word] + second[top]) / 2
            if total > best:
                best, text = total, [int(word)] if top == tokenizer.sep_id else [int(word), top]
    found = albert.generate("red cat oak", beams=60, max_tokens=2)
    assert found.score == pytest.approx(best, abs=1e-4)
    assert found.text == tokenizer.decode(text)


@settings(max_examples=60)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 10_000))
def test_a_spread_keeps_the_best(own, beams, seed):
    own = min(own, beams)  # a beam never holds more texts than it is wide
    rng = np.random.default_rng(seed)
    chances = np.log(rng.dirichlet(np.ones(7), own))
    before = [Hypothesis([n], float(rng.normal())) for n in range(own)]
    done: list[Hypothesis] = []
    texts, parents = expand_beams(chances, before, done, beams, end=0)
    totals = [(before[p].total + chances[p, w], p, w) for p, w in itertools.product(range(own), range(1, 7))]
    wanted = sorted(totals, reverse=True)[:beams]
    assert [text.total for text in texts] == pytest.approx([total for total, _, _ in wanted])
    assert [(parent, text.ids[-1]) for parent, text in zip(parents, texts, strict=True)] == [
        (p, w) for _, p, w in wanted
    ]
    assert all(text.ended and text.ids in [b.ids for b in before] for text in done)


def test_what_is_kept_at_once_counts_what_is_written(tokenizer, tmp_path, monkeypatch):
    """Short sources with long targets do not come in batches that only their sources would fit into."""
    _, folder = made(tokenizer, tmp_path / "m")
    albert, seen = Albert(folder, threads=1, token_budget=64), []
    read = TextGenerator.read

    def reading(self, batch, depth, room):
        seen.append(len(batch.order) * (batch.ids.shape[1] + room))
        return read(self, batch, depth, room)

    monkeypatch.setattr(TextGenerator, "read", reading)
    many = albert.generate(["red cat"] * 40, max_tokens=20)
    assert max(seen) <= MAX_BATCHES * albert.token_budget and len(many) == 40 and len({text.text for text in many}) == 1


def test_beams_that_change_places_keep_their_source():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(4, 5, 2)).astype(np.float32)
    kept = KeyValueCache(
        [table.copy()], [table.copy() + 1], np.array([3, 3, 2, 2]), 3, np.array([0, 0, 1, 1]), generated=2
    )
    kept.keys[0][1, :3], kept.keys[0][3, :3] = kept.keys[0][0, :3], kept.keys[0][2, :3]  # beams of one source share it
    before = kept.keys[0].copy()
    chosen = np.array([1, 1, 3, 2])
    kept.take(chosen)
    np.testing.assert_array_equal(kept.keys[0], before[chosen])
    kept.take(np.array([2, 3]))
    assert kept.lengths.tolist() == [2, 2] and kept.origin.tolist() == [1, 1] and kept.keys[0].shape[0] == 2


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_run_is_written_twice(tokenizer, tmp_path, monkeypatch, size):
    _, folder = made(tokenizer, tmp_path / "m")
    albert, written = Albert(folder, threads=1), []
    monkeypatch.setattr(Tokenizer, "decode", lambda self, ids: written.append(ids) or "")
    for style in ({}, {"beams": 3}):
        albert.generate(SOURCES, max_tokens=20, no_repeat=size, **style)
    runs = [[tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)] for ids in written]
    assert all(len(own) == len(set(own)) for own in runs) and sum(map(len, runs)) > 20


@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_models_write_too(tokenizer, tmp_path, bits):
    model, folder = made(tokenizer, tmp_path / "m")
    albert = Albert(folder, threads=1, bits=bits)
    found = albert.generate(SOURCES)
    assert len(found) == len(SOURCES) and all(np.isfinite(w.score) for w in found)
    (batch,) = token_batches(albert.task.sources(SOURCES, tokenizer, 30), token_budget=10_000)
    chances = albert.generator.step(albert.generator.read(batch, 3, 1), None, 3)
    exact = [torch_chances(model, tokenizer, batch.ids[i, :n].tolist(), []) for i, n in enumerate(batch.lengths)]
    finite = np.isfinite(chances[0])
    like = [np.corrcoef(a[finite], b[finite])[0, 1] for a, b in zip(chances, exact, strict=True)]
    assert min(like) > (0.95 if bits == 8 else 0.5)


def test_what_cannot_write_says_why(tokenizer, tmp_path):
    _, folder = made(tokenizer, tmp_path / "m")
    albert = Albert(folder, threads=1)
    with pytest.raises(AlbertkitError, match="positions left"):
        albert.generate("red cat", max_tokens=100)
    with pytest.raises(AlbertkitError, match="use the CPU"):
        Albert(folder, device="torch").generate("red")
    with pytest.raises(AlbertkitError, match="made for 'pretrain'"):
        Albert("small-pretrained", threads=1).generate("red")
    with pytest.raises(AlbertkitError, match="option static"):
        check_can_generate(tiny(options=Options(static=True)), {"heads.mlm.bias"})
    with pytest.raises(AlbertkitError, match="masked-language-model head"):
        check_can_generate(tiny(), {"heads.sop.linear.bias"})
    assert albert.generate([]) == []


def test_from_the_command_line(tokenizer, tmp_path):
    _, folder = made(tokenizer, tmp_path / "m")
    run = CliRunner().invoke(
        app, ["generate", "-m", str(folder), "red cat", "oak", "--beams", "2", "--max-tokens", "4", "--json"]
    )
    assert run.exit_code == 0, run.output
    found = [json.loads(line) for line in run.output.splitlines()]
    assert [f["source"] for f in found] == ["red cat", "oak"]
    assert set(found[0]) == {"source", "text", "score", "finished"}
    plain = CliRunner().invoke(app, ["generate", "-m", str(folder), "red cat", "--beams", "2", "--max-tokens", "4"])
    assert plain.output.strip() == found[0]["text"]
