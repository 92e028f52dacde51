// Runs JavaScript with a model in Node: node page.mjs FOLDER REQUEST RESULT, two JSON files.
// FOLDER has web/, page/ and model/. The request has the code and its arguments `a`; the result is what the code returns.
// Stand-ins for a browser: the worker runs in this thread, fetch reads files, IndexedDB and the document are in memory.
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath, pathToFileURL } from "node:url";

const [folder, request, result] = process.argv.slice(2);
const home = pathToFileURL(`${folder}/`);
const at = (place) => new URL(place, home).href;

globalThis.self = globalThis;
globalThis.navigator ??= {};
globalThis.fetch = async (place) => {
  try {
    return new Response(readFileSync(fileURLToPath(new URL(place, document.baseURI))));
  } catch {
    return new Response(null, { status: 404 });
  }
};

globalThis.Worker = class {
  constructor(url) {
    this.script = import(url.href);
    self.postMessage = (data) => this.onmessage({ data: structuredClone(data) });
  }
  postMessage(data) {
    const copy = structuredClone(data);
    this.script.then(() => self.onmessage({ data: copy }));
  }
  terminate() {}
};

globalThis.indexedDB = {
  open() {
    const stores = {};
    const createObjectStore = (name, options) => (stores[name] = { key: options?.keyPath, records: new Map() });
    const objectStore = (name) => {
      const { key, records } = stores[name];
      return {
        get: (id) => ({ result: records.get(id) }),
        getAll: () => ({ result: [...records.values()] }),
        put: (value, id) => ({ result: records.set(key ? value[key] : id, value) }),
      };
    };
    const transaction = () => {
      const made = { objectStore };
      setTimeout(() => made.oncomplete());
      return made;
    };
    const opening = { result: { createObjectStore, transaction, close() {} } };
    setTimeout(() => {
      opening.onupgradeneeded();
      opening.onsuccess();
    });
    return opening;
  },
};

class Element {
  dataset = {};
  children = [];
  textContent = "";
  append(...nodes) {
    this.children.push(...nodes);
  }
  replaceChildren(...nodes) {
    this.children = nodes;
    const chosen = nodes.find((node) => node.selected);
    if (chosen) this.value = chosen.value;
  }
  get text() {
    return this.textContent + this.children.map((node) => node.text).join("");
  }
}
const elements = {};
globalThis.Option = class extends Element {
  constructor(text, value, _, selected) {
    super();
    Object.assign(this, { value: String(value), selected });
  }
};
globalThis.document = {
  baseURI: home.href,
  documentElement: new Element(),
  getElementById: (id) => (elements[id] ??= new Element()),
  createElement: () => new Element(),
  querySelector: () => new Element(),
  querySelectorAll: () => [],
};

const { code, args } = JSON.parse(readFileSync(request, "utf8"));
const warnings = [];
const load = async () => {
  const { Albert } = await import(at("web/albertkit.js"));
  return Albert.load(at("model"), { onWarning: (message) => warnings.push(message) });
};
const failure = (promise) => promise.then(() => "nothing was thrown", (error) => `${error.name}: ${error.message}`);
const AsyncFunction = (async () => {}).constructor;
const run = new AsyncFunction("a", "load", "at", "warnings", "failure", code);
writeFileSync(result, JSON.stringify((await run(args, load, at, warnings, failure)) ?? null));
