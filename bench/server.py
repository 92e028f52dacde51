"""The server under load, compared with its engine alone and with other servers of the same weights.

    python bench/server.py                  # measure (about half an hour on two cores) and record the result
    python bench/server.py --quick          # a short test run; nothing is recorded

Every response is compared with the engine's vector of that text. The peers are sentence-transformers behind FastAPI
(torch, float32, one `encode` per request on a thread, as in its documentation) and infinity-emb, if INFINITY is the
path of a Python that has it. The clients are asyncio tasks in a second process that write plain HTTP, so that they use
little of the shared processors.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / "src"), str(Path(__file__).parent)]

RESULT = Path(__file__).parent / "results" / "server.json"
FASTAPI = """
import os, sys
import torch
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer
import uvicorn

torch.set_num_threads(int(sys.argv[3]))
model = SentenceTransformer(sys.argv[1], device="cpu")
app = FastAPI()

class Ask(BaseModel):
    inputs: list[str]

@app.post("/embed")
def embed(ask: Ask) -> list[list[float]]:
    return model.encode(ask.inputs, normalize_embeddings=True).tolist()

uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""


# The client, in a process of its own -----------------------------------------------------------------------------


class Client:
    """Asks a server for vectors and compares them. `plan`: see `load`."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.texts = json.loads(Path(plan["texts"]).read_text(encoding="utf-8"))
        self.expected = np.load(plan["expected"])
        self.seen: list[tuple[float, float]] = []
        self.tally = {"answered": 0, "texts": 0, "refused": 0, "lost": 0, "wrong": 0}
        self.least = 1.0
        self.numbers = count()

    def request(self, places: list[int]) -> bytes:
        """A request for some texts as bytes."""
        texts = [self.texts[i] for i in places]
        if self.plan["path"] == "/v1/embeddings":
            payload: dict[str, Any] = {"model": self.plan["model"], "input": texts, "encoding_format": "base64"}
        else:
            payload = {"inputs": texts}
        body = json.dumps(payload).encode()
        head = f"POST {self.plan['path']} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request and its answer."""
        first = next(self.numbers) * self.plan["size"]
        places = [i % len(self.texts) for i in range(first, first + self.plan["size"])]
        began = time.perf_counter()
        writer.write(self.request(places))
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(re.search(rb"content-length: (\d+)", head).group(1))  # type: ignore[union-attr]
        body = await reader.readexactly(length)
        took = time.perf_counter() - began
        if not head.startswith(b"http/1.1 200"):
            self.tally["refused"] += 1
            self.seen.append((took, 0.0))
            return
        self.seen.append((took, 1.0))
        self.tally["answered"] += 1
        self.tally["texts"] += len(places)
        self.compare(body, places)

    def compare(self, body: bytes, places: list[int]) -> None:
        """Count an answer that is not the engine's."""
        data = json.loads(body)
        if self.plan["path"] == "/v1/embeddings":
            packed = b"".join(base64.b64decode(item["embedding"]) for item in data["data"])
            vectors = np.frombuffer(packed, "<f4").reshape(len(places), -1)
        else:
            vectors = np.array(data, np.float32)
        cosines = (vectors * self.expected[places]).sum(1)
        self.least = min(self.least, float(cosines.min()))
        self.tally["wrong"] += int((cosines < self.plan["cosine"]).sum())

    async def worker(self, until: float) -> None:
        """One connection, one request after the other."""
        while time.perf_counter() < until and sum(v for k, v in self.tally.items() if k != "texts") < self.plan["most"]:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.plan["port"], limit=2**24)
                while time.perf_counter() < until and self.tally["answered"] < self.plan["most"]:
                    await self.ask(reader, writer)
                writer.close()
            except (OSError, asyncio.IncompleteReadError):
                self.tally["lost"] += 1
                await asyncio.sleep(0.01)

    async def arrivals(self, until: float) -> None:
        """Requests at a rate, whether the others have been answered or not; connections are used again."""
        idle: list[Any] = []

        async def one() -> None:
            try:
                pair = (
                    idle.pop() if idle else await asyncio.open_connection("127.0.0.1", self.plan["port"], limit=2**24)
                )
                await self.ask(*pair)
                idle.append(pair)
            except (OSError, asyncio.IncompleteReadError):
                self.tally["lost"] += 1

        tasks, due = set(), time.perf_counter()
        while due < until:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = asyncio.ensure_future(one())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            due += 1 / self.plan["rate"]
        await asyncio.gather(*tasks)

    async def run(self) -> dict[str, Any]:
        """All of it."""
        began = time.perf_counter()
        until = began + self.plan["seconds"]
        if self.plan["rate"]:
            await self.arrivals(until)
        else:
            await asyncio.gather(*[self.worker(until) for _ in range(self.plan["clients"])])
        seconds = time.perf_counter() - began
        answered = np.array([took for took, right in self.seen if right] or [0.0])
        refused = np.array([took for took, right in self.seen if not right] or [0.0])
        used = os.times()
        return {
            **self.tally,
            "seconds": seconds,
            "texts_per_second": self.tally["texts"] / seconds,
            "requests_per_second": self.tally["answered"] / seconds,
            "milliseconds": {str(q): float(np.percentile(answered, q) * 1000) for q in (50, 90, 99, 100)},
            "refused_milliseconds_99": float(np.percentile(refused, 99) * 1000),
            "least_cosine": self.least,
            "client_cpu": used.user + used.system,
        }


