"""The component of spaCy sets what the models predict, also when a pipeline is stored."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from albertkit import Albert, AlbertkitError
from tests.conftest import ROOT
from tests.serve.conftest import MADE, make

spacy = pytest.importorskip("spacy")
import albertkit.adapters.spacy  # noqa: E402

TEXTS = ["Ann Smith met Bob in Rome.", "", "Paris, London and Berlin are far-away cities (for Ann)."]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    return {name: str(make(place / name, *MADE[name])) for name in ("names", "topics", "stars")}


@pytest.fixture
def nlp(folders):
    made = spacy.blank("en")
    made.add_pipe("albertkit", config={"tag": folders["names"], "classify": folders["topics"]})
    return made


def test_entities_are_those_of_the_model_as_whole_tokens(nlp, folders):
    tagger = Albert(folders["names"])
    found = 0
    for doc in nlp.pipe(TEXTS):
        predicted = tagger.tag(doc.text).spans
        for entity in doc.ents:
            inside = [one for one in predicted if entity.start_char <= one.start and one.end <= entity.end_char]
            assert entity.label_ in {one.label for one in inside}
        covered = {place for entity in doc.ents for place in range(entity.start_char, entity.end_char)}
        assert all(place in covered for one in predicted for place in range(one.start, one.end))
        found += len(doc.ents)
    assert found


def test_entities_of_earlier_components_stay(folders):
    nlp, alone = spacy.blank("en"), spacy.blank("en")
    ruler = nlp.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "CITY", "pattern": "Rome"}, {"label": "CITY", "pattern": "Berlin", "id": "b"}])
    for pipeline in (nlp, alone):
        pipeline.add_pipe("albertkit", config={"tag": folders["names"]})
    for doc, other in zip(nlp.pipe(TEXTS), alone.pipe(TEXTS), strict=True):
        cities = [entity for entity in doc.ents if entity.label_ == "CITY"]
        assert [city.text for city in cities] == [name for name in ("Rome", "Berlin") if name in doc.text]
        rest = {(e.start, e.end, e.label_) for e in doc.ents} - {(e.start, e.end, "CITY") for e in cities}
        taken = {token.i for city in cities for token in city}
        assert rest == {(e.start, e.end, e.label_) for e in other.ents if taken.isdisjoint(range(e.start, e.end))}


def test_an_entity_inside_a_token_becomes_the_token():
    doc = spacy.blank("en")("They flew far-away.")
    assert albertkit.adapters.spacy.to_span(doc, 1, 3, "PER").text == "They"


def test_categories_are_the_probabilities_of_the_model(nlp, folders):
    expected = [one.probabilities for one in Albert(folders["topics"]).classify(TEXTS)]
    assert [doc.cats for doc in nlp.pipe(TEXTS)] == [pytest.approx(row) for row in expected]
    assert nlp(TEXTS[0]).cats == pytest.approx(expected[0])


def test_a_stored_pipeline_predicts_the_same(nlp, tmp_path):
    nlp.to_disk(tmp_path / "pipeline")
    again = spacy.load(tmp_path / "pipeline")
    for doc, other in zip(nlp.pipe(TEXTS), again.pipe(TEXTS), strict=True):
        assert doc.to_json() == other.to_json()


def test_one_model_is_enough(folders):
    only = spacy.blank("en")
    only.add_pipe("albertkit", config={"classify": folders["topics"]})
    doc = only(TEXTS[0])
    assert doc.cats and not doc.ents


def test_models_for_other_tasks_are_errors(folders):
    nlp = spacy.blank("en")
    for config, message in (
        ({}, "has no model"),
        ({"tag": folders["topics"]}, "tag is not available"),
        ({"classify": folders["stars"]}, "predicts a value"),
    ):
        with pytest.raises(AlbertkitError, match=message):
            nlp.add_pipe("albertkit", config=config)


def test_an_installed_package_needs_no_import(folders, tmp_path):
    """spaCy finds the component by the entry point that pyproject.toml declares."""
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("spacy_factories]\n")[2].splitlines()
    about = tmp_path / "albertkit-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: albertkit\nVersion: 0\n")
    (about / "entry_points.txt").write_text("[spacy_factories]\n" + lines[0].replace('"', "") + "\n")
    code = f"""
import spacy
nlp = spacy.blank("en")
nlp.add_pipe("albertkit", config={{"classify": {folders["topics"]!r}}})
print(sorted(nlp("one").cats))
"""
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "['art', 'food', 'sport']\n"
