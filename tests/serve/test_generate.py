"""/generate equals `Albert.generate`, within limits, and is rejected if it would take too long."""

from __future__ import annotations

import asyncio
import dataclasses
import json

import pytest

from albertkit.errors import AlbertkitError
from albertkit.serve import tasks_api
from albertkit.serve.batcher import Batcher
from albertkit.serve.inference import RequestContext, ServerMetrics, Service
from albertkit.serve.schemas import HttpError
from albertkit.serve.serve_settings import ApiKeys, ServeSettings
from albertkit.serve.served_indexes import ServedIndexes
from albertkit.serve.served_models import ModelSource, ServedModels

TEXTS = [f"the {word} house number {n}" for n, word in enumerate(("red", "old", "very large", "small", "one") * 2)]


@pytest.mark.parametrize(
    "style",
    [{}, {"beams": 3, "no_repeat": 2}, {"max_tokens": 2}, {"depth": 1}],
    ids=("likeliest", "beams", "short", "shallow"),
)  # fmt: skip
def test_generate_equals_that_of_albert(server, alberts, style):
    assert len(TEXTS) > tasks_api.GENERATE_TEXTS
    answer = server.post("/generate", {"texts": TEXTS, **style})
    assert answer.status_code == 200 and answer.json()["model"] == "author"
    wanted = [json.loads(json.dumps(dataclasses.asdict(one))) for one in alberts["author"].generate(TEXTS, **style)]
    for found, right in zip(answer.json()["results"], wanted, strict=True):
        assert found == {**right, "score": pytest.approx(right["score"], abs=1e-5)}


def test_one_text_and_a_long_one(server, alberts):
    for text in ("one", "", " ".join(["word"] * 500)):
        (found,) = server.post("/generate", {"texts": text, "model": "author"}).json()["results"]
        assert found["text"] == alberts["author"].generate(text).text


@pytest.mark.parametrize(
    ("asked", "status", "said"),
    [
        ({"texts": "a", "beams": 17}, 422, "at most 16"),
        ({"texts": "a", "max_tokens": 1000}, 422, "positions left"),
        ({"texts": "a", "tempo": 1}, 422, "tempo"),
        ({"texts": []}, 422, "texts=[] is not valid: it must be a list of length at least 1"),
        ({"texts": ["a"] * 1025}, 413, "at most 1,024"),
        ({"texts": ["a"] * 1024, "beams": 16, "max_tokens": 40}, 413, "tokens would be generated"),
        ({"texts": "a", "model": "words"}, 424, "does not have 'generate'"),
    ],
)
def test_what_is_not_allowed_is_said(server, asked, status, said):
    answer = server.post("/generate", asked)
    assert answer.status_code == status and said in answer.json()["error"], answer.text


def with_service(folder, test, **settings):
    """Run an async test with a service of one model."""

    async def go():
        chosen = ServeSettings(**settings)
        models = ServedModels([ModelSource("author", folder)], chosen, 1)
        service = Service(
            chosen,
            models,
            Batcher(chosen.token_budget, chosen.deadline),
            ServerMetrics(),
            ApiKeys(),
            ServedIndexes([], models),
        )
        service.batcher.start()
        try:
            await asyncio.wait_for(test(service, next(iter(models))), 20)
        finally:
            await asyncio.to_thread(service.batcher.stop)

    asyncio.run(go())


def test_generation_measures_a_token_cost_of_its_own(folders):
    async def test(service, model):
        own = model.generate_cost
        reading, own.seconds = model.token_cost.seconds, 1.0  # so slow that nothing fits
        with pytest.raises(HttpError, match="takes about .* Send fewer texts") as caught:
            request = tasks_api.GenerateRequest(texts="a text")
            await tasks_api.generate(RequestContext(service), request)
        assert caught.value.status == 413
        own.seconds = 1e-3
        context = RequestContext(service)
        request = tasks_api.GenerateRequest(texts=["a text", "another"])
        found = await tasks_api.generate(context, request)
        assert len(found.results) == 2 and own.seconds != 1e-3 and model.token_cost.seconds == reading
        assert context.texts == 2 and context.tokens > 4 and context.compute_seconds > 0

    with_service(folders["author"], test)


def test_a_model_that_cannot_generate_is_not_served(folders, tmp_path):
    """A folder that says it writes and lacks the head for words is an error at the start, not at the first request."""
    from albertkit.artifact import ArtifactMetadata
    from tests.serve.conftest import make

    broken = make(
        tmp_path / "broken", ArtifactMetadata(task="generate", details={"max_length": 40, "target_length": 6}), {}
    )
    with pytest.raises(AlbertkitError):
        with_service(broken, lambda service, model: None)
