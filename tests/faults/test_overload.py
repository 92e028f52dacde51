"""Twice the requests that the machine can compute: every answer is right to the bit, every refusal is documented."""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
import time
from timeit import timeit

import httpx2
import numpy as np
import pytest

from albertkit.albert import Albert
from tests.serve.conftest import Served
from tests.waiting import LIMIT, pause

TEXTS = [f"text number {i} of many, {'with more words ' * (i % 7)}" for i in range(64)]
TEXTS_EACH, CLIENTS, ANSWERS = 16, 16, 100  # half of the clients fit into the deadline


def bodies(number: int) -> tuple[str, dict, slice]:
    """The request with a number: its path, its body, and its texts."""
    start = number * 7 % (len(TEXTS) - TEXTS_EACH)
    asked = slice(start, start + TEXTS_EACH)
    if number % 2:
        return "/embed", {"inputs": TEXTS[asked]}, asked
    return "/v1/embeddings", {"input": TEXTS[asked], "model": "small", "encoding_format": "base64"}, asked


def vectors(path: str, answer: httpx2.Response) -> np.ndarray:
    if path == "/embed":
        return np.array(answer.json(), np.float32)
    rows = [base64.b64decode(row["embedding"]) for row in answer.json()["data"]]
    return np.stack([np.frombuffer(row, "<f4") for row in rows])


@pytest.mark.slow
def test_twice_the_load_gives_right_answers_and_documented_refusals():
    albert = Albert("small", threads=1)
    right = albert.embed(TEXTS)
    seconds = timeit(lambda: albert.embed(TEXTS[:TEXTS_EACH]), number=3) / 3
    deadline = CLIENTS / 2 * seconds + 0.1
    statuses: dict[int, int] = {}
    waited: list[float] = []
    with Served("--threads", 1, "--deadline", round(deadline, 3), "--no-access-log") as server:
        numbers = itertools.count()
        end = time.monotonic() + LIMIT  # only guards against hanging

        async def client() -> None:
            async with httpx2.AsyncClient(base_url=server.url, timeout=LIMIT) as http:
                while statuses.get(200, 0) < ANSWERS and time.monotonic() < end:
                    number = next(numbers)
                    path, body, asked = bodies(number)
                    answer = await http.post(path, json=body)
                    statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
                    if answer.status_code == 200:
                        assert np.array_equal(vectors(path, answer), right[asked]), number
                    else:
                        assert int(answer.headers["retry-after"]) >= 1
                        waited.extend(map(float, re.findall(r"about (\S+) s of work are waiting", answer.text)))
                        await pause(seconds / 4)

        async def all_of_them() -> None:
            await asyncio.gather(*[client() for _ in range(CLIENTS)])

        asyncio.run(all_of_them())
        assert statuses[200] >= ANSWERS and set(statuses) <= {200, 429, 503} and len(statuses) > 1, statuses
        assert max(waited, default=0) < 8 * deadline  # the queue is bounded, even if waits are longer than foreseen
        assert server.get("/health").status_code == 200
