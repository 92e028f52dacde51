/**
 * One text at every trained depth: predictions, vectors, where it could exit early, and the attention of each head.
 * It computes what `explain/layer_predictions.py` does. In: a `Model` and a text. After this file: `model.js`.
 */
import { AlbertError } from "./errors.js";
import { dot, softmax, unitLength } from "./numbers.js";

const MAX_ATTENTION = 16_000_000; // numbers

/** `pair`: the second text. `k`: words for each mask. `attention`: whether to return it. */
export async function explain(model, text, { pair, k = 5, attention = false } = {}) {
  if (typeof text !== "string") throw new AlbertError(`the text is ${typeof text}. Pass a string.`);
  const { about, tokenizer } = model;
  const kind = kindOf(model, text);
  const clean = model.checkLength(0, text);
  const row = pair === undefined ? tokenizer.encode(clean, Infinity, { recognizeMask: kind === "fill" }) : tokenizer.encodePair(clean, pair);
  if (row.ids.length > about.max_tokens)
    throw new AlbertError(`the text has ${row.ids.length} tokens; an explained text has at most ${about.max_tokens}. Shorten it.`);
  if (kind === null) model.warnUnreadable([`${text} ${pair ?? ""}`], [row.ids]); // each prediction warns, with one message
  const states = await layerStates(model, row, model.depths.length ? model.depths : [about.depth], attention);
  for (const state of states.depths) state.prediction = await predict(model, kind, text, pair, k, state.depth);
  const full = states.depths.find((state) => state.depth === about.full_depth);
  const shown = states.depths.filter((state) => state === full || about.depths.includes(state.depth));
  const wanted = choiceOf(kind, full.prediction);
  const matches = shown.map((state) => choiceOf(kind, state.prediction) === wanted);
  const firstStable = matches.slice(0, shown.indexOf(full)).lastIndexOf(false) + 1;
  return {
    kind,
    fullDepth: about.full_depth,
    tokens: tokensOf(model, text, row, kind),
    depths: shown.map(({ vector, tokens, ...state }, at) => ({
      ...state,
      vector,
      cosine: dot(vector, full.vector),
      tokenCosines: tokens.map((one, i) => dot(one, full.tokens[i])),
      matchesFullDepth: kind === null ? null : matches[at],
    })),
    stableDepth: kind === null ? null : shown[firstStable].depth,
    earlyExit: traceExit(model, kind, states.depths),
    attention: states.attention,
    heads: about.heads,
  };
}

function kindOf({ about, sessions }, text) {
  if (text.includes("[MASK]") && sessions.mlm) return "fill";
  return ["classify", "tag"].includes(about.task) ? about.task : null;
}

/** The vector and the tokens of a row after each depth, and the attention of each layer. */
async function layerStates(model, row, depths, wantsAttention) {
  const { Tensor } = model.ort;
  const length = row.ids.length;
  const deepest = Math.max(...depths);
  const isPossible = wantsAttention && model.sessions.attention && deepest * model.about.heads * length ** 2 <= MAX_ATTENTION;
  const maps = [];
  const batch = { rows: [row], length };
  let seconds = 0;
  const timed = async (work) => {
    const began = performance.now();
    const result = await work();
    seconds += performance.now() - began;
    return result;
  };
  let hidden = await timed(() => model.embedding(batch));
  const lengths = new Tensor("int32", Int32Array.of(length), [1]);
  const found = [];
  for (let depth = 0; depth <= deepest; depth++) {
    if (depths.includes(depth)) {
      const read = await timed(() => model.rowsOf(hidden, batch));
      const [vector] = await model.pool(read, batch, model.about.pooling);
      const tokens = row.ids.map((_, at) => unitLength(read.row(0, at).slice()));
      found.push({ depth, milliseconds: seconds, vector: unitLength(vector), tokens });
    }
    if (depth === deepest) break;
    if (isPossible) maps.push((await model.output("attention", { hidden })).data.slice());
    const before = hidden;
    hidden = await timed(() => model.output("layer", { hidden: before, lengths }));
  }
  return { depths: found, attention: isPossible ? joined(maps) : null };
}

function joined(arrays) {
  const out = new Float32Array(arrays.reduce((sum, array) => sum + array.length, 0));
  let at = 0;
  for (const array of arrays) out.set(array, (at += array.length) - array.length);
  return out;
}

async function predict(model, kind, text, pair, k, depth) {
  if (kind === null) return null;
  if (kind === "fill") return model.fill(text, { k, depth });
  const [found] = await model[kind]([text], { depth, ...(pair === undefined ? {} : { pairs: [pair] }) });
  return found;
}

/** The part of a prediction that is compared between depths. */
function choiceOf(kind, prediction) {
  if (kind === "fill") return JSON.stringify(prediction.map((words) => words[0].word));
  if (kind === "tag") return JSON.stringify(prediction.spans.map(({ start, end, label }) => [start, end, label]));
  return JSON.stringify(typeof prediction?.label === "number" ? Math.round(100 * prediction.label) : prediction?.label);
}

/** The uncertainty where the text could exit early (`tasks/confidence.py`); null for entities and masks. */
function traceExit(model, kind, states) {
  const { about } = model;
  if (kind === "fill" || kind === "tag" || !about.exit_depths.length) return null;
  const exits = [...about.exit_depths, about.full_depth].map((depth) => states.find((state) => state.depth === depth));
  const measure = kind === null ? "cosine" : about.settings.kind === "regression" ? "change" : "entropy";
  const uncertainty = exits.map((state, at) => {
    if (measure === "entropy") return entropyOf(state.prediction, about.settings);
    if (at === 0) return null;
    if (measure === "cosine") return Math.max(0, 1 - dot(state.vector, exits[at - 1].vector));
    return Math.abs(state.prediction.label - exits[at - 1].prediction.label) / about.settings.std;
  });
  return { kind: measure, exitDepths: about.exit_depths, uncertainty };
}

/** The entropy of the classes, from 0 to 1, in the scale of training; for several labels, of the most uncertain one. */
function entropyOf({ probabilities }, { kind, temperature, score_scale: scale = 1 }) {
  const numbers = Object.values(probabilities);
  const power = temperature * scale;
  const groups = kind === "multi" ? numbers.map((p) => [p, 1 - p]) : [numbers];
  const entropies = groups.map((group) => {
    const scores = group.map((p) => power * Math.log(Math.max(p, 1e-30)));
    const shares = softmax(scores);
    return -shares.reduce((sum, share) => sum + (share > 0 ? share * Math.log(share) : 0), 0) / Math.log(Math.max(2, shares.length));
  });
  return Math.max(...entropies);
}

/** The tokens of a text; `start` and `end` are its places in the text, and null for special tokens and a second text. */
export function tokensOf({ tokenizer }, text, { ids }, kind) {
  const specials = new Set([tokenizer.clsId, tokenizer.sepId]);
  const { starts, ends } = tokenizer.offsets(text, { recognizeMask: kind === "fill" });
  return ids.map((id, at) => {
    const special = specials.has(id);
    const isFirst = !special && at - 1 < starts.length;
    return { id, text: tokenizer.token(id), special, start: isFirst ? starts[at - 1] : null, end: isFirst ? ends[at - 1] : null };
  });
}
