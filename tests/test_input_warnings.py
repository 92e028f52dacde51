"""Texts that a model cannot read are reported on every path, and refused where a model is trained or an index built."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest

from albertkit import (
    Albert,
    BlankTextWarning,
    ChoiceExample,
    DialogueTurn,
    Index,
    QuestionExample,
    Record,
    TextExample,
    UnreadableTextError,
    UnreadableTextWarning,
    UntrainedDepthWarning,
    UntrainedVectorsWarning,
    finetune,
)
from albertkit.adapters.role_vectors import embed_role
from albertkit.artifact import ArtifactMetadata, write_artifact
from albertkit.bulk.bulk_run import bulk
from albertkit.bulk.worker import BulkOptions
from albertkit.input_warnings import MAX_UNKNOWN_CHARACTERS, find_problems, unknown_share
from albertkit.tokenizer import Tokenizer
from tests.conftest import tiny
from tests.serve.conftest import Served
from tests.test_albert import make

CHINESE = ["我想退货", "今天天气很好", "附近有没有餐厅？"]
RUSSIAN = "Где ближайший вокзал?"
READABLE = ["Can I return this?", "naïve café", "ok 👍", "", "  ", "3 × 4 = 12"]


@pytest.fixture(scope="module")
def english() -> Albert:
    return Albert("small")


@pytest.mark.parametrize("text", [*CHINESE, RUSSIAN, "😀😀", "我喜欢 iPhone 手机"])
def test_text_of_another_script_is_unreadable(english, text):
    assert unknown_share(english.tokenizer, text) > MAX_UNKNOWN_CHARACTERS
    assert find_problems(english.tokenizer, ["a cat", text]).unreadable == 1


def test_text_with_few_unknown_characters_is_readable(english):
    assert find_problems(english.tokenizer, READABLE).unreadable == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        english.embed([text for text in READABLE if text.strip()])
        Albert("small-zh").embed([*CHINESE, "iPhone 17", "體育"])


def test_message_names_a_model_that_reads_the_text(english):
    assert "use small-zh" in find_problems(english.tokenizer, CHINESE).describe()
    for text in (RUSSIAN, "日本語のテキストです", "👍👍👍"):
        message = find_problems(english.tokenizer, [text]).describe()
        assert "small" not in message and "No built-in model" in message
    symbols = Tokenizer.from_symbols(list("$abc"))
    assert "use small," in find_problems(symbols, ["The station is near"]).describe()


def test_dropped_characters_of_a_phoneme_model_are_unknown():
    symbols = Tokenizer.from_symbols(list("$abc"))
    assert unknown_share(symbols, "abx") == pytest.approx(1 / 3)
    assert find_problems(symbols, ["abc", "xyz"]).unreadable == 1


def test_long_text_is_checked_in_bounded_time(english):
    assert unknown_share(english.tokenizer, "a" * 20_000 + "我" * 1_000_000) == 0
    assert unknown_share(english.tokenizer, "我" * 1_000_000) == 1


# Python ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda albert: albert.embed(CHINESE[0]),
        lambda albert: albert.embed(["a cat", *CHINESE]),
        lambda albert: list(albert.embed_iter(CHINESE)),
        lambda albert: albert.similarity(*CHINESE[:2]),
        lambda albert: albert.token_vectors(CHINESE),
        lambda albert: albert.embed_early_exit(CHINESE, "cosine:0.9"),
        lambda albert: albert.fill_mask("北京是[MASK]的首都。"),
        lambda albert: albert.explain(CHINESE[2]),
    ],
)
def test_every_method_of_a_model_warns(english, use):
    with pytest.warns(UnreadableTextWarning, match="small-zh"):
        use(english)


def test_one_call_warns_once(english):
    texts = ["a cat"] * 100 + CHINESE[:1] * 200
    with pytest.warns(UnreadableTextWarning) as found:
        english.embed(texts, depth=3)
    assert len(found) == 1


def test_predictions_of_a_task_warn(english, tmp_path):
    examples = [TextExample(f"{word} number {i}", label=word) for i in range(8) for word in ("good", "bad")]
    classifier = Albert(finetune("classify", examples, output=tmp_path / "out", model="small", freeze=True).model)
    with pytest.warns(UnreadableTextWarning, match="1 of 2 texts"):
        classifier.classify(["a good one", CHINESE[0]])
    with pytest.warns(UnreadableTextWarning):
        classifier.explain(CHINESE[2])


def test_example_with_several_texts_is_judged_by_all_of_them():
    long = QuestionExample("0", "谁？", "The station is near the river, and everybody knows where it is.")
    assert find_problems(Albert("small").tokenizer, [long.joined_text()]).unreadable == 0


# Blank texts and untrained depths -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A classifier and a tagger that were fine-tuned at their full depth of three layers."""
    made = tmp_path_factory.mktemp("tasks")
    for task, labels in {"classify": ("bad", "good"), "tag": ("O", "B-PER", "I-PER")}.items():
        artifact = make(tiny(vocab_size=3000, max_position_embeddings=64), heads=(task,))
        metadata = replace(ArtifactMetadata(), task=task, labels=labels, history=({"step": "finetune"},))
        write_artifact(replace(artifact, metadata=metadata), made / task)
    return made


