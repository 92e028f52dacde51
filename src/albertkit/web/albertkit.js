/**
 * ALBERT in the browser: vectors, search and predictions without a server.
 *
 *     import { Albert } from "./albertkit.js";
 *     const albert = await Albert.load("./model");
 *     const vectors = await albert.embed(["a cat", "a dog"], { depth: 6, dim: 128 });
 *
 * In: a folder that `albertkit export MODEL --web OUT` wrote. Everything is computed in a Web Worker (`worker.js`), so the
 * page stays responsive; no text leaves the page. The types are in `albertkit.d.ts`.
 */
import { AlbertError, checkCount, checkKeys } from "./errors.js";
import { dot } from "./numbers.js";
import { SearchIndex } from "./search-index.js";

export { AlbertError, SearchIndex };

export class Albert {
  #worker;
  #calls = new Map();
  #count = 0;
  #onWarning;

  /** Download and open a model. Default: the folder `model` beside this file. */
  static async load(folder, options = {}) {
    const { onProgress, onWarning, threads, headers, ...others } = options;
    checkKeys(others, ["onProgress", "onWarning", "threads", "headers"]);
    if (threads !== undefined) checkCount("threads", threads);
    const url = folderAddress(folder);
    const albert = new Albert();
    albert.#onWarning = onWarning ?? ((message) => console.warn(message));
    albert.#worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
    albert.#worker.onmessage = ({ data }) => albert.#receive(data);
    albert.#worker.onerror = (event) => {
      event.preventDefault();
      const why = event.message ? ` (${event.message})` : "";
      albert.#stop(`worker.js does not run${why}. Copy the whole folder that albertkit export --web wrote.`);
    };
    try {
      const about = await albert.#call("load", [url.href, { threads, headers }], onProgress);
      albert.about = Object.freeze(about);
    } catch (error) {
      albert.close();
      throw error;
    }
    return albert;
  }

  /** The vector of each text: one Float32Array per text. */
  async embed(texts, { onProgress, ...options } = {}) {
    const { vectors, dim } = await this.#call("embed", [texts, options], onProgress);
    return Array.from({ length: vectors.length / dim }, (_, at) => vectors.subarray(at * dim, (at + 1) * dim));
  }

  /** The cosine of each text with each of the others, or of all texts with each other. */
  async similarity(texts, others, options = {}) {
    const rows = await this.embed(texts, { ...options, normalize: true });
    const columns = others === undefined ? rows : await this.embed(others, { ...options, normalize: true });
    return rows.map((row) => columns.map((column) => dot(row, column)));
  }

  /** The texts nearest to a query, the best first. For many texts, or to keep them, use `openIndex`. */
  async search(query, texts, { k = 10, ...options } = {}) {
    checkCount("k", k);
    texts = [texts].flat();
    const [scores] = await this.similarity([query], texts, options);
    const found = scores.map((score, place) => ({ place, text: texts[place], score }));
    return found.sort((a, b) => b.score - a.score).slice(0, k);
  }

  /** The class of each text, for a model of `albertkit finetune classify`. */
  async classify(texts, options = {}) {
    return this.#call("classify", [texts, options]);
  }

  /** The entities of each text, for a model of `albertkit finetune tag`. */
  async tag(texts, options = {}) {
    return this.#call("tag", [texts, options]);
  }

  /** The likeliest words for each [MASK] of a text, for a model with a masked-language-model head. */
  async fill(text, options = {}) {
    return this.#call("fill", [text, options]);
  }

  /** The tokens of each text, with the special ones. */
  async tokenize(texts) {
    return this.#call("tokenize", [texts]);
  }

  /** The prediction and the vector of one text at every trained depth, where it could exit early, and attention. */
  async explain(text, options = {}) {
    return this.#call("explain", [text, options]);
  }

  /** An index of texts that the browser keeps (IndexedDB); it is made if there is none of this name. */
  async openIndex(name = "texts", options = {}) {
    return SearchIndex.open(this, name, options);
  }

  /** End the worker and free its memory. */
  close() {
    this.#stop("this model is closed. Load it again.");
  }

  #call(method, args, onProgress) {
    return new Promise((resolve, reject) => {
      if (!this.#worker) return reject(new AlbertError("this model is closed. Load it again."));
      const id = this.#count++;
      this.#calls.set(id, { resolve, reject, onProgress });
      try {
        this.#worker.postMessage({ id, method, args });
      } catch (error) {
        this.#calls.delete(id);
        reject(new AlbertError(`the arguments of ${method} cannot be copied (${error.message}). Pass texts and options.`));
      }
    });
  }

  #receive({ id, result, progress, warnings, error }) {
    const call = this.#calls.get(id);
    if (!call) return;
    if (progress) return call.onProgress?.(progress);
    this.#calls.delete(id);
    for (const warning of warnings ?? []) this.#onWarning(warning);
    if (!error) return call.resolve(result);
    call.reject(error.name === "AlbertError" ? new AlbertError(error.message) : Object.assign(new Error(error.message), error));
  }

  #stop(message) {
    this.#worker?.terminate();
    this.#worker = undefined;
    for (const { reject } of this.#calls.values()) reject(new AlbertError(message));
    this.#calls.clear();
  }
}

/** The address of a folder that is relative to the page; by default that of `model`, which is beside this file. */
function folderAddress(folder) {
  const path = folder === undefined ? "model" : String(folder);
  const base = folder === undefined ? undefined : globalThis.document?.baseURI; // a worker has no document
  try {
    return new URL(path.replace(/\/?$/, "/"), base ?? import.meta.url);
  } catch {
    throw new AlbertError(`the folder ${JSON.stringify(path)} is not an address. Pass one such as "./model".`);
  }
}
