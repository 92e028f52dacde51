/**
 * The worker of `albertkit.js`: it downloads a model, opens it and answers calls, one after the other.
 * In: messages {id, method, args}. Out: {id, result, warnings}, {id, progress} or {id, error, warnings}. Before this file: `model.js`.
 */
import * as ort from "./onnxruntime/ort.wasm.min.mjs";
import { AlbertError } from "./errors.js";
import { Model } from "./model.js";

const MAX_THREADS = 4;
const RUNTIME = { // written so that bundlers copy these files
  mjs: new URL("./onnxruntime/ort-wasm-simd-threaded.mjs", import.meta.url).href,
  wasm: new URL("./onnxruntime/ort-wasm-simd-threaded.wasm", import.meta.url).href,
};

let model;
let queue = Promise.resolve();

self.onmessage = ({ data }) => {
  queue = queue.then(() => answer(data));
};

async function answer({ id, method, args }) {
  const onProgress = (progress) => self.postMessage({ id, progress });
  try {
    const result = await (method === "load" ? load(...args, onProgress) : model[method](...args, onProgress));
    const transferred = result?.vectors ? [result.vectors.buffer] : [];
    self.postMessage({ id, result, warnings: takeWarnings() }, transferred);
  } catch (thrown) {
    const { name, message } = thrown instanceof Error ? thrown : new Error(String(thrown)); // WebAssembly throws numbers
    self.postMessage({ id, error: { name, message }, warnings: takeWarnings() });
  }
}

/** The warnings of a call, also of one that failed. */
function takeWarnings() {
  const warnings = [...(model?.warnings ?? [])];
  model?.warnings.clear();
  return warnings;
}

async function load(folder, { threads, headers }, onProgress) {
  const cores = navigator.hardwareConcurrency || 1;
  const free = Math.max(1, Math.min(MAX_THREADS, cores - 1)); // with a core left for the page: threads wait for the slowest
  ort.env.wasm.numThreads = self.crossOriginIsolated === true ? (threads ?? free) : 1;
  ort.env.wasm.wasmPaths = RUNTIME;
  // onnxruntime starts with its first session: this one fails, but its start overlaps with the downloads.
  ort.InferenceSession.create(new Uint8Array(1), { logSeverityLevel: 4 }).catch(() => {});
  try {
    model = await open(folder, { headers }, onProgress);
  } catch (error) {
    if (!(error instanceof WrongFile)) throw error;
    // A cache may still have files of an earlier export.
    model = await open(folder, { headers, cache: "reload" }, onProgress);
  }
  return { ...model.about, threads: ort.env.wasm.numThreads };
}

async function open(folder, request, onProgress) {
  const controller = new AbortController();
  const received = new Map();
  let total = 0;
  const read = (name, expected) => {
    total += expected?.bytes ?? 0;
    // The host says whether its model.json is newer than the one in the browser's cache.
    const settings = { cache: expected ? "default" : "no-cache", signal: controller.signal, ...request };
    return download(new URL(name, folder), settings, expected, (bytes) => {
      received.set(name, bytes);
      const loaded = [...received.values()].reduce((sum, count) => sum + count, 0);
      onProgress({ loaded, total: Math.max(total, loaded) });
    });
  };
  try {
    return await Model.open(ort, read);
  } catch (error) {
    controller.abort();
    throw error;
  }
}

/** A file that is not the one that model.json names. */
class WrongFile extends AlbertError {}

/** A file of the model, with the size and the hash that `model.json` names. */
async function download(url, settings, expected, onBytes) {
  const name = url.pathname.split("/").at(-1);
  let response;
  try {
    response = await fetch(url, settings);
  } catch {
    throw new AlbertError(`${url} cannot be reached. Check the connection, then load the model again.`);
  }
  if (!response.ok)
    throw new (expected ? WrongFile : AlbertError)(
      `${url} gave HTTP ${response.status}. Pass the folder "model" that albertkit export --web wrote, with all its files.`,
    );
  const bytes = await readBody(response, name, onBytes);
  if (!expected) return bytes;
  const problem =
    bytes.length !== expected.bytes
      ? `has ${bytes.length.toLocaleString("en")} bytes; model.json says ${expected.bytes.toLocaleString("en")}`
      : (await hashDiffers(bytes, expected.sha256)) && "does not have the hash that model.json names";
  if (problem)
    throw new WrongFile(
      `${name} ${problem}. The download was cut, or the file is from another export: load again, or copy the folder again.`,
    );
  return bytes;
}

async function readBody(response, name, onBytes) {
  const parts = [];
  let size = 0;
  try {
    for (const reader = response.body.getReader(); ; ) {
      const { done, value } = await reader.read();
      if (done) break;
      parts.push(value);
      onBytes((size += value.length));
    }
  } catch {
    throw new AlbertError(`the download of ${name} was cut after ${size.toLocaleString("en")} bytes. Load the model again.`);
  }
  const bytes = new Uint8Array(size);
  let at = 0;
  for (const part of parts) bytes.set(part, (at += part.length) - part.length);
  return bytes;
}

/** Whether bytes have another SHA-256; false on pages without https, where browsers do not compute it. */
async function hashDiffers(bytes, expected) {
  if (!self.crypto?.subtle) return false;
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(hash, (byte) => byte.toString(16).padStart(2, "0")).join("") !== expected;
}
