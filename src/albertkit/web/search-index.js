/**
 * A search index that the browser keeps in IndexedDB. In: texts, and the vectors of an `Albert`. Out: the nearest texts.
 * One database per index has the records {id, text, vector} and one entry about the model. Vectors of two models are never
 * mixed. After this file: `albertkit.js`.
 */
import { AlbertError } from "./errors.js";
import { dot } from "./numbers.js";

const CHUNK = 32; // texts stored together, so that a closed page keeps what was done

export class SearchIndex {
  #albert;
  #database;
  #options;
  #records;

  static async open(albert, name, { depth, dim } = {}) {
    const index = new SearchIndex();
    const about = { model: albert.about.id, depth: depth ?? albert.about.depth, dim: dim ?? albert.about.dim };
    index.#albert = albert;
    index.#options = { depth, dim, normalize: true };
    index.#database = await openDatabase(name);
    const stored = await index.#run("about", "readonly", (store) => store.get("about"));
    if (stored && JSON.stringify(stored) !== JSON.stringify(about)) {
      index.close();
      throw new AlbertError(
        `the index ${JSON.stringify(name)} was made with another model, depth or dim; vectors of two models cannot be ` +
          "compared. Choose another name, or delete it with SearchIndex.delete.",
      );
    }
    if (!stored) await index.#run("about", "readwrite", (store) => store.put(about, "about"));
    const records = await index.#run("records", "readonly", (store) => store.getAll());
    index.#records = new Map(records.map((record) => [record.id, record]));
    return index;
  }

  /** Delete an index and its texts. */
  static async delete(name) {
    await request(indexedDB.deleteDatabase(databaseName(name)));
  }

  get size() {
    return this.#records.size;
  }

  /**
   * Add texts, or {id, text}. A text without an id is its own id. An id that exists gets the new text, the last one if
   * there are several; unchanged texts cost nothing. Returns the number of texts that were computed.
   */
  async add(texts, { onProgress = () => {} } = {}) {
    const records = texts.map((item) => (typeof item === "string" ? { id: item, text: item } : item));
    records.forEach(checkRecord);
    const latest = [...new Map(records.map((record) => [record.id, record])).values()];
    const changed = latest.filter(({ id, text }) => this.#records.get(id)?.text !== text);
    changed.sort((a, b) => b.text.length - a.text.length); // batches of similar length
    for (let start = 0; start < changed.length; start += CHUNK) {
      const some = changed.slice(start, start + CHUNK);
      const vectors = await this.#albert.embed(some.map(({ text }) => text), this.#options);
      const made = some.map(({ id, text }, at) => ({ id, text, vector: vectors[at].slice() }));
      await this.#run("records", "readwrite", (store) => made.map((record) => store.put(record)).at(-1));
      for (const record of made) this.#records.set(record.id, record);
      onProgress({ done: start + some.length, total: changed.length });
    }
    return changed.length;
  }

  /** The texts nearest to a query, the best first: [{id, text, score}]. */
  async search(query, { k = 10 } = {}) {
    const [vector] = await this.#albert.embed([query], this.#options);
    const found = Array.from(this.#records.values(), ({ id, text, vector: other }) => ({ id, text, score: dot(vector, other) }));
    return found.sort((a, b) => b.score - a.score).slice(0, k);
  }

  async remove(ids) {
    await this.#run("records", "readwrite", (store) => ids.map((id) => store.delete(id)).at(-1));
    for (const id of ids) this.#records.delete(id);
  }

  async clear() {
    await this.#run("records", "readwrite", (store) => store.clear());
    this.#records.clear();
  }

  close() {
    this.#database.close();
  }

  async #run(storeName, mode, work) {
    const transaction = this.#database.transaction(storeName, mode);
    const done = new Promise((resolve, reject) => {
      transaction.oncomplete = resolve;
      transaction.onabort = () => reject(storageError(transaction.error));
    });
    const last = work(transaction.objectStore(storeName));
    await done;
    return last?.result;
  }
}

function checkRecord({ id, text } = {}, at) {
  if (typeof text !== "string")
    throw new AlbertError(`item ${at} has no text; every item must be a text or {id, text}. Remove or replace it.`);
  if (typeof id !== "string" && typeof id !== "number")
    throw new AlbertError(`item ${at} has the id ${JSON.stringify(id)}; an id must be a text or a number. Replace it.`);
}

function databaseName(name) {
  return `albertkit:${name}`;
}

async function openDatabase(name) {
  if (!globalThis.indexedDB)
    throw new AlbertError("this browser has no IndexedDB, so an index cannot be kept. Use albert.search with an array of texts.");
  const opening = indexedDB.open(databaseName(name), 1);
  opening.onupgradeneeded = () => {
    opening.result.createObjectStore("records", { keyPath: "id" });
    opening.result.createObjectStore("about");
  };
  return request(opening);
}

function request(made) {
  return new Promise((resolve, reject) => {
    made.onsuccess = () => resolve(made.result);
    made.onerror = () => reject(storageError(made.error));
    made.onblocked = () => reject(new AlbertError("the index is open in another tab. Close that tab, then try again."));
  });
}

function storageError(error) {
  return new AlbertError(
    `the browser cannot store the index (${error?.name ?? "unknown"}). Free some space, or leave the private window.`,
  );
}
