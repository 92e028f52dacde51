/**
 * A model in onnxruntime-web: texts to vectors and predictions. It has no part of the page, so it runs in a worker and in
 * Node. In: the files of `albertkit export --web`. Before this file: `tokenizer.js`. After it: `worker.js`.
 *
 * The limits, windows and batches are those of the Python runtime (`runtime/embed.py`, `runtime/batching.py`).
 */
import { AlbertError, checkCount, checkKeys } from "./errors.js";
import { explain, tokensOf } from "./explain.js";
import { classification, finite, likeliest, meanOf, unitLength, wordOf } from "./numbers.js";
import { WordClasses, entities, labelTokens, splitWords, wordWindows } from "./tagging.js";
import { Tokenizer } from "./tokenizer.js";

const FORMAT = 1;
const MAX_CHARACTERS = 1_000_000; // of one text, unless it is truncated
const OVERLAP = 64; // tokens that neighbouring windows of a long text share, at most half of a window
const TOKEN_BUDGET = 1024; // tokens of a batch, with padding
const WASTE = 48; // padding of a batch
const MAX_UNKNOWN = 0.4; // a text with a larger share of unknown characters is unreadable
const REMEDY = "Copy the whole folder that albertkit export --web wrote.";

export class Model {
  /**
   * @param ort onnxruntime-web
   * @param read (name, {bytes, sha256}) => Promise<Uint8Array>: a file of the folder `model`, checked
   */
  static async open(ort, read) {
    const about = parseAbout(await read("model.json"));
    const model = new Model();
    Object.assign(model, { ort, about, sessions: {}, warnings: new Set() });
    if (about.word_classes) model.wordClasses = new WordClasses(about.word_classes);
    const files = {};
    const readings = Object.entries(about.files).map(async ([name, expected]) => {
      files[name] = await read(name, expected);
      // The vocabulary is ready before the weights are downloaded.
      if (name === "tokenizer.json") model.tokenizer = new Tokenizer(JSON.parse(new TextDecoder().decode(files[name])));
    });
    await Promise.all(readings);
    const externalData = [{ path: "weights.bin", data: files["weights.bin"] }];
    for (const part of about.parts) {
      // The graphs have fused operators; only the transposed word table of `mlm` is computed once, at the start.
      const graphOptimizationLevel = part === "mlm" ? "basic" : "disabled";
      const options = { externalData, graphOptimizationLevel, executionProviders: ["wasm"] };
      try {
        model.sessions[part] = await ort.InferenceSession.create(files[`${part}.onnx`], options);
      } catch (error) {
        throw new AlbertError(`onnxruntime cannot open ${part}.onnx (${error.message}). ${REMEDY}`);
      }
    }
    return model;
  }

  // Vectors -----------------------------------------------------------------------------------------------------------

  /** The vectors of texts, one after the other in one array. */
  async embed(texts, options = {}, onProgress = () => {}) {
    const { depth, dim, normalize, prompt, longTexts } = this.embedOptions(options);
    texts = listTexts(texts);
    const ids = texts.map((text, at) => this.tokenizer.ids(this.shorten(at, prompt + text, longTexts)));
    this.warnUnreadable(texts, ids);
    const windows = ids.map((tokens, at) => this.windows(at, tokens, longTexts));
    const pooled = new Map();
    await this.run(windows.flat(), depth, onProgress, async (hidden, batch) => {
      const vectors = await this.pool(hidden, batch, this.about.pooling);
      batch.rows.forEach((row, at) => pooled.set(row, vectors[at]));
    });
    const out = new Float32Array(texts.length * dim);
    windows.forEach((own, at) => {
      const vector = meanOf(own.map((row) => pooled.get(row)), own.map((row) => row.ids.length), this.about.pooling);
      out.set(finite(normalize ? unitLength(vector.subarray(0, dim)) : vector.subarray(0, dim)), at * dim);
    });
    return { vectors: out, dim };
  }