def load(port: int, **plan: Any) -> dict[str, Any]:
    """Run the client in a second process. size: texts a request; clients: at once, or rate: requests a second; seconds;
    most.
    """
    defaults = {"path": "/v1/embeddings", "model": "m", "rate": 0, "clients": 1, "most": 10**9, "cosine": 0.999}
    plan_of_client = {"port": port, **defaults, **plan}
    command = [sys.executable, __file__, "--client", json.dumps(plan_of_client)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    result: dict[str, Any] = json.loads(done.stdout)
    return result


# The servers -----------------------------------------------------------------------------------------------------


@contextmanager
def started(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A server that answers on a port."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        limit = time.monotonic() + 180
        while process.poll() is None and time.monotonic() < limit:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.2)
        else:
            raise RuntimeError(f"{command[:3]} did not start")
        time.sleep(1)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def free_port() -> int:
    """A port nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ours(folder: Path, port: int, threads: int, *more: str) -> list[str]:
    """The command of our server."""
    base = [sys.executable, "-m", "albertkit.cli.entry_point", "serve", f"m={folder}", "--port", str(port)]
    return [*base, "--threads", str(threads), "--no-access-log", *more]


def memory(pid: int) -> int:
    """Resident bytes."""
    match = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(match.group(1)) * 1024 if match else 0


def memory_of_workers(pid: int) -> list[int]:
    """Bytes of each child of a process that no other process shares."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    texts = [Path(f"/proc/{child}/smaps_rollup").read_text() for child in children]
    return [1024 * sum(map(int, re.findall(r"Private_\w+:\s+(\d+)", text))) for text in texts]


def cpu(pid: int) -> float:
    """Seconds of processor used so far."""
    parts = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


# What is measured ------------------------------------------------------------------------------------------------


class Bench:
    """One run: a model, texts, the engine's vectors of them, and how long to measure."""

    def __init__(self, folder: Path, work: Path, threads: int, seconds: float) -> None:
        from inference import mixed_texts

        from albertkit.albert import Albert

        self.folder, self.work, self.threads, self.seconds = folder, work, threads, seconds
        self.albert = Albert(folder, threads=threads)
        texts = mixed_texts(2048)
        sizes = [len(ids) + 2 for ids in self.albert.tokenizer.ids_batch(texts)]
        fit = [text for text, size in zip(texts, sizes, strict=True) if size <= self.albert.max_tokens]
        self.texts = fit[:1024]  # peers cut longer ones, so that their vectors would differ
        self.vectors = self.albert.embed(self.texts)
        np.save(work / "expected.npy", self.vectors)
        (work / "texts.json").write_text(json.dumps(self.texts), encoding="utf-8")
        self.files = {"texts": str(work / "texts.json"), "expected": str(work / "expected.npy")}

    def bare(self, size: int) -> float:
        """Texts a second of the engine alone, given `size` texts at a time."""
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < self.seconds:
            at = done % len(self.texts)
            self.albert.embed(self.texts[at : at + size])
            done += size
        return done / (time.perf_counter() - began)

    def throughput(self) -> list[dict[str, Any]]:
        """Server beside engine: requests of one and of many texts. `at once` is what the server has at hand together."""
        runs = []
        for size, clients in ((1, 64), (8, 16), (32, 8), (128, 4)):
            port = free_port()
            with started(ours(self.folder, port, self.threads), port) as process:
                load(port, size=size, clients=clients, seconds=min(3.0, self.seconds), **self.files)
                before = cpu(process.pid)
                run = load(port, size=size, clients=clients, seconds=self.seconds, **self.files)
                run["server_cpu"] = cpu(process.pid) - before
            bare = self.bare(size * clients)
            speeds = {"bare": bare, "ratio": run["texts_per_second"] / bare}
            runs.append({"size": size, "clients": clients, **speeds, **run})
        return runs

    def overload(self) -> dict[str, Any]:
        """Twice what can be computed, for a while; then normal again."""
        port, deadline = free_port(), 2.0
        with started(ours(self.folder, port, self.threads, "--deadline", str(deadline)), port) as process:
            normal = load(port, size=8, clients=16, seconds=self.seconds, **self.files)
            rate = 2 * normal["requests_per_second"]
            run = load(port, size=8, rate=rate, seconds=3 * self.seconds, **self.files)
            after = load(port, size=8, clients=16, seconds=self.seconds, **self.files)
            return {
                "deadline": deadline,
                "rate": rate,
                "usual": normal,
                "overload": run,
                "after": after,
                "rss": memory(process.pid),
            }

    def steady(self, requests: int) -> dict[str, Any]:
        """Resident memory over many requests, and the memory of each of four workers."""
        port, sizes = free_port(), []
        with started(ours(self.folder, port, self.threads), port) as process:
            part = max(1, requests // 10)
            for _ in range(10):
                run = load(port, size=1, clients=32, seconds=1e6, most=part, **self.files)
                counts = {name: run[name] for name in ("answered", "lost", "wrong", "refused")}
                sizes.append({"rss": memory(process.pid), **counts})
        from inference import machine

        with started(ours(self.folder, port, 1, "--workers", "4"), port) as process:
            load(port, size=8, clients=16, seconds=1e6, most=400, **self.files)
            workers = memory_of_workers(process.pid)
        return {"machine": machine(self.threads), "requests": requests, "seen": sizes, "workers": workers}

    def peers(self, size: int = 8, clients: int = 16) -> dict[str, Any]:
        """The same load on other servers of the same weights."""
        runs: dict[str, Any] = {}
        float_folder, st = self.work / "float", self.work / "st"
        write_peers(self.folder, float_folder, st)
        script = self.work / "peer.py"
        script.write_text(FASTAPI, encoding="utf-8")
        python = os.environ.get("PEER", sys.executable)
        plans = {
            "albertkit, as stored": (lambda port: ours(self.folder, port, self.threads), "/v1/embeddings"),
            "albertkit, float32": (lambda port: ours(float_folder, port, self.threads), "/v1/embeddings"),
            "sentence-transformers behind FastAPI": (lambda port: [python, str(script), str(st), str(port), str(self.threads)], "/embed"),
        }  # fmt: skip
        if "INFINITY" in os.environ:
            flags = ["v2", "--model-id", str(st), "--served-model-name", "m", "--device", "cpu", "--engine", "torch", "--no-bettertransformer", "--url-prefix", "/v1"]  # fmt: skip
            plans["infinity-emb"] = (
                lambda port: [os.environ["INFINITY"], *flags, "--port", str(port)],
                "/v1/embeddings",
            )
        for name, (command, path) in plans.items():
            for one in ((size, clients), (1, 32)):
                port = free_port()
                try:
                    with started(command(port), port) as process:
                        plan = {"size": one[0], "clients": one[1], "path": path, "cosine": 0.98, **self.files}
                        load(port, seconds=min(3.0, self.seconds), **plan)
                        run = load(port, seconds=self.seconds, **plan)
                        facts = {"size": one[0], "clients": one[1], "rss": memory(process.pid)}
                        runs.setdefault(name, []).append({**facts, **run})
                except RuntimeError as error:
                    runs.setdefault(name, []).append({"failed": str(error)})
        return runs


def write_peers(folder: Path, float_folder: Path, st: Path) -> None:
    """The model with float weights: as an artifact, and for sentence-transformers."""
    from albertkit.artifact import read_artifact, write_artifact
    from albertkit.interop.layouts import export_layout

    write_artifact(read_artifact(folder), float_folder, overwrite=True)
    export_layout(float_folder, st, "sentence-transformers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="an artifact; default the built-in model")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement")
    parser.add_argument("--requests", type=int, default=100_000, help="for resident memory")
    parser.add_argument("--parts", default="throughput,overload,steady,peers")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.client:
        print(json.dumps(asyncio.run(Client(json.loads(args.client)).run())))
        return
    from inference import machine, versions

    from albertkit.builtin import resolve

    results: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8")) if RESULT.exists() else {}
    with tempfile.TemporaryDirectory() as work:
        seconds = 2.0 if args.quick else args.seconds
        bench = Bench(resolve(args.model), Path(work), args.threads, seconds)
        if args.parts != "steady":  # this part has its own machine, since speed does not matter to it
            results |= {"machine": machine(args.threads), "versions": versions()}
            results |= {"threads": args.threads, "seconds": seconds}
        for part in args.parts.split(","):
            settings = {"steady": [1000 if args.quick else args.requests]}.get(part, [])
            results[part] = getattr(bench, part)(*settings)
            print(part, json.dumps(results[part], indent=1))
    if not args.quick:
        RESULT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