@pytest.mark.parametrize("blank", ["", " ", "\t\n", "\u200b", "\x00"])
@pytest.mark.parametrize("method", ["embed", "token_vectors", "classify", "tag"])
def test_a_blank_text_has_a_warning(english, folders, method, blank):
    albert = Albert(folders / method, threads=1) if method in ("classify", "tag") else english
    with pytest.warns(BlankTextWarning, match="^1 of 2 texts is blank, so its result has no meaning. Remove"):
        getattr(albert, method)(["a cat", blank])
    with pytest.warns(BlankTextWarning, match="^the text is blank, so its result has no meaning. Pass a text"):
        getattr(albert, method)(blank)


def test_a_blank_part_of_a_question_or_pair_is_blank():
    assert TextExample("a cat", " ").is_blank() and not TextExample("a cat", "a dog").is_blank()
    assert QuestionExample("0", "", "The cat sat.").is_blank() and QuestionExample("0", "Who?", " ").is_blank()
    assert ChoiceExample("", " ", ("a", "b")).is_blank() and ChoiceExample("Tom.", "", ("a", " ")).is_blank()
    assert not ChoiceExample("", "Who?", ("a", "b")).is_blank()
    assert not DialogueTurn("0", 0, "", "hello").is_blank() and DialogueTurn("0", 0, "hello", "").is_blank()


def test_each_problem_of_a_stream_is_reported_once(english):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        list(english.embed_iter([*["a cat"] * 63, "", *["a cat"] * 100, CHINESE[0], "", CHINESE[1]]))
    messages = [str(w.message) for w in found]
    assert len(messages) == 2 and messages[0].startswith("1 of the first 64 texts is blank")
    assert "1 of the first" in messages[1] or "2 of the first" in messages[1]


@pytest.mark.parametrize("options", [{"depth": 1}, {"early_exit": "entropy:0.1"}])
def test_a_depth_that_was_not_trained_has_a_warning(folders, options):
    albert = Albert(folders / "classify", threads=1)
    with pytest.warns(UntrainedDepthWarning, match="fine-tuned at its full depth only.*albertkit elastic") as found:
        albert.classify(["a cat", "a dog"], **options)
    assert len(found) == 1
    with pytest.warns(UntrainedDepthWarning):
        Albert(folders / "classify", threads=1, depth=1).classify("a cat")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        albert.classify("a cat", depth=3)
        albert.classify("a cat")


def test_explanations_warn_of_a_depth_that_was_not_trained_and_of_a_blank_text(folders, english):
    albert = Albert(folders / "classify", threads=1)
    with pytest.warns(UntrainedDepthWarning, match="full depth only") as found:
        albert.explain("a cat", depth=1)
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        albert.explain("a cat", depth=3)
        english.explain("a cat", depth=3)
    with pytest.warns(BlankTextWarning, match="1 of 2 texts is blank"):
        english.explain("a cat", pair=" ")
    done = albertkit(folders, "explain", "-m", "classify", "a cat", "--depth", "1")
    assert done.returncode == 0 and done.stderr.count("full depth only") == 1, done.stderr


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_commands_warn_once_of_blank_texts_and_of_the_depth(tmp_path, folders, task):
    (tmp_path / "texts.txt").write_text("a cat\n\na dog\n")
    done = albertkit(tmp_path, task, "-m", str(folders / task), "-f", "texts.txt", "--depth", "1")
    assert done.returncode == 0
    assert done.stderr.count("full depth only") == done.stderr.count("1 of 3 texts is blank") == 1, done.stderr
    assert all(line.startswith("warning: ") for line in done.stderr.splitlines())


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_the_server_warns_of_blank_texts_and_of_the_depth(folders, task):
    with Served(f"{task}={folders / task}", "--threads", 1) as server:
        response = server.post(f"/{task}", {"texts": ["a cat", " "], "depth": 1})
        blank, depth = response.json()["warnings"]
        assert "1 of 2 texts is blank" in blank and "full depth only" in depth
        assert blank in response.headers["x-albertkit-warning"] and depth in response.headers["x-albertkit-warning"]
        assert server.post(f"/{task}", {"texts": ["a cat"], "depth": 3}).json()["warnings"] == []