  embedOptions({ depth, dim, normalize, prompt, longTexts, ...others }) {
    const { about } = this;
    checkKeys(others, ["depth", "dim", "normalize", "prompt", "longTexts"]);
    if (dim !== undefined && !(Number.isInteger(dim) && dim >= 1 && dim <= about.dim))
      throw new AlbertError(`dim=${dim} is not available: this model has 1 to ${about.dim} dimensions.`);
    if (longTexts !== undefined && !["split", "truncate", "error"].includes(longTexts))
      throw new AlbertError(`longTexts is ${JSON.stringify(longTexts)}; choose one of split, truncate, error`);
    return {
      depth: this.checkDepth(depth),
      dim: dim ?? about.dim,
      normalize: normalize ?? about.normalize,
      prompt: this.promptText(prompt),
      longTexts: longTexts ?? "split",
    };
  }

  /** The text of a prompt: the default one, the one of a name, or the text itself. */
  promptText(prompt) {
    const { prompts } = this.about;
    if (typeof (prompt ?? "") !== "string")
      throw new AlbertError(`prompt is ${JSON.stringify(prompt)}; it must be a string. Pass a text, or the name of a prompt.`);
    return Object.hasOwn(prompts, prompt ?? "default") ? prompts[prompt ?? "default"] : (prompt ?? "");
  }

  /** The trained depths and those of the calibration, in order; none for a static model. */
  get depths() {
    const { depths, exit_depths: exits, full_depth: full } = this.about;
    return depths.length ? [...new Set([...depths, ...exits, full])].sort((a, b) => a - b) : [];
  }

  checkDepth(depth) {
    const { about, depths } = this;
    if ((depth ?? about.depth) === about.depth) return about.depth;
    if (!depths.length)
      throw new AlbertError(`depth=${depth} is not available: a static model has no layers. Omit depth.`);
    if (!depths.includes(depth))
      throw new AlbertError(
        `depth=${depth} is not available: this model was trained for depths ${depths.join(", ")}. Pass one of these.`,
      );
    return depth;
  }

  /** A text of at most `MAX_CHARACTERS`. A longer one is truncated generously, or is an error. */
  shorten(at, text, longTexts) {
    if (text.length <= MAX_CHARACTERS) return text;
    if (longTexts === "truncate")
      return text.slice(0, MAX_CHARACTERS).split(/\s+/).join(" ").slice(0, 64 * this.about.max_tokens);
    throw new AlbertError(
      `text ${at} has ${text.length.toLocaleString("en")} characters: the limit is ` +
        `${MAX_CHARACTERS.toLocaleString("en")}. Split it, or pass longTexts: "truncate".`,
    );
  }

  /** The rows of a text: its tokens with special tokens, in several windows if it is long. */
  windows(at, tokens, longTexts) {
    const { clsId, sepId } = this.tokenizer;
    const room = this.about.max_tokens - 2;
    const step = Math.max(1, room - Math.min(OVERLAP, Math.floor(room / 2)));
    if (tokens.length > room && longTexts === "error")
      throw new AlbertError(
        `text ${at} has ${tokens.length} tokens, but the model supports ${room}. Pass longTexts: "split" or "truncate".`,
      );
    const isOne = tokens.length <= room || longTexts === "truncate";
    const count = isOne ? 1 : 1 + Math.ceil((tokens.length - room) / step);
    return Array.from({ length: count }, (_, i) => ({ ids: [clsId, ...tokens.slice(i * step, i * step + room), sepId] }));
  }

  // Tasks ---------------------------------------------------------------------------------------------------------------

