/**
 * A search index that the browser keeps in IndexedDB. In: texts, and the vectors of an `Albert`. Out: the nearest texts.
 * One database per index has the records {id, text, vector}, and in `about` the model and a mark of the last change. Vectors
 * of two models are never mixed. After this file: `albertkit.js`.
 */
import { AlbertError, checkCount, checkKeys } from "./errors.js";
import { dot } from "./numbers.js";

const CHUNK = 32; // texts stored together, so that a closed page keeps what was done

export class SearchIndex {
  #albert;
  #database;
  #options;
  #records = new Map();
  #state = null; // of the database when `#records` was read; it changes with each change, also by another tab

  static async open(albert, name, options = {}) {
    checkKeys(options, ["depth", "dim"]);
    const { depth = albert.about.depth, dim = albert.about.dim } = options;
    const index = new SearchIndex();
    const about = { model: albert.about.id, depth, dim };
    index.#albert = albert;
    index.#options = { depth, dim, normalize: true };
    await albert.embed([], index.#options); // which checks them
    index.#database = await openDatabase(name);
    const stored = await index.#run("readonly", (_, settings) => settings.get("about"));
    if (stored && JSON.stringify(stored) !== JSON.stringify(about)) {
      index.close();
      throw new AlbertError(
        `the index ${JSON.stringify(name)} was made with another model, depth or dim; vectors of two models cannot be ` +
          "compared. Choose another name, or delete it with SearchIndex.delete.",
      );
    }
    if (!stored) await index.#run("readwrite", (_, settings) => settings.put(about, "about"));
    await index.#refresh();
    return index;
  }

  /** Delete an index and its texts. Where it is open, it is closed. */
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
    const records = [texts].flat().map((item) => (typeof item === "string" ? { id: item, text: item } : item));
    records.forEach(checkRecord);
    await this.#refresh();
    const latest = [...new Map(records.map((record) => [record.id, record])).values()];
    const changed = latest.filter(({ id, text }) => this.#records.get(id)?.text !== text);
    changed.sort((a, b) => b.text.length - a.text.length); // batches of similar length
    for (let start = 0; start < changed.length; start += CHUNK) {
      const some = changed.slice(start, start + CHUNK);
      const vectors = await this.#albert.embed(some.map(({ text }) => text), this.#options);
      const made = some.map(({ id, text }, at) => ({ id, text, vector: vectors[at].slice() }));
      await this.#change((store) => made.forEach((record) => store.put(record)));
      for (const record of made) this.#records.set(record.id, record);
      onProgress({ done: start + some.length, total: changed.length });
    }
    return changed.length;
  }

  /** The texts nearest to a query, the best first: [{id, text, score}]. */
  async search(query, { k = 10, ...others } = {}) {
    checkKeys(others, ["k"]);
    checkCount("k", k);
    await this.#refresh();
    const [vector] = await this.#albert.embed([query], this.#options);
    const found = Array.from(this.#records.values(), ({ id, text, vector: other }) => ({ id, text, score: dot(vector, other) }));
    return found.sort((a, b) => b.score - a.score).slice(0, k);
  }

  /** Remove the text of an id, or of several. */
  async remove(ids) {
    const gone = [ids].flat();
    gone.forEach(checkId);
    await this.#change((store) => gone.forEach((id) => store.delete(id)));
    for (const id of gone) this.#records.delete(id);
  }

  async clear() {
    await this.#change((store) => store.clear());
    this.#records.clear();
  }

  close() {
    this.#database.close();
  }

  /** Read the texts again if another tab, or another `SearchIndex` of this name, has changed them. */
  async #refresh() {
    const state = await this.#run("readonly", (_, settings) => settings.get("state"));
    if (state === this.#state) return;
    const records = await this.#run("readonly", (store) => store.getAll());
    this.#records = new Map(records.map((record) => [record.id, record]));
    this.#state = state;
  }

  async #change(work) {
    await this.#refresh();
    const state = Math.random();
    const before = await this.#run("readwrite", (store, settings) => {
      const read = settings.get("state");
      settings.put(state, "state");
      work(store);
      return read;
    });
    this.#state = before === this.#state ? state : null;
  }

  async #run(mode, work) {
    let transaction;
    try {
      transaction = this.#database.transaction(["records", "about"], mode);
    } catch {
      throw new AlbertError("this index is closed, or was deleted. Open it again with albert.openIndex.");
    }
    return new Promise((resolve, reject) => {
      const asked = work(transaction.objectStore("records"), transaction.objectStore("about"));
      transaction.oncomplete = () => resolve(asked.result);
      transaction.onabort = () => reject(storageError(transaction.error));
    });
  }
}

function checkRecord(item, at) {
  const { id, text } = item ?? {};
  if (typeof text !== "string")
    throw new AlbertError(`item ${at} has no text; every item must be a text or {id, text}. Remove or replace it.`);
  checkId(id);
}

function checkId(id) {
  if (typeof id !== "string" && !Number.isFinite(id))
    throw new AlbertError(`the id ${JSON.stringify(id)} is not valid; an id must be a text or a number. Replace it.`);
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
  const database = await request(opening);
  database.onversionchange = () => database.close(); // it is being deleted
  return database;
}

function request(made) {
  return new Promise((resolve, reject) => {
    made.onsuccess = () => resolve(made.result);
    made.onerror = () => reject(storageError(made.error));
  });
}

function storageError(error) {
  return new AlbertError(
    `the browser cannot store the index (${error?.name ?? "unknown"}). Free some space, or leave the private window.`,
  );
}