def test_vectors_of_blank_texts_have_a_warning_over_http(served):
    response = served.post("/v1/embeddings", {"input": ["a cat", ""], "model": "small"})
    assert "1 of 2 texts is blank" in response.json()["warnings"][0]
    assert "1 of 2 texts is blank" in served.post("/embed", {"inputs": ["a cat", " "]}).headers["x-albertkit-warning"]


# Vectors of models that were not trained for vectors -----------------------------------------------------------------


@pytest.fixture(scope="module")
def pretrained() -> Albert:
    return Albert("small-pretrained")


@pytest.mark.parametrize(
    "use",
    [
        lambda albert: albert.similarity("a cat", "the stock market"),
        lambda albert: albert.explain("a cat", pair="the stock market"),
        lambda albert: embed_role(albert, ["a cat"], "query"),
    ],
)
def test_comparing_vectors_of_a_pretrained_model_warns_once(english, pretrained, use):
    with pytest.warns(UntrainedVectorsWarning, match="not trained for sentence vectors.*such as small") as found:
        use(pretrained)
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use(english)


def test_an_index_of_a_pretrained_model_warns_when_it_computes_vectors(pretrained, tmp_path):
    records = [Record(str(i), f"note number {i}") for i in range(20)]
    with Index.create(tmp_path / "notes.idx", pretrained) as index:
        with pytest.warns(UntrainedVectorsWarning) as found:
            index.add(records, batch=8)
        assert len(found) == 1
        with pytest.warns(UntrainedVectorsWarning) as found:
            index.search("note")
        assert len(found) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            index.search("note", mode="keyword")
            index.search_many(["note"], vectors=pretrained.embed(["note"]))


def test_vectors_as_features_and_trained_vectors_have_no_warning(pretrained, folders, tmp_path):
    examples = [TextExample(f"{word} number {i}", label=word) for i in range(8) for word in ("good", "bad")]
    frozen = finetune("classify", examples, output=tmp_path / "out", model="small", freeze=True).model
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pretrained.embed(["a cat", "a dog"])
        Albert(frozen).similarity("a cat", "a dog")
    with pytest.warns(UntrainedVectorsWarning):  # a classifier that was fine-tuned as a whole
        Albert(folders / "classify", threads=1).similarity("a cat", "a dog")


def test_commands_warn_once_of_untrained_vectors(tmp_path):
    (tmp_path / "texts.txt").write_text("a cat\na dog\nthe stock market\n")
    for command in (
        ["similar", "a cat", "the stock market", "-m", "small-pretrained"],
        ["cluster", "texts.txt", "-k", "2", "-m", "small-pretrained"],
        ["index", "texts.txt", "-o", "notes.idx", "-m", "small-pretrained"],
        ["search", "notes.idx", "a cat"],
    ):
        done = albertkit(tmp_path, *command)
        assert done.returncode == 0 and done.stderr.count("not trained for sentence vectors") == 1, done.stderr
    assert "not trained" not in albertkit(tmp_path, "embed", "a cat", "-m", "small-pretrained").stderr


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/similar", {"texts": ["a cat", "a dog"]}),
        ("/search", {"query": "a cat", "texts": ["a cat", "a dog"]}),
        ("/similarity", {"inputs": {"source_sentence": "a cat", "sentences": ["a dog"]}}),
        ("/rerank", {"query": "a cat", "texts": ["a cat", "a dog"]}),
    ],
)
def test_responses_with_cosines_of_untrained_vectors_have_a_warning(served, path, body):
    response = served.post(path, {**body, "model": "small-pretrained"})
    assert "not trained for sentence vectors" in response.headers["x-albertkit-warning"], response.json()
    assert "x-albertkit-warning" not in served.post(path, {**body, "model": "small"}).headers


# Training and indexing -------------------------------------------------------------------------------------------


def chinese_examples() -> list[TextExample]:
    return [TextExample(f"{text}{i}", label=str(i % 2)) for i in range(10) for text in CHINESE]


@pytest.mark.parametrize("freeze", [True, False])
def test_training_on_unreadable_texts_is_refused(tmp_path, freeze):
    options = {"output": tmp_path / "out", "model": "small", "freeze": freeze}
    with pytest.raises(UnreadableTextError, match="small-zh.*--max-unknown 1"):
        finetune("classify", chinese_examples(), **options)
    if freeze:
        with pytest.warns(UnreadableTextWarning):
            assert finetune("classify", chinese_examples(), **options, max_unknown=1.0).model.is_dir()


def test_training_on_few_unreadable_texts_warns(tmp_path):
    examples = [TextExample(f"{word} number {i}", label=word) for i in range(20) for word in ("good", "bad")]
    with pytest.warns(UnreadableTextWarning):
        finetune("classify", [*examples, TextExample(CHINESE[0], label="good")], output=tmp_path / "o", freeze=True)