  async classify(texts, options = {}) {
    this.checkTask("classify");
    checkKeys(options, ["depth", "pairs"]);
    texts = listTexts(texts);
    const pairs = options.pairs === undefined ? undefined : listTexts(options.pairs);
    if (pairs && pairs.length !== texts.length)
      throw new AlbertError(`there are ${texts.length} texts but ${pairs.length} pairs. Pass one pair for each text.`);
    if (!pairs && this.about.pairs)
      throw new AlbertError("this model was trained on pairs of texts, but pairs is missing. Pass the second texts.");
    const rows = texts.map((text, at) => this.encode(this.checkLength(at, text), pairs?.[at]));
    this.warnUnreadable(pairs ? texts.map((text, at) => `${text}\n${pairs[at]}`) : texts, rows.map((row) => row.ids));
    const scores = new Map();
    await this.run(rows, this.checkDepth(options.depth), undefined, async (hidden, batch) => {
      let vectors = await this.pool(hidden, batch, this.about.head === "vector" ? this.about.pooling : this.about.head);
      if (this.about.head === "vector") vectors = vectors.map(unitLength);
      const found = await this.rowsThrough("classify", vectors);
      batch.rows.forEach((row, at) => scores.set(row, finite(found[at])));
    });
    return rows.map((row) => classification(Array.from(scores.get(row)), this.about.settings));
  }

  encode(text, pair) {
    const limit = this.about.max_task_tokens;
    if (pair === undefined) return { ids: this.tokenizer.encode(text, limit).ids };
    const { ids, types } = this.tokenizer.encodePair(text, pair, limit);
    return { ids, types };
  }

  async tag(texts, options = {}) {
    this.checkTask("tag");
    checkKeys(options, ["depth"]);
    texts = listTexts(texts).map((text, at) => this.checkLength(at, text));
    const words = texts.map((text) => splitWords(text, this.wordClasses));
    const windows = texts.map((text, at) => this.wordRows(text, words[at]));
    this.warnUnreadable(texts, windows.map((own) => own.flatMap((row) => row.ids)));
    const scores = new Map();
    await this.run(windows.flat(), this.checkDepth(options.depth), undefined, async (hidden, batch) => {
      const tokens = batch.rows.flatMap((row, at) => row.ids.map((_, token) => hidden.row(at, token)));
      const found = await this.rowsThrough("tag", tokens);
      let start = 0;
      for (const row of batch.rows) scores.set(row, found.slice(start, (start += row.ids.length)).map(finite));
    });
    return texts.map((text, at) => {
      const places = labelTokens(windows[at], words[at]);
      const table = places.map(([window, token]) => Array.from(scores.get(windows[at][window])[token]));
      return { text, spans: entities(text, words[at], table, this.about.settings.labels) };
    });
  }

  /** Rows of whole words, each word tokenized by itself (`tasks/tag.py`). */
  wordRows(text, words) {
    const { tokenizer, about } = this;
    const room = about.max_task_tokens - 2;
    const longest = Math.max(1, Math.floor(room / 2));
    const cut = words.map(([start, end]) => {
      const { ids, starts, ends } = tokenizer.offsets(text.slice(start, end));
      const tokens = ids.map((id, i) => ({ id, start: start + starts[i], isEmpty: ends[i] <= starts[i] }));
      const real = tokens.filter((token) => !token.isEmpty).slice(0, longest);
      return real.length ? real : [{ id: tokenizer.unkId ?? tokenizer.padId, start }];
    });
    const overlap = Math.min(about.settings.overlap, room - longest);
    return wordWindows(cut.map((tokens) => tokens.length), room, overlap).map(([first, last]) => {
      const tokens = cut.slice(first, last).flat();
      const ids = [tokenizer.clsId, ...tokens.map((token) => token.id), tokenizer.sepId];
      return { ids, starts: [0, ...tokens.map((token) => token.start), 0] };
    });
  }

