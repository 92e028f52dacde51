"""What is learnt on or about sentence vectors: matching, frozen classifiers, few shots, dialogue states, distilling."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from types import SimpleNamespace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from albertkit.albert import Albert
from albertkit.artifact import Artifact, read_artifact, write_artifact
from albertkit.data.passages import Passages, PassageShares, distinct_words, draw_passages, everyday_sentences
from albertkit.errors import AlbertkitError
from albertkit.model import AlbertModel
from albertkit.runtime.predict import predict
from albertkit.tasks.examples import DialogueTurn, TextExample
from albertkit.tasks.match import MatchTask
from albertkit.tokenizer import Tokenizer
from albertkit.train import distill_vectors as distill
from albertkit.train import finetune as tune
from albertkit.train import loop, teachers
from albertkit.train.distributed import ProcessGroup
from albertkit.train.frozen_head import best_boundary, draw_shots, fit_head
from albertkit.train.train_settings import FinetuneSettings, TrainSettings
from tests.conftest import tiny
from tests.train.conftest import TOPICS, VOCAB


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n")
    torch.manual_seed(0)
    config = tiny(vocab_size=len(VOCAB), initializer_range=0.1, max_position_embeddings=64)
    artifact = Artifact(config, AlbertModel(config).weights(), Tokenizer.from_vocab(path))
    return write_artifact(artifact, tmp_path_factory.mktemp("start") / "model")


def about(rng, topic: int) -> str:
    return " ".join([*rng.choice(TOPICS[topic][:5], 4), *rng.choice(["one", "two", "three"], int(rng.integers(0, 4)))])


def pairs(count: int, seed: int, graded: bool) -> list[TextExample]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        a, b = rng.integers(0, 4, 2)
        same = float(a == b)
        made.append(TextExample(about(rng, a), about(rng, b), same if graded else ("yes" if same else "no")))
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "graded", "metric"),
    [("cosent", True, "spearman"), ("contrastive", False, "auc"), ("cosent", False, "auc"), ("mnrl", False, "auc")],
)
def test_matching_learns_what_belongs_together(start, tmp_path, loss, graded, metric):
    examples = pairs(300, 0, graded)
    if loss == "mnrl":  # only pairs that belong together
        rng = np.random.default_rng(1)
        examples = [TextExample(about(rng, t), about(rng, t)) for t in rng.integers(0, 4, 300)]
    options = FinetuneSettings(epochs=4, batch_size=32 if loss != "mnrl" else 4, learning_rate=2e-3, device="cpu")
    done = tune.finetune_examples("match", examples, pairs(80, 9, graded), tmp_path, start, options, loss=loss)
    albert = Albert(done.model)
    dev = pairs(80, 9, graded)
    task = MatchTask.from_examples(dev)
    first, second = [e.text for e in dev], [e.pair for e in dev]
    before, after = (
        task.measure([SimpleNamespace(score=score) for score in (model.embed(first) * model.embed(second)).sum(1)], dev)
        for model in (Albert(start), albert)
    )
    least = 0.65 if graded else 0.8  # ranks of two values correlate with 0.75 at most
    assert after[metric] > max(least, before[metric]), (before, after)
    if loss != "mnrl":
        assert albert.task.measure(predict(albert, dev, "match"), dev)[metric] == pytest.approx(after[metric], abs=1e-6)


def test_cosent_and_the_others_by_hand():
    from albertkit.train.task_heads import match_loss

    vectors = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # cosines 1 and 0
    out = SimpleNamespace(heads={"vector": vectors})
    right = match_loss(MatchTask(("a", "b"), "cosent", scale=20.0), out, [1.0, None, 0.0, None])
    wrong = match_loss(MatchTask(("a", "b"), "cosent", scale=20.0), out, [0.0, None, 1.0, None])
    assert right == pytest.approx(np.log1p(np.exp(-20)), abs=1e-6) and wrong == pytest.approx(20.0, abs=1e-4)
    apart = match_loss(MatchTask(("a", "b"), "contrastive", margin=0.5), out, [0.0, None, 1.0, None])
    assert apart == pytest.approx((0.25 + 1.0) / 2)
    with pytest.raises(AlbertkitError, match="no second text"):
        MatchTask.from_examples([TextExample("a")])


def classes(count: int, seed: int = 0) -> list[TextExample]:
    rng = np.random.default_rng(seed)
    return [TextExample(about(rng, int(t)), label=["colour", "animal", "tree"][t]) for t in rng.integers(0, 3, count)]


def test_a_frozen_classifier_learns_and_runs(start, tmp_path):
    done = tune.finetune_examples(
        "classify", classes(120), classes(60, 9), tmp_path, start, FinetuneSettings(freeze=True)
    )
    assert done.metrics["accuracy"] > 0.9
    made = read_artifact(done.model)
    np.testing.assert_array_equal(
        made.weights["encoder.groups.0.0.ffn.up.weight"],
        read_artifact(start).weights["encoder.groups.0.0.ffn.up.weight"],
    )
    assert Albert(done.model).classify("cat dog cow hen").label == "animal"


def test_few_shots_and_what_is_out_of_scope(start, tmp_path):
    rng = np.random.default_rng(3)
    metals = [TextExample(about(rng, 3), label="oos") for _ in range(30)]
    assert sorted(e.label for e in draw_shots(classes(200), 8)) == ["animal"] * 8 + ["colour"] * 8 + ["tree"] * 8
    options = FinetuneSettings(freeze=True, shots=12)
    done = tune.finetune_examples(
        "intent", [*classes(200), *metals], [*classes(60, 9), *metals], tmp_path, start, options
    )
    assert done.metrics["in_scope_accuracy"] > 0.6 and done.metrics["out_of_scope_f1"] > 0.4, done.metrics
    assert best_boundary(np.array([0.2, 0.3]), np.array([0.6, 0.9])) == 0.6


def test_frozen_refuses_pairs(start):
    with pytest.raises(AlbertkitError, match="single texts"):
        fit_head(Albert(start), read_artifact(start), [TextExample("a", "b", "x"), TextExample("a", "b", "y")])


def test_the_estimator_is_one_of_scikit_learn_s(start):
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    from albertkit.sklearn import AlbertClassifier

    texts, labels = [e.text for e in classes(90)], [e.label for e in classes(90)]
    found = AlbertClassifier(start).fit(texts, labels)
    assert found.score(texts, labels) > 0.9 and list(found.classes_) == ["animal", "colour", "tree"]
    chances = found.predict_proba(texts[:5])
    assert chances.shape == (5, 3) and np.allclose(chances.sum(1), 1, atol=1e-5)
    assert (found.classes_[chances.argmax(1)] == found.predict(texts[:5])).all()
    assert clone(found).get_params() == found.get_params()
    line = make_pipeline(FunctionTransformer(lambda x: [t.lower() for t in x]), AlbertClassifier(start))
    search = GridSearchCV(line, {"albertclassifier__seed": [0, 1]}, cv=2).fit(texts[:30], np.array(labels[:30]))
    assert search.best_score_ > 0.5
    numbers = AlbertClassifier(start, frozen=False, epochs=1, batch_size=16).fit(
        texts[:32], [int(x == "tree") for x in labels[:32]]
    )
    assert set(numbers.predict(texts[:4]).tolist()) <= {0, 1}


def test_dialogue_states_are_tracked(start, tmp_path):
    def turns(count: int, seed: int) -> list[DialogueTurn]:
        rng = np.random.default_rng(seed)
        made = []
        for d in range(count):
            state: dict[str, str] = {}
            for n in range(3):
                slot, ring = (("pet", TOPICS[1]), ("plant", TOPICS[2]))[int(rng.integers(0, 2))]
                value = str(rng.choice(ring[:3]))
                state[slot] = value
                made.append(DialogueTurn(str(d), n, "one", f"{value} two", tuple(state.items()), ((slot, value),)))
        return made

    options = FinetuneSettings(epochs=20, batch_size=16, learning_rate=5e-3, device="cpu")
    done = tune.finetune_examples("dialogue", turns(60, 0), turns(20, 9), tmp_path, start, options)
    assert done.metrics["joint_goal"] > 0.9, done.metrics
    albert = Albert(done.model)
    assert predict(albert, turns(20, 9), "dialogue")[0].goal


# Distilling ------------------------------------------------------------------------------------------------------


def test_passages_round_trip(corpus):
    found = draw_passages(corpus.split("train"), None, PassageShares(longest=30, variants=0, words=0), seed=1)
    assert (np.diff(found.lengths) >= 0).all() and found.lengths.max() <= 30 and found.lengths.min() >= 2
    again = draw_passages(corpus.split("train"), None, PassageShares(longest=30, variants=0, words=0), seed=1)
    assert np.array_equal(found.ids, again.ids) and np.array_equal(found.ends, again.ends)
    tokenizer = corpus.tokenizer()
    whole = " ".join(tokenizer.decode(s.tokens[:] & 0x7FFF) for s in corpus.split("train"))
    for at in range(0, len(found), len(found) // 20):
        assert tokenizer.decode(found[at].tolist()) in whole


def test_variants_are_sentences_with_a_few_words_exchanged(corpus):
    shares = PassageShares(sentences=1, passages=0, phrases=0, openings=0, longest=30, variants=0, words=0)
    train = corpus.split("train")
    plain, both = (
        draw_passages(train, None, shares, 1),
        draw_passages(train, None, dataclasses.replace(shares, variants=1), 1),
    )
    known = {bytes(plain[i]) for i in range(len(plain))}
    fit = [plain[i] for i in range(len(plain)) if 6 <= len(plain[i]) <= 48]
    new = [both[i] for i in range(len(both)) if bytes(both[i]) not in known]
    assert len(both) == len(plain) + len(fit) and len(new) > 0.5 * len(fit)
    assert (np.diff(both.lengths) >= 0).all()
    for text in new[:: max(1, len(new) // 20)]:
        nearest = min((text != other).sum() for other in fit if len(other) == len(text))
        assert 1 <= nearest <= 12  # three words of at most four tokens


def test_every_word_that_is_seen_twice_is_a_text_by_itself(corpus):
    train = corpus.split("train")
    nothing = PassageShares(sentences=0, passages=0, phrases=0, questions=0, openings=0, variants=0)
    found = draw_passages(train, None, nothing, seed=1)
    counts: Counter[tuple[int, ...]] = Counter()
    for shard in train:
        starts = np.flatnonzero(shard.tokens >= 0x8000)
        counts.update(tuple((word & 0x7FFF).tolist()) for word in np.split(shard.tokens, starts[1:]))
    wanted = {word for word, times in counts.items() if times > 1 and len(word) <= 4}
    assert {tuple(found[i].tolist()) for i in range(len(found))} == wanted
    listed = {tuple(ids) for ids in distinct_words(train[:1])}
    assert len(listed) > 20 and listed <= wanted


def test_everyday_sentences_may_hold_words_of_the_corpus():
    plain, mixed = list(everyday_sentences(400, 3)), list(everyday_sentences(400, 3, ["zyzzyva"]))
    assert not any("zyzzyva" in text for text in plain)
    assert 140 < sum(text.split().count("zyzzyva") == 1 for text in mixed) < 260


def test_first_numbers_of_targets_carry_most():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(3000, 6)) * [5, 4, 3, 2, 1, 0.5]
    raw = np.concatenate([hidden @ rng.normal(size=(6, 16)) + 3, hidden @ rng.normal(size=(6, 16))], 1).astype(
        np.float16
    )
    mixed = teachers.mix_vectors(raw, [16, 16], (1.0, 1.5), 12).astype(np.float64)
    assert mixed.shape == (3000, 12) and np.allclose(np.linalg.norm(mixed, axis=1), 1, atol=2e-3)
    power = (mixed**2).mean(0)
    assert (np.diff(power) < 1e-3).all() and power[:6].sum() > 0.98

    def cosines(x):
        x = x - x.mean(0)
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
        return x[:500] @ x[500:1000].T

    both = (cosines(raw[:, :16].astype(float)) + 2.25 * cosines(raw[:, 16:].astype(float))) / 3.25
    assert np.corrcoef(both.flatten(), (mixed[:500] @ mixed[500:1000].T).flatten())[0, 1] > 0.99


def test_student_learns_vectors_at_every_depth_and_width(corpus, tmp_path):
    """Targets that are a fixed turn of the mean of word vectors: learnable, at two depths and two widths."""
    tokenizer = corpus.tokenizer()
    config = tiny(vocab_size=64, initializer_range=0.1, max_position_embeddings=40)
    torch.manual_seed(0)
    artifact = Artifact(config, AlbertModel(config, {}).weights(), tokenizer)
    found = draw_passages(corpus.split("train"), None, PassageShares(longest=20), seed=1)
    found.save(tmp_path / "texts")
    rng = np.random.default_rng(0)
    table = rng.normal(size=(64, 32))
    wanted = np.stack([table[found[i]].mean(0) for i in range(len(found))])
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.save(tmp_path / "texts" / "targets.npy", wanted.astype(np.float16))
    settings = TrainSettings(steps=60, batch_size=4, learning_rate=3e-3, evaluations=2, device="cpu", tensorboard=False)
    aims = distill.VectorDistillSettings(depths="1,3", widths="8,32", batch_tokens=400, max_texts=32)
    work = distill.VectorDistillTask(artifact, tmp_path / "texts", settings, aims)
    work.objective.eval()
    before = work.evaluate()
    outcome = loop.train(work, settings, tmp_path / "run")
    for depth in (1, 3):
        assert outcome.metrics[f"cosine_{depth}"] > max(0.5, before[f"cosine_{depth}"] + 0.2), (before, outcome.metrics)
    made = read_artifact(outcome.model)
    assert made.metadata.task == "embed" and made.metadata.pooling == "mean"
    assert np.array_equal(Passages.open(tmp_path / "texts").ends, found.ends)


def test_command_distills_vectors_from_bert(corpus, shards, tmp_path):
    """A tiny random BERT as the teacher: texts are drawn, it reads them, and the student comes nearer to it."""
    transformers = pytest.importorskip("transformers")
    from click.testing import CliRunner
    from safetensors.torch import save_file

    from albertkit.cli.entry_point import app

    folder = tmp_path / "teacher"
    folder.mkdir()
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(VOCAB), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        initializer_range=0.5,
    )  # fmt: skip
    config.save_pretrained(folder)
    state = transformers.BertModel(config, add_pooling_layer=False).state_dict()
    save_file({k: v for k, v in state.items() if v.is_floating_point()}, folder / "model.safetensors")
    corpus.tokenizer().save(folder)  # its tokenizer.json; the config stays the teacher's
    config.save_pretrained(folder)
    torch.manual_seed(1)
    shape = tiny(vocab_size=64, initializer_range=0.1, max_position_embeddings=40)
    write_artifact(Artifact(shape, AlbertModel(shape).weights(), corpus.tokenizer()), tmp_path / "start")
    options = (
        "--steps 50 --batch-size 4 --batch-tokens 400 --max-texts 32 --depths 1,3 --widths 8,32 --learning-rate 3e-3"
    )
    options += " --device cpu --no-tensorboard --everyday 50 --neighbor-share 0.5 --shallow-share 0.5"
    command = ["distill", f"{folder}:1.0", str(shards), *options.split()]
    given = [*command, "-o", str(tmp_path / "out"), "--model", str(tmp_path / "start")]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    targets = np.load(tmp_path / "out" / "texts" / "targets.npy")
    assert targets.shape == (len(Passages.open(tmp_path / "out" / "texts")), 32) and np.isfinite(targets).all()
    assert Albert(tmp_path / "out").embed("cat dog cow").shape == (32,)
    assert '"cosine_3": 0.' in done.output


def test_freezing_needs_no_torch_and_reads_as_much_as_it_is_told(start, tmp_path):
    """`finetune --freeze` in a process where torch cannot be imported; tokens beyond --max-length are not read."""
    import subprocess
    import sys

    rows = [f"{e.text} {e.text} {e.text}\t{e.label}" for e in classes(60)]
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    given = [
        "finetune",
        "classify",
        str(tmp_path / "train.tsv"),
        "--model",
        str(start),
        "--freeze",
        "--max-length",
        "8",
    ]
    code = f"""
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError(name)
sys.meta_path.insert(0, NoTorch())
from albertkit.cli.entry_point import app
app({[*given, "-o", str(tmp_path / "out")]!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"] > 0.5
    albert = Albert(tmp_path / "out" / "model")
    assert albert.metadata.details["max_length"] == 8
    first, longer = "cat dog cow hen pig fox", "cat dog cow hen pig fox oak elm ash fir yew bay"
    assert albert.classify(first).probabilities == albert.classify(longer).probabilities
    with pytest.raises(AlbertkitError, match="frozen vectors are for classes of single texts"):
        tune.finetune_examples("match", pairs(20, 0, True), (), tmp_path / "no", start, FinetuneSettings(freeze=True))


def test_widths_are_checked_before_teachers_encode(shards, start, tmp_path):
    from click.testing import CliRunner

    from albertkit.cli.entry_point import app

    given = ["distill", str(tmp_path / "none"), str(shards), "-o", str(tmp_path / "out"), "--model", str(start)]
    done = CliRunner().invoke(app, [*given, "--widths", "8,64", "--depths", "1,3"])
    assert done.exit_code == 1 and "Pass --widths 8,32" in str(done.exception)
    assert not (tmp_path / "out" / "texts").exists()


def test_batches_have_runs_of_neighbors_and_shallow_steps(corpus, tmp_path):
    config = tiny(vocab_size=64, initializer_range=0.1, max_position_embeddings=40)
    more = [list(row) for row in np.random.default_rng(1).integers(5, 60, (600, 6))]
    found = draw_passages(corpus.split("train"), None, PassageShares(longest=20), seed=1, extra_texts=more)
    assert len(found) == len(draw_passages(corpus.split("train"), None, PassageShares(longest=20), seed=1)) + 600
    found.save(tmp_path / "texts")
    rng = np.random.default_rng(0)
    targets = rng.normal(size=(8, 32))[rng.integers(0, 8, len(found))] + 0.1 * rng.normal(size=(len(found), 32))
    np.save(tmp_path / "texts" / "targets.npy", targets.astype(np.float16))
    artifact = Artifact(config, AlbertModel(config, {}).weights(), corpus.tokenizer())
    cpu = torch.device("cpu")
    likeness = []
    for near in (0.0, 1.0):
        aims = distill.VectorDistillSettings(
            depths="1,2,3", widths="32", batch_tokens=4000, max_texts=64, neighbor_share=near, shallow_share=0.5
        )
        work = distill.VectorDistillTask(artifact, tmp_path / "texts", TrainSettings(steps=1, device="cpu"), aims)
        batches = [work.draw_texts(np.random.default_rng(n), cpu) for n in range(6)]
        assert all(ids.shape[0] == len(wanted) for ids, wanted in batches)
        best = [torch.nn.functional.normalize(wanted.float(), dim=-1) for _, wanted in batches]
        likeness.append(np.mean([float((b @ b.T > 0.9).float().mean()) for b in best]))
    assert likeness[1] > 1.5 * likeness[0]
    depths = {work.next_batch(step, 0.0, ProcessGroup(0, 1, cpu))[0][0][0] for step in range(20)}
    assert depths == {(1, 2), (1, 2, 3)}
    with pytest.raises(AlbertkitError, match="neighbor_share is 2; it must be from 0 to 1"):
        distill.VectorDistillSettings(neighbor_share=2)


@given(st.integers(1, 300), st.integers(1, 12), st.integers(0, 99))
@hypothesis_settings(max_examples=40)
def test_neighbor_order_has_every_text_once(count, leaf, seed):
    vectors = torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))
    assert sorted(distill.neighbor_order(vectors, leaf, seed).tolist()) == list(range(count))


def test_neighbors_are_similar():
    torch.manual_seed(0)
    middles = torch.randn(40, 16)
    kind = torch.randint(0, 40, (2000,))
    vectors = middles[kind] + 0.2 * torch.randn(2000, 16)
    order = distill.neighbor_order(vectors)
    ordered, drawn = vectors[order], vectors[torch.randperm(2000)]
    near, far = (torch.nn.functional.cosine_similarity(v[:-1], v[1:]).mean() for v in (ordered, drawn))
    assert near > 0.8 and abs(far) < 0.1
    assert torch.equal(order, distill.neighbor_order(vectors))
