"""The built-in model: small, whole, found without a name, and good at what it is for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from albertkit import Albert, AlbertkitError, Index, builtin, open_model
from albertkit.artifact import check_files, read_metadata, read_stored, write_artifact
from albertkit.cli.entry_point import app
from albertkit.quantized import QuantizedMatrix
from albertkit.search.index_records import records_from
from tests.conftest import ROOT, program, tiny

FOLDER = builtin.MODELS / builtin.DEFAULT
LIMIT = 8_000_000  # bytes of everything `Albert()` needs
ALL = 28_000_000  # all built-in models
DEPTHS = (3, 6, 9, 12)


@pytest.fixture(scope="module")
def albert():
    return Albert()


# What it is for --------------------------------------------------------------------------------------------------

TRIPLES = [  # the first is nearer to the second than to the third
    ("a man is playing the guitar", "someone is making music", "the stock market fell on tuesday"),
    ("the cat sleeps on the sofa", "a kitten is resting on the couch", "he repaired the engine of the car"),
    ("how do i reset my password", "i forgot my login and cannot sign in", "what time does the museum open"),
    ("the train was late again", "my railway journey was delayed", "she baked a chocolate cake"),
    ("it is raining heavily today", "there is a downpour outside", "the parliament passed a new law"),
    ("the doctor treated the patient", "a physician cared for a sick person", "the band released an album"),
    ("he bought a new house", "he purchased a home", "the river freezes in winter"),
    ("children are playing football", "kids kick a ball around", "the theory was published in a journal"),
    ("the film was boring", "i did not enjoy the movie", "copper conducts electricity well"),
    ("where can i buy tickets", "is there a place that sells tickets", "the mountain is covered with snow"),
    ("the government raised taxes", "people must pay more to the state", "a dog runs along the beach"),
    ("she teaches mathematics at a school", "she works as a maths teacher", "the ship sank near the coast"),
]


@pytest.mark.parametrize("settings", [{}, {"depth": 6}, {"dim": 128}], ids=str)
def test_like_texts_are_near(albert, settings):
    for first, near, far in TRIPLES:
        one, two = albert.similarity(first, [near, far], **settings)
        assert one > two, (first, near, far, settings)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("paris is the [MASK] of france.", {"capital"}),
        ("she opened the [MASK] and walked into the house.", {"door", "gate"}),
        ("the sun rises in the [MASK].", {"east", "morning", "sky", "mountains"}),
        ("he was born in [MASK], england.", {"london", "manchester", "birmingham", "liverpool", "bristol", "leeds"}),
        ("he was the [MASK] of the united states from 1933 to 1945.", {"president"}),
        ("one of the [MASK] important cities of the country.", {"most"}),
    ],
)
def test_masks_are_filled_sensibly(albert, text, words):
    assert words & {guess.word for guess in albert.fill_mask(text, k=5)[0]}


@pytest.mark.parametrize("name", ["small", "small-zh"])
def test_default_depth_is_the_shallowest_within_two_tenths_of_a_point_of_the_best(name):
    metadata, _ = read_metadata(builtin.MODELS / name)
    chosen = program("docs/generate").models.default_depth(metadata.metrics["STS-B dev, Spearman"])
    assert builtin.describe(name).depth == Albert(name).depth == chosen


def test_full_depth_is_all_layers(albert):
    texts = ["one text", "another one"]
    assert albert.depth < albert.config.num_hidden_layers == Albert("small", depth="full").depth
    assert np.array_equal(albert.embed(texts, depth="full"), albert.embed(texts, depth=12))
    assert np.array_equal(albert.embed(texts), albert.embed(texts, depth=albert.depth))
    with pytest.raises(AlbertkitError, match="'full' for all"):
        albert.embed(texts, depth="deep")


def test_early_exit_without_a_depth_agrees_with_the_calibrated_one(albert):
    texts = [text for triple in TRIPLES for text in triple]
    vectors, depths = albert.embed_early_exit(texts, "99%")
    full = albert.embed(texts, depth="full")
    assert depths.max() <= 12 and (vectors * full).sum(1).min() > 0.9
    with pytest.raises(AlbertkitError, match="calibrated for depth 12, but depth is 6"):
        albert.embed(texts, early_exit="99%", depth=6)


def test_index_is_searched_at_the_depth_it_was_made_at(tmp_path):
    notes, path = tmp_path / "n.txt", tmp_path / "n.idx"
    notes.write_text("the doctor treated the patient\nthe river freezes in winter\n", encoding="utf-8")
    with Index.create(path, Albert("small", depth="full"), model_path="small") as index:
        index.add(records_from([notes]))
    with pytest.raises(AlbertkitError, match="at the same depth"):
        Index.open(path, Albert("small"))
    done = CliRunner().invoke(app, ["search", str(path), "a physician cared for a sick person", "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["hits"][0]["line"] == 1
    assert CliRunner().invoke(app, ["index", str(notes), "-o", str(path)]).exit_code == 0


def test_fewer_layers_rank_alike(albert):
    """Depths of 3, 6, 9 and 12 are what it was taught; half of the layers find the neighbours that all of them find."""
    texts = [text for triple in TRIPLES for text in triple]
    tables = {depth: albert.similarity(texts, depth=depth) for depth in DEPTHS}
    above = np.triu_indices(len(texts), 1)
    whole = tables[12][above].argsort().argsort()
    for depth, least in ((9, 0.9), (6, 0.85), (3, 0.7)):
        part = tables[depth][above].argsort().argsort()
        assert np.corrcoef(part, whole)[0, 1] > least, depth


def test_every_depth_and_width_gives_unit_vectors(albert):
    for depth in DEPTHS:
        found = albert.embed(["one text", "another one"], depth=depth, dim=64)
        assert found.shape == (2, 64) and np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


# What it is ------------------------------------------------------------------------------------------------------


def test_it_is_small_whole_and_the_one_that_was_measured():
    meta, files = read_metadata(FOLDER)
    check_files(FOLDER, files)
    there = {p.name: p.stat().st_size for p in FOLDER.iterdir()}
    assert set(there) == {*files, "albertkit.json", "README.md"}
    assert sum(there.values()) <= LIMIT and "tokenizer.json" not in there and meta.quantization == "int8"
    measured = json.loads((ROOT / "studies" / "results" / "builtin.json").read_text(encoding="utf-8"))
    assert builtin.fingerprint(FOLDER) == measured["model"]["hash"]


def read_json(*parts: str) -> dict:
    return json.loads(ROOT.joinpath(*parts).read_text(encoding="utf-8"))


def speed_beside_the_fastest_peer() -> list[float]:
    """The ratio of the built-in model to the fastest peer, for each workload of the two recorded runs."""
    ratios: dict[str, list[float]] = {}
    for row in read_json("bench", "results", "report.json")["parts"]["encoders"]["rows"]:
        ratios.setdefault(row["what"], []).append(row["ratio"])
    for workload, encoders in read_json("bench", "results", "encoders.json")["workloads"].items():
        speeds = {encoder: found["texts_per_second"] for encoder, found in encoders.items()}
        own = speeds.pop("small, albertkit int8")
        ratios[workload] = [own / speed for speed in speeds.values()]
    return [min(of_peers) for of_peers in ratios.values()]


@pytest.mark.parametrize("name", ["README.md", "README.zh-CN.md"])
def test_readme_quotes_what_was_measured(name):
    measured, chinese = (
        read_json("studies", "results", "builtin.json"),
        read_json("studies", "results", "small-zh.json"),
    )
    assert chinese["model"]["hash"] == builtin.fingerprint(builtin.MODELS / "small-zh")
    scores, rows = (found["tasks"]["STS-B dev"]["scores"] for found in (measured, chinese))
    quoted = [
        f"{sum(p.stat().st_size for p in FOLDER.iterdir()) / 1e6:.1f} MB",
        *(f"{100 * scores[key]['384']:.1f}" for key in ("int8, depth 6", "MiniLM-L6")),
        f"{measured['peer_bytes']['MiniLM-L6'] / 1e6:.0f} MB",
        *(f"{100 * rows[key]['Spearman']:.1f}" for key in ("int8, depth 3", "m3e-small")),
        f"{sum(p.stat().st_size for p in (builtin.MODELS / 'small-zh').iterdir()) / 1e6:.1f} MB",
    ]
    ratios = speed_beside_the_fastest_peer()
    slowest, fastest = f"{min(ratios):.1f}", f"{max(ratios):.1f}"
    quoted += [f"{slowest} to {fastest} times" if name == "README.md" else f"{slowest} 到 {fastest} 倍"]
    text = (ROOT / name).read_text(encoding="utf-8").split("\n## ")[0]
    assert [number for number in quoted if number not in text] == []


def test_everything_shipped_is_small():
    assert sorted(p.name for p in builtin.MODELS.iterdir()) == sorted([*builtin.BUILTINS, "shared_space.safetensors"])
    assert sum(p.stat().st_size for p in builtin.MODELS.rglob("*") if p.is_file()) <= ALL


def test_it_opens_by_name_and_without_one(albert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert np.array_equal(Albert("small").embed("a text"), albert.embed("a text"))
    assert Albert(Path("small")).name == albert.name
    with pytest.raises(
        AlbertkitError, match=r"built-in model \(small, small-pretrained, small-zh, small-zh-pretrained\)"
    ):
        Albert("smal")
    save_tiny(tmp_path / "small")  # what lies here goes first
    assert Albert("small").dim == 32


def save_tiny(path: Path) -> None:
    from albertkit.model import AlbertModel
    from albertkit.tokenizer import Tokenizer

    AlbertModel(tiny(vocab_size=30000)).save(path, Tokenizer.load(FOLDER))


def test_no_torch_is_needed():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from albertkit import Albert\n"
        "albert = Albert()\n"
        "print(albert.embed(['a', 'b']).shape, len(albert.fill_mask('a [MASK]')[0]), 'transformers' in sys.modules)"
    )
    shown = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert shown.strip() == "(2, 384) 5 False"


def test_the_wheel_holds_it(tmp_path):
    wheel = pytest.importorskip("hatchling.builders.wheel")
    made = next(wheel.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    names = {Path(n).name for n in zipfile.ZipFile(made).namelist() if n.startswith("albertkit/models/small/")}
    assert names == {p.name for p in FOLDER.iterdir()}


# The command line ------------------------------------------------------------------------------------------------


def say(*given: object) -> str:
    done = CliRunner().invoke(app, [str(x) for x in given], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_models_lists_it():
    rows = [json.loads(line) for line in say("models", "--json").splitlines()]
    assert [row["name"] for row in rows] == list(builtin.BUILTINS) and all(row["licence"] for row in rows)
    about, (meta, _) = rows[0], read_metadata(FOLDER)
    assert about["name"] == "small" and about["path"] == str(FOLDER) and about["bytes"] <= LIMIT
    assert about["shape"]["hidden"] == 384 and about["quantization"] == "int8"
    assert about["language"] == meta.details["language"] and about["licence"] == meta.details["licence"]
    assert about["scores"] == meta.metrics and "STS-B dev, Spearman" in about["scores"]
    shown = say("models")
    for word in ("small", about["purpose"], about["language"], about["licence"], "MB", "STS-B dev"):
        assert word in shown
    assert "_" not in shown  # no raw names of metrics


def test_verbs_need_no_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(json.loads(say("embed", "a text"))["vector"]) == 384
    assert np.array(json.loads(say("similar", "a", "b", "--json"))["scores"]).shape == (2, 2)
    assert len(say("fill", "a [MASK] text", "-k", 2).splitlines()) == 2
    assert say("tokenize", "this is a test", "-m", "small") == say("tokenize", "this is a test")
    Path("notes.txt").write_text("the first note\nanother one\n", encoding="utf-8")
    assert len(say("cluster", "notes.txt", "-k", 1, "--json").splitlines()) == 1
    assert "parameters" in say("info", "small")


def test_an_index_remembers_the_built_in_model_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("the first note\nanother one\n", encoding="utf-8")
    for given in ([], ["-m", "small"]):
        say("index", "notes.txt", "-o", "notes.idx", "--force", *given)
        from albertkit.search.index import Index

        with Index.open("notes.idx", None) as held:
            assert held.model_path == "small"
        Path("small").mkdir(exist_ok=True)  # has nothing to do with it
        assert "the first note" in say("search", "notes.idx", "first")
        Path("small").rmdir()


@pytest.mark.slow
def test_the_demonstration_runs(tmp_path):
    place = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": place + os.pathsep + os.environ["PATH"]}
    if not (Path(place) / "albertkit").exists():
        pytest.skip("albertkit is not installed beside this Python")
    done = subprocess.run([ROOT / "runs" / "demo.sh"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n$ albertkit ") == 8 and list(tmp_path.iterdir()) == []


# A start for more ------------------------------------------------------------------------------------------------

TEXTS = ["what a lovely film", "i liked every minute", "a dull and boring story", "the worst book i know"] * 3
LABELS = ["good", "good", "bad", "bad"] * 3


def test_it_opens_as_floats():
    stored, artifact = read_stored(None), open_model()
    quantised = {n: w for n, w in stored.weights.items() if isinstance(w, QuantizedMatrix)}
    assert quantised and all(np.array_equal(artifact.weights[n], w.floats()) for n, w in quantised.items())


def test_a_classifier_needs_no_argument(albert):
    pytest.importorskip("sklearn")
    from albertkit.sklearn import AlbertClassifier

    found = AlbertClassifier().fit(TEXTS, LABELS)
    assert found.predict(TEXTS).tolist() == LABELS
    assert found.albert_.metadata.quantization == "int8"  # as quick as what it was made from, and the same vectors
    assert np.array_equal(found.albert_.embed(TEXTS[:4]), albert.embed(TEXTS[:4]))


@pytest.mark.slow
def test_finetuning_starts_from_it(tmp_path):
    pytest.importorskip("torch")
    from albertkit.tasks.examples import TextExample
    from albertkit.train.finetune import finetune_examples
    from albertkit.train.train_settings import FinetuneSettings

    examples = [TextExample(text, label=label) for text, label in zip(TEXTS, LABELS, strict=True)]
    options = FinetuneSettings(epochs=1, batch_size=12, max_length=16, restarts=0)
    done = finetune_examples("classify", examples, examples, tmp_path, settings=options)
    made = Albert(done.model)
    assert made.metadata.quantization is None and made.dim == 384 and made.metadata.history[-1]["step"] == "finetune"
    assert set(made.metadata.history[0]) == set(read_metadata(FOLDER)[0].history[0])
    frozen = finetune_examples("classify", examples, (), tmp_path / "frozen", settings=FinetuneSettings(freeze=True))
    assert Albert(frozen.model).metadata.quantization == "int8"


def test_quantised_folders_keep_the_vocabulary_once(tmp_path):
    """tokenizer.json is for others, who cannot read quantised weights; spiece.model alone gives the same tokenizer."""
    artifact = open_model()
    for name, given in (("float", {}), ("int8", {"bits": 8})):
        write_artifact(artifact, tmp_path / name, **given)
    there = {name: (tmp_path / name / "tokenizer.json").exists() for name in ("float", "int8")}
    assert there == {"float": True, "int8": False}
    one, two = (read_stored(tmp_path / name).tokenizer for name in there)
    assert one.vocabulary == two.vocabulary and one.fingerprint() == two.fingerprint()


def test_chinese_model_compares_sentences_and_fills_masks():
    """Without being told, masks are filled by the pre-trained model of the same language."""
    chinese = Albert("small-zh")
    near, far = chinese.similarity(
        "\u6211\u60f3\u9000\u8d27",
        ["\u600e\u4e48\u628a\u4e1c\u897f\u9000\u6389", "\u4eca\u5929\u80a1\u5e02\u5927\u8dcc"],
    ).ravel()
    assert near > 0.5 > 0.35 > far
    assert chinese.fill_mask("\u5317\u4eac\u662f\u4e2d\u56fd\u7684[MASK]\u3002")[0][0].word == "\u9996\u90fd"
    assert chinese.tokenizer.encode("\u9ad4\u80b2 and \uff21\uff22\uff23 123").unknown_fraction == 0