  async fill(text, options = {}) {
    checkKeys(options, ["depth", "k"]);
    const { k = 5 } = options;
    const { tokenizer, about } = this;
    if (!this.sessions.mlm)
      throw new AlbertError(
        "this model has no masked-language-model head, so it cannot fill masks. Export a pre-trained checkpoint, " +
          "such as small-pretrained.",
      );
    checkCount("k", k);
    if (typeof text !== "string" || !text.includes("[MASK]"))
      throw new AlbertError(`${JSON.stringify(String(text).slice(0, 40))} has no [MASK]. Write [MASK] where a word is missing.`);
    const { ids } = tokenizer.encode(this.checkLength(0, text), Infinity, { recognizeMask: true });
    if (ids.length > about.max_tokens)
      throw new AlbertError(`the text has ${ids.length} tokens; with a mask it must fit into ${about.max_tokens}. Shorten it.`);
    this.warnUnreadable([text.replaceAll("[MASK]", " ")], [ids]);
    const places = ids.flatMap((id, at) => (id === tokenizer.maskId ? [at] : []));
    const depth = this.checkDepth(options.depth);
    let found = [];
    await this.run([{ ids }], depth, undefined, async (hidden) => {
      found = await this.rowsThrough("mlm", places.map((place) => hidden.row(0, place)));
    });
    const known = found.map((scores) => likeliest(finite(scores), k).filter(([id]) => id < tokenizer.size));
    return known.map((best) => best.map(([id, score]) => ({ word: wordOf(tokenizer.token(id)), score })));
  }

  /** The tokens of each text, with the special ones. */
  async tokenize(texts) {
    return listTexts(texts).map((text, at) => tokensOf(this, text, this.tokenizer.encode(this.checkLength(at, text))));
  }

  /** One text at every trained depth: see `explain.js`. */
  async explain(text, options = {}) {
    checkKeys(options, ["pair", "k", "attention"]);
    return explain(this, text, options);
  }

  checkTask(task) {
    if (this.about.task !== task)
      throw new AlbertError(
        `${task} is not available: this model was made for ${JSON.stringify(this.about.task)}. Fine-tune a model with ` +
          `albertkit finetune ${task}, and export it with albertkit export --web.`,
      );
  }

  checkLength(at, text) {
    return this.shorten(at, text, "split");
  }

  // The shared layer ------------------------------------------------------------------------------------------------------

  /** Apply `depth` layers to rows of tokens, in batches of similar length; `read` gets the hidden states of each. */
  async run(rows, depth, onProgress = () => {}, read) {
    let done = 0;
    for (const batch of batches(rows)) {
      await read(await this.hidden(batch, depth), batch);
      onProgress({ done: (done += batch.rows.length), total: rows.length });
    }
  }

  async hidden(batch, depth) {
    const lengths = new this.ort.Tensor("int32", Int32Array.from(batch.rows, (row) => row.ids.length), [batch.rows.length]);
    let hidden = await this.embedding(batch);
    for (let layer = 0; layer < depth; layer++) hidden = await this.output("layer", { hidden, lengths });
    return this.rowsOf(hidden, batch);
  }

  async embedding({ rows, length }) {
    const { Tensor } = this.ort;
    const shape = [rows.length, length];
    const ids = new BigInt64Array(rows.length * length);
    const segments = new BigInt64Array(ids.length);
    rows.forEach((row, at) => {
      row.ids.forEach((id, token) => (ids[at * length + token] = BigInt(id)));
      row.types?.forEach((type, token) => (segments[at * length + token] = BigInt(type)));
    });
    return this.output("embedding", { ids: new Tensor("int64", ids, shape), segments: new Tensor("int64", segments, shape) });
  }

  /** Reads the hidden state of each token, after the output norm of models that have one. */
  async rowsOf(hidden, { rows, length }) {
    const size = hidden.dims[2];
    if (this.sessions.norm) {
      const x = new this.ort.Tensor("float32", hidden.data, [rows.length * length, size]);
      hidden = await this.output("norm", { x });
    }
    const { data } = hidden;
    return { row: (at, token) => data.subarray((at * length + token) * size, (at * length + token + 1) * size) };
  }

  async output(part, fed) {
    const session = this.sessions[part];
    return (await session.run(fed))[session.outputNames[0]];
  }

