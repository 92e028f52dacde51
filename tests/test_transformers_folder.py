"""What transformers computes from a folder of ours: the same probabilities, or an error; never something else."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner

from albertkit.albert import Albert
from albertkit.artifact import Artifact, ArtifactMetadata, read_artifact, write_artifact
from albertkit.cli.entry_point import app
from albertkit.config import Options
from albertkit.errors import AlbertkitError
from albertkit.interop.convert import convert
from albertkit.runtime.predict import task_features, task_scores, text_examples, word_examples
from albertkit.tasks.confidence import UncertaintyEstimator, results_agree
from albertkit.tasks.examples import ChoiceExample, QuestionExample
from albertkit.tasks.task import softmax
from tests.conftest import tiny
from tests.test_albert import make

TEXTS = ["a lovely film", "rather dull, and much too long", "no"]
PAIRS = ["It was lovely.", "Nobody saw it.", "yes"]
LABELS = ("bad", "fine", "good")
TAGS = ("O", "B-PER", "I-PER")


def model(task: str, heads: tuple[str, ...], labels=LABELS, *, depth=None, shape=(), **details) -> Artifact:
    metadata = ArtifactMetadata(task=task, labels=labels, depth=depth, details=details)
    made = make(tiny(**{"vocab_size": 3000, **dict(shape)}), heads, labels=max(1, len(labels)))
    return dataclasses.replace(made, metadata=metadata)


def frozen(**details) -> Artifact:
    """A head on the mean of the token vectors; no pooler, as `finetune --freeze` writes for the built-in model."""
    made = model("classify", ("classify",), reads="vector", **details)
    return dataclasses.replace(made, weights={n: w for n, w in made.weights.items() if "pooler" not in n})


def converted(artifact: Artifact, folder) -> str:
    """The folder that `albertkit convert` writes from a folder of this model."""
    write_artifact(artifact, folder / "source")
    convert(folder / "source", folder / "out")
    return str(folder / "out")


def pipeline(task: str, folder: str, **settings):
    return transformers.pipeline(task, folder, device="cpu", **settings)


CLASSIFIERS = {
    "one class": {},
    "one class, with a temperature": {"temperature": 2.7},
    "several labels": {"kind": "multi", "temperature": 0.4, "threshold": 0.31},
    "out of scope": {"temperature": 1.9, "min_probability": 0.6},
    "two layers of three": {"depth": 2, "temperature": 1.5},
}


@pytest.mark.parametrize("case", CLASSIFIERS)
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["texts", "pairs"])
def test_pipeline_gives_the_probabilities_of_a_classifier(case, pairs, tmp_path):
    artifact = model("classify", ("classify",), **CLASSIFIERS[case])
    out = converted(artifact, tmp_path)
    inputs = TEXTS if pairs is None else [{"text": a, "text_pair": b} for a, b in zip(TEXTS, pairs, strict=True)]
    found = pipeline("text-classification", out, top_k=None)(inputs)
    for folder in (tmp_path / "source", out):
        for result, row in zip(Albert(folder).classify(TEXTS, pairs), found, strict=True):
            theirs = {each["label"]: each["score"] for each in row}
            assert theirs == pytest.approx(result.probabilities, abs=1e-4)


def test_pipeline_gives_the_values_of_a_regression(tmp_path):
    out = converted(model("classify", ("classify",), (), kind="regression", mean=37.0, std=12.5), tmp_path)
    found = [each["score"] for each in pipeline("text-classification", out)(TEXTS)]
    for folder in (tmp_path / "source", out):
        assert found == pytest.approx([r.label for r in Albert(folder).classify(TEXTS)], abs=1e-4)


def test_pipeline_gives_the_labels_of_a_turn(tmp_path):
    labels = ("food=<named>", "request=phone", "area=north")
    out = converted(model("dialogue", ("classify",), labels, known_labels=["food=thai"]), tmp_path)
    turns = [{"text": "In which area?", "text_pair": "the north"}, {"text": "", "text_pair": "thai food"}]
    found = pipeline("text-classification", out, top_k=None)(turns)
    albert = Albert(out)
    examples = text_examples([t["text"] for t in turns], [t["text_pair"] for t in turns])
    encodings = albert.tokenizer.encode_batch([e.text for e in examples], [e.pair for e in examples])
    from albertkit.tasks.task import Feature

    scores = task_scores(albert, [Feature(e.ids, e.segments, i) for i, e in enumerate(encodings)])
    for row, theirs in zip(scores, found, strict=True):
        by_label = {each["label"]: each["score"] for each in theirs}
        assert [by_label[label] for label in labels] == pytest.approx(list(1 / (1 + np.exp(-row))), abs=1e-4)


def test_pipeline_gives_the_probabilities_of_tags(tmp_path):
    out = converted(model("tag", ("tag",), TAGS), tmp_path)
    albert, text = Albert(out), "Ann Lee lives in Rome, I think."
    (example,) = word_examples([text])
    (feature,) = task_features(albert, [example], "tag")
    table = softmax(task_scores(albert, [feature])[0])
    found = pipeline("token-classification", out, ignore_labels=[])(text)
    assert [each["index"] for each in found] == list(range(1, len(feature.ids) - 1))
    for each in found:
        assert each["entity"] == TAGS[int(table[each["index"]].argmax())]
        assert each["score"] == pytest.approx(table[each["index"]].max(), abs=1e-4)


def test_masked_words_have_the_probabilities_of_the_pipeline(tmp_path):
    out = converted(model("pretrain", ("mlm", "sop"), ()), tmp_path)
    ours = Albert(out).fill_mask("The [MASK] sat on the mat.", k=5)[0]
    theirs = pipeline("fill-mask", out, top_k=5)("The [MASK] sat on the mat.")
    assert [each["token_str"] for each in theirs] == [each.word for each in ours]
    assert [each["score"] for each in theirs] == pytest.approx([each.score for each in ours], abs=1e-4)


def test_rows_without_a_token_count_in_the_probabilities_as_in_transformers(tmp_path):
    out = converted(model("pretrain", ("mlm",), (), shape={"vocab_size": 3016}.items()), tmp_path)
    ours = Albert(out).fill_mask("The [MASK] sat.", k=5)[0]
    ids = transformers.AutoTokenizer.from_pretrained(out)("The [MASK] sat.", return_tensors="pt")
    with torch.no_grad():
        logits = transformers.AutoModelForMaskedLM.from_pretrained(out).eval()(**ids).logits[0]
    row = logits[ids["input_ids"][0] == 4].softmax(-1)[0]
    assert sum(each.score for each in ours) == pytest.approx(float(row[:3000].topk(5).values.sum()), abs=1e-4)


def test_answers_have_the_scores_of_transformers(tmp_path):
    """transformers 5 has no question-answering pipeline, so its scores are decoded here."""
    out = converted(model("answer", ("answer",), (), threshold=0.7), tmp_path)
    albert = Albert(out)
    examples = [QuestionExample("0", "Who sat?", "The cat sat on the mat, and the dog slept.")]
    features = task_features(albert, examples, "answer")
    opened = transformers.AutoModelForQuestionAnswering.from_pretrained(out).eval()
    encoded = transformers.AutoTokenizer.from_pretrained(out)(
        examples[0].question, examples[0].context, return_tensors="pt"
    )
    assert encoded["input_ids"][0].tolist() == features[0].ids
    with torch.no_grad():
        found = opened(**encoded)
    scores = np.stack([found.start_logits[0].numpy(), found.end_logits[0].numpy()], axis=1)
    theirs = albert.task.results([scores], features, examples)[0]
    ours = albert.answer(examples[0].question, examples[0].context)
    assert theirs.text == ours.text and theirs.probability == pytest.approx(ours.probability, abs=1e-4)


def test_choices_have_the_probabilities_of_transformers(tmp_path):
    out = converted(model("choose", ("choose",), ()), tmp_path)
    example = ChoiceExample("Tom went home.", "Where is Tom?", ("at work", "at home", "on a train"))
    seconds = [f"{example.question} {choice}" for choice in example.choices]
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    encoded = tokenizer([example.context] * 3, seconds, return_tensors="pt", padding=True)
    opened = transformers.AutoModelForMultipleChoice.from_pretrained(out).eval()
    with torch.no_grad():
        logits = opened(**{name: rows[None] for name, rows in encoded.items()}).logits[0]
    ours = Albert(out).choose(example.question, example.context, example.choices)
    assert logits.softmax(-1).tolist() == pytest.approx(list(ours.probabilities), abs=1e-4)


@pytest.mark.parametrize("task", ["embed", "match"])
@pytest.mark.parametrize("depth", [None, 2])
def test_pipeline_gives_the_token_vectors(task, depth, tmp_path):
    out = converted(model(task, (), (), depth=depth), tmp_path)
    extract = pipeline("feature-extraction", out)
    for text, tokens in zip(TEXTS, Albert(tmp_path / "source").token_vectors(TEXTS), strict=True):
        np.testing.assert_allclose(np.array(extract(text)[0]), tokens.vectors, atol=1e-4)


# Models that transformers cannot compute -----------------------------------------------------------------------------

REFUSED = {
    "a head on frozen vectors": (lambda: frozen(), "reads the sentence vector", "ONNX"),
    "intents with slots": (lambda: model("intent", ("classify", "tag"), TAGS, intents=["a", "b", "c"]), "two heads", "ONNX"),
    "generation": (lambda: model("generate", ("mlm",), ()), "attention mask", "Use albertkit"),
    "options": (lambda: model("classify", ("classify",), shape={"options": Options(window=8)}.items()), "window", "ONNX"),
    "depth across groups": (
        lambda: model("embed", (), (), depth=2, shape={"num_hidden_layers": 4, "num_hidden_groups": 2}.items()),
        "applies 2 layers",
        "ONNX",
    ),
    "groups of other layers": (
        lambda: model("embed", (), (), shape={"num_hidden_layers": 18, "num_hidden_groups": 14}.items()),
        "to other layers",
        "ONNX",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_transformers_would_compute_differently_does_not_open(case, tmp_path):
    build, reason, remedy = REFUSED[case]
    write_artifact(build(), tmp_path / "source")
    done = CliRunner().invoke(app, ["convert", str(tmp_path / "source"), str(tmp_path / "out")])
    assert done.exit_code == 0 and reason in done.output and remedy in done.output
    assert reason in (tmp_path / "out" / "README.md").read_text()
    for folder in (tmp_path / "source", tmp_path / "out"):
        assert "architectures" not in json.loads((folder / "config.json").read_text())
        with pytest.raises(ValueError, match="does not recognize this architecture"):
            pipeline("text-classification", str(folder))
        with pytest.raises(ValueError, match="does not recognize this architecture"):
            transformers.AutoModel.from_pretrained(folder)
    first, again = read_artifact(tmp_path / "source"), read_artifact(tmp_path / "out")
    assert first.config == again.config and set(first.weights) == set(again.weights)
    assert all((first.weights[name] == again.weights[name]).all() for name in first.weights)


@pytest.mark.parametrize("details", [{"temperature": 2.0}, {"kind": "regression", "mean": 3.0, "std": 2.0}])
def test_a_folder_whose_scores_are_not_folded_does_not_open(details, tmp_path):
    labels = () if "mean" in details else LABELS
    write_artifact(model("classify", ("classify",), labels, **details), tmp_path / "m")
    with pytest.raises(ValueError, match="does not recognize this architecture"):
        pipeline("text-classification", str(tmp_path / "m"))
    assert "albertkit convert FOLDER OUT" in (tmp_path / "m" / "README.md").read_text()


@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_folder_does_not_open(bits, tmp_path):
    write_artifact(model("classify", ("classify",)), tmp_path / "m", bits=bits)
    with pytest.raises(ValueError, match="does not recognize this architecture"):
        pipeline("text-classification", str(tmp_path / "m"))
    assert "cannot open quantized weights" in (tmp_path / "m" / "README.md").read_text()


def test_every_process_computes_the_same(tmp_path):
    out = converted(model("classify", ("classify",), temperature=2.0), tmp_path)
    program = (
        "import json, sys, transformers\n"
        "found = transformers.pipeline('text-classification', sys.argv[1], device='cpu', top_k=None)(sys.argv[2:])[0]\n"
        "print(json.dumps({each['label']: each['score'] for each in found}))"
    )
    other = json.loads(subprocess.run([sys.executable, "-c", program, out, TEXTS[1]], stdout=-1, check=True).stdout)
    here = {each["label"]: each["score"] for each in pipeline("text-classification", out, top_k=None)(TEXTS[1:2])[0]}
    assert other == pytest.approx(here, abs=1e-6)
    assert here == pytest.approx(Albert(tmp_path / "source").classify(TEXTS[1]).probabilities, abs=1e-4)


# What a converted model keeps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "details"),
    [
        (LABELS, {"temperature": 2.7}),
        (LABELS, {"kind": "multi", "temperature": 2.7}),
        ((), {"kind": "regression", "mean": 37.0, "std": 12.5}),
    ],
)
def test_early_exit_of_a_converted_model_is_that_of_the_source(labels, details, tmp_path):
    converted(model("classify", ("classify",), labels, **details), tmp_path)
    examples, found = text_examples(TEXTS), []
    for name in ("source", "out"):
        albert = Albert(tmp_path / name)
        features = task_features(albert, examples, "classify")
        early, late = (task_scores(albert, features, depth) for depth in (2, 3))
        estimator = UncertaintyEstimator(albert.task, features, examples)
        results = [albert.task.results(scores, features, examples) for scores in (early, late)]
        found.append((estimator.uncertainty(range(3), late, early), results_agree(albert.task, *results)))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4)
    assert (found[0][1] == found[1][1]).all()


def test_the_notes_of_a_converted_model_name_what_transformers_does_not_know(tmp_path):
    artifact = model("classify", ("classify",), kind="multi", threshold=0.31, max_length=20)
    write_artifact(artifact, tmp_path / "m")
    done = CliRunner().invoke(app, ["convert", str(tmp_path / "m"), str(tmp_path / "out")])
    assert "AlbertForSequenceClassification" in done.output and "0.31" in done.output and "20 tokens" in done.output
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == 20


@pytest.mark.parametrize("wrong", ["hot", 0.0, -1.0, float("nan"), True])
def test_a_temperature_that_is_no_number_is_an_error(wrong, tmp_path):
    with pytest.raises(AlbertkitError, match="temperature is"):
        write_artifact(model("classify", ("classify",), temperature=wrong), tmp_path / "m")


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression", None])
def test_a_classifier_of_transformers_keeps_its_kind(problem, tmp_path):
    config = transformers.AlbertConfig(
        vocab_size=3000, embedding_size=16, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=40, num_labels=1 if problem == "regression" else 3,
        problem_type=problem,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.AlbertForSequenceClassification(config).save_pretrained(tmp_path / "theirs")
    make(tiny(vocab_size=3000)).tokenizer.save(tmp_path / "theirs")
    found = pipeline("text-classification", str(tmp_path / "theirs"), top_k=None)(TEXTS)
    for result, row in zip(Albert(tmp_path / "theirs").classify(TEXTS), found, strict=True):
        theirs = {each["label"]: each["score"] for each in row}
        ours = {"LABEL_0": result.label} if problem == "regression" else result.probabilities
        assert theirs == pytest.approx(ours, abs=1e-4)
