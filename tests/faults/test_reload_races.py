"""A server under load while its model and its index are replaced: every answer is of one of the two versions."""

from __future__ import annotations

import shutil
import signal
import threading

import httpx2
import numpy as np
import pytest

from albertkit.albert import Albert
from albertkit.search.index import Index, Record
from tests.serve.conftest import MADE, Served, make
from tests.waiting import LIMIT, wait_until

TEXTS = ["a cat sat", "the dog ran", "one more line of text", "money back, please"]
ADMIN = {"authorization": "Bearer k"}
TURNS = 20


class Version:
    """A model, its index, and their right answers."""

    def __init__(self, folder, seed: int) -> None:
        self.folder = make(folder / f"model-{seed}", *MADE["words"], seed=seed)
        self.index, albert = folder / f"index-{seed}", Albert(self.folder, threads=1)
        with Index.create(self.index, albert) as made:
            made.add([Record(f"{seed}:{i}", f"{text} {i}", "notes", i) for i, text in enumerate(TEXTS * 3)])
            self.hits = [
                [(h.id, round(h.score, 2)) for h in made.search(text, 3, "vector", min_score=-1)] for text in TEXTS
            ]
        self.vectors = albert.embed(TEXTS)


class Load:
    """Clients that embed and search without pause."""

    def __init__(self, url: str, versions: list[Version]) -> None:
        self.url, self.versions = url, versions
        self.answers, self.problems, self.over = [0, 0], [], threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(n,), daemon=True) for n in range(4)]

    def run(self, number: int) -> None:
        with httpx2.Client(base_url=self.url, timeout=LIMIT) as client:
            at = number
            while not self.over.is_set():
                at += 1
                text = at % len(TEXTS)
                try:
                    found = self.embed(client, text) if at % 2 else self.search(client, text, named=at % 4 == 0)
                    self.answers[found] += 1
                except Exception as error:
                    self.problems.append(repr(error))

    def embed(self, client, text: int) -> int:
        answer = client.post("/v1/embeddings", json={"model": "m", "input": TEXTS[text]})
        assert answer.status_code == 200, answer.text
        vector = np.array(answer.json()["data"][0]["embedding"])
        (found,) = (n for n, v in enumerate(self.versions) if np.allclose(vector, v.vectors[text], atol=1e-4))
        return found

    def search(self, client, text: int, named: bool) -> int:
        body = {"query": TEXTS[text], "k": 3, "mode": "vector", "min_score": -1, **({"model": "m"} if named else {})}
        answer = client.post("/search", json=body)
        assert answer.status_code == 200, answer.text
        hits = [(hit["id"], round(hit["score"], 2)) for hit in answer.json()["hits"]]
        (found,) = (n for n, version in enumerate(self.versions) if hits == version.hits[text])
        return found

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *problem):
        self.over.set()
        for thread in self.threads:
            thread.join(LIMIT)


@pytest.fixture
def versions(tmp_path):
    return [Version(tmp_path, seed) for seed in (4, 5)]


def replace_both(version: Version, model, index) -> None:
    """Replace the folder and the file that a server has open."""
    shutil.rmtree(model.with_name("old"), ignore_errors=True)
    model.rename(model.with_name("old"))
    shutil.copytree(version.folder, model)
    shutil.copy(version.index, index.with_name("new.idx"))
    index.with_name("new.idx").replace(index)


def test_replacing_model_and_index_under_load_fails_no_request(tmp_path, versions):
    model, index, key = tmp_path / "served", tmp_path / "notes.idx", tmp_path / "key"
    shutil.copytree(versions[0].folder, model)
    shutil.copy(versions[0].index, index)
    key.write_text("k")
    with (
        Served(f"m={model}", "--index", index, "--threads", 1, "--admin-key-file", key) as server,
        Load(server.url, versions) as load,
    ):
        for turn in range(1, TURNS + 1):
            now = turn % 2
            replace_both(versions[now], model, index)
            if turn % 5:
                answer = server.post("/admin/reload", headers=ADMIN)
                assert answer.json() == {"models": {"m": "reloaded"}, "indexes": {"notes": "reloaded"}}, answer.text
            else:
                server.signal(signal.SIGHUP)
                wait_until(lambda turn=turn: len(server.events("reloaded")) >= 2 * turn)
            seen = load.answers[now] + 2  # those that began before may be of the old version
            wait_until(lambda now=now, seen=seen: load.answers[now] > seen or load.problems)
    assert not load.problems, load.problems[:3]
    assert min(load.answers) >= TURNS


def test_an_index_that_does_not_fit_is_kept_with_its_model(tmp_path, versions):
    """A new model without a new index: searches still use the model of the index."""
    model, index, key = tmp_path / "served", tmp_path / "notes.idx", tmp_path / "key"
    shutil.copytree(versions[0].folder, model)
    shutil.copy(versions[0].index, index)
    key.write_text("k")
    with Served(f"m={model}", "--index", index, "--threads", 1, "--admin-key-file", key) as server:
        load = Load(server.url, versions)
        shutil.rmtree(model)
        shutil.copytree(versions[1].folder, model)
        answer = server.post("/admin/reload", headers=ADMIN)
        assert answer.status_code == 409 and "notes: kept the old one" in answer.json()["error"], answer.text
        assert (load.search(server.client, 0, False), load.embed(server.client, 0)) == (0, 1)
        index.write_bytes(index.read_bytes()[:5000])  # overwritten in place: what is in memory may still be searched
        answer = server.post("/search", {"query": TEXTS[1], "k": 3, "mode": "vector"})
        assert answer.status_code in (200, 400, 422, 500) and server.process.poll() is None
        shutil.copy(versions[1].index, index)
        answer = server.post("/admin/reload", headers=ADMIN)
        assert answer.json() == {"models": {"m": "same"}, "indexes": {"notes": "reloaded"}}
        assert load.search(server.client, 0, True) == 1