  /** Vectors through a dense layer; a small number at a time, since each may become a row of the vocabulary's size. */
  async rowsThrough(part, vectors) {
    const found = [];
    for (let start = 0; start < vectors.length; start += TOKEN_BUDGET) {
      const some = vectors.slice(start, start + TOKEN_BUDGET);
      const size = some[0].length;
      const x = new Float32Array(some.length * size);
      some.forEach((vector, at) => x.set(vector, at * size));
      const { data, dims } = await this.output(part, { x: new this.ort.Tensor("float32", x, [some.length, size]) });
      some.forEach((_, at) => found.push(data.subarray(at * dims[1], (at + 1) * dims[1])));
    }
    return found;
  }

  async pool(hidden, { rows }, how) {
    if (how === "cls") return rows.map((_, at) => hidden.row(at, 0).slice());
    if (how === "pooler") return this.rowsThrough("pooler", rows.map((_, at) => finite(hidden.row(at, 0)))); // tanh(∞) is 1
    return rows.map(({ ids }, at) => {
      const out = new Float32Array(this.about.dim).fill(how === "max" ? -Infinity : 0);
      for (let token = 0; token < ids.length; token++) {
        const row = hidden.row(at, token);
        if (how === "max") for (let i = 0; i < out.length; i++) out[i] = Math.max(out[i], row[i]);
        else for (let i = 0; i < out.length; i++) out[i] += row[i] / ids.length;
      }
      return out;
    });
  }

  // Unreadable texts (`input_warnings.py`) --------------------------------------------------------------------------------

  warnUnreadable(texts, ids) {
    const { unkId } = this.tokenizer;
    const shares = texts.map((text, at) => (ids[at].includes(unkId) ? this.tokenizer.unknownShare(text) : 0));
    const first = shares.findIndex((share) => share > MAX_UNKNOWN);
    if (first < 0) return;
    const count = shares.filter((share) => share > MAX_UNKNOWN).length;
    const shown = JSON.stringify([...texts[first].slice(0, 60)].slice(0, 30).join(""));
    const which = texts.length === 1 ? `the text ${shown}` : `${count} of ${texts.length} texts, such as ${shown}`;
    this.warnings.add(
      `this model cannot read ${which}: ${Math.round(100 * shares[first])}% of the characters are not in its ` +
        `vocabulary (at most ${100 * MAX_UNKNOWN}% may be), so the result is meaningless. Use a model for its language.`,
    );
  }
}

// Inputs ------------------------------------------------------------------------------------------------------------------

function parseAbout(bytes) {
  let about;
  try {
    about = JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    throw new AlbertError(`model.json is not JSON, so this is not a model for the browser. ${REMEDY}`);
  }
  if (about?.format !== FORMAT || !about.files || !Array.isArray(about.parts))
    throw new AlbertError(
      `model.json has the format ${JSON.stringify(about?.format)}; this albertkit.js reads format ${FORMAT}. ${REMEDY}`,
    );
  return about;
}

function listTexts(texts) {
  if (typeof texts === "string") return [texts];
  if (!Array.isArray(texts)) throw new AlbertError(`texts is ${typeof texts}. Pass a text, or several in an array.`);
  texts.forEach((text, at) => {
    if (typeof text !== "string")
      throw new AlbertError(`text ${at} is ${text === null ? "null" : typeof text}; every text must be a string. Remove or replace it.`);
  });
  return texts;
}

/** Batches of rows of similar length, the longest first. */
function* batches(rows) {
  let batch = [], length = 0, spent = 0;
  for (const row of [...rows].sort((a, b) => b.ids.length - a.ids.length)) {
    const padding = length - row.ids.length;
    if (batch.length && ((batch.length + 1) * length > TOKEN_BUDGET || spent + padding > WASTE)) {
      yield { rows: batch, length };
      batch = [];
    }
    if (!batch.length) [length, spent] = [row.ids.length, 0];
    else spent += padding;
    batch.push(row);
  }
  if (batch.length) yield { rows: batch, length };
}