def test_indexing_unreadable_texts_is_refused(english, tmp_path):
    readable = [Record(f"e{i}", f"note number {i}", "a", i) for i in range(30)]
    chinese = [Record(f"c{i}", text, "a", i) for i, text in enumerate(CHINESE)]
    with Index.create(tmp_path / "notes.idx", english) as index:
        with pytest.raises(UnreadableTextError, match="3 of 3 texts"):
            index.add(chinese)
        assert len(index) == 0
        with pytest.warns(UnreadableTextWarning):
            index.add([*readable, *chinese])
        with pytest.warns(UnreadableTextWarning):
            index.search(CHINESE[0])
    with Index.create(tmp_path / "forced.idx", english) as index, pytest.warns(UnreadableTextWarning):
        assert index.add(chinese, max_unknown=1.0) == 3


def test_order_and_repetition_of_texts_do_not_change_what_an_index_refuses(english, tmp_path):
    readable = [Record(f"e{i}", f"note number {i}", "a", i) for i in range(60)]
    with Index.create(tmp_path / "first.idx", english) as index, pytest.warns(UnreadableTextWarning):
        assert index.add([Record("c", CHINESE[0], "a", 0), *readable], batch=8) == 61
    with Index.create(tmp_path / "same.idx", english) as index, pytest.raises(UnreadableTextError):
        index.add([Record(f"c{i}", CHINESE[0], "a", i) for i in range(40)])
    with Index.create(tmp_path / "full.idx", english) as index, pytest.raises(UnreadableTextError):
        index.add([Record(f"c{i}", f"{CHINESE[0]}{i}", "a", i) for i in range(8)], batch=8)


def test_bulk_work_counts_unreadable_texts(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(["a cat", *CHINESE]))
    with pytest.warns(UnreadableTextWarning, match="3 of 4"):
        summary = bulk("embed", [str(file)], str(tmp_path / "out"), BulkOptions())
    assert summary.unreadable_rows == 3


def albertkit(folder, *arguments):
    command = [sys.executable, "-m", "albertkit", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


# Command line ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ["similar", *CHINESE[:2]],
        ["embed", CHINESE[0]],
        ["fill", "北京是[MASK]的首都。"],
        ["tokenize", CHINESE[0]],
        ["explain", "-m", "small", CHINESE[2], "-o", "out.html"],
    ],
)
def test_commands_print_one_line_of_warning(tmp_path, command):
    done = albertkit(tmp_path, *command)
    lines = [line for line in done.stderr.splitlines() if "cannot read" in line]
    assert done.returncode == 0 and len(lines) == 1, done.stderr
    assert lines[0].startswith("warning: ") and "use small-zh" in lines[0]


def test_each_unreadable_text_of_tokenize_is_named(tmp_path):
    lines = [line for line in albertkit(tmp_path, "tokenize", "hello", *CHINESE[:2]).stderr.splitlines() if line]
    assert len(lines) == 2 and all(text in line for text, line in zip(CHINESE, lines, strict=False))


def test_index_command_refuses_and_another_model_can_create_the_index(tmp_path):
    (tmp_path / "notes.txt").write_text("\n".join(CHINESE), encoding="utf-8")
    command = ["index", "notes.txt", "-o", "notes.idx", "--json"]
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    done = albertkit(tmp_path, "index", "latin.txt", "-o", "notes.idx")
    assert done.returncode == 2 and "UTF-8" in done.stderr and not (tmp_path / "notes.idx").exists()
    done = albertkit(tmp_path, *command)
    assert done.returncode == 2 and "use small-zh" in done.stderr and not (tmp_path / "notes.idx").exists()
    assert json.loads(albertkit(tmp_path, *command, "-m", "small-zh").stdout)["total"] == 3


# Server ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served():
    with Served("small", "small-pretrained", "--threads", 1) as made:
        yield made


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": CHINESE, "model": "small"}),
        ("/similar", {"texts": CHINESE}),
        ("/search", {"query": CHINESE[0], "texts": ["a cat", "a dog"]}),
        ("/fill", {"texts": ["北京是[MASK]的首都。"]}),
        ("/explain", {"text": CHINESE[2]}),
    ],
)
def test_response_has_a_field_and_a_header(served, path, body):
    response = served.post(path, body)
    (warning,) = response.json()["warnings"]
    assert response.status_code == 200 and "use small-zh" in warning
    assert "use small-zh" in response.headers["x-albertkit-warning"]


def test_response_in_the_format_of_others_has_a_header(served):
    response = served.post("/embed", {"inputs": ["a cat", *CHINESE]})
    assert len(response.json()) == 4 and "3 of 4 texts" in response.headers["x-albertkit-warning"]
    assert response.headers["x-albertkit-warning"].isascii()


def test_readable_texts_have_no_warning(served):
    response = served.post("/similar", {"texts": ["a cat", "a dog"]})
    assert response.json()["warnings"] == [] and "x-albertkit-warning" not in response.headers
