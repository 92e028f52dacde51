// "Run in this browser": albertkit.js answers what the tools request, with the served models, and no request is sent.

import { Problem, base, keyHeaders } from "./api.js";
import { points } from "./dom.js";
import { number, t } from "./messages.js";

const MAX_UINT16 = 65535; // an attention of 1, as the server writes it
let models = null; // by name, while the switch is on
let listener = null; // the signal of the request whose texts are computed

export const isLocal = () => models !== null;

/** Turn the switch. On: downloads the models that browsers can run. Returns what to say about it. */
export async function turnLocal(on, served, say) {
  for (const model of models?.values() ?? []) model.close();
  models = null;
  if (!on) return "";
  const { version, files } = await (await fetch("web/onnxruntime-web.json")).json();
  const [first] = Object.keys(files);
  if (!(await fetch(`web/onnxruntime/${first}`)).ok) throw new Problem(t("local.missing", { version }));
  const { Albert } = await import(`${base()}/web/albertkit.js`);
  const opened = new Map();
  const wrong = [];
  for (const { id } of served) {
    const onProgress = ({ loaded, total }) => say(t("local.loading", { name: id, percent: number((100 * loaded) / Math.max(1, total)) }));
    const onWarning = () => listener?.dispatchEvent(new Event("unreadable"));
    try {
      opened.set(id, await Albert.load(`${base()}/browser/${id}`, { onProgress, onWarning, headers: keyHeaders() }));
    } catch (error) {
      wrong.push(error.message);
    }
  }
  if (!opened.size) throw new Problem(wrong.join(" "));
  models = opened;
  return wrong.length ? t("local.some", { names: [...opened.keys()].join(", ") }) : t("local.on");
}

/** What `ask` returns, computed here. */
export async function answerHere(path, { model, ...body }, signal) {
  const albert = models.get(model);
  const answer = ANSWERS[path];
  if (!albert || !answer) throw new Problem(t("local.tool"));
  return timed(signal, async () => ({ answer: await answer(albert, body) }));
}

/** What `vectors` returns, computed here. */
export async function embedHere(model, texts, { depth, prompt }, signal) {
  if (!models.has(model)) throw new Problem(t("local.tool"));
  return timed(signal, async () => ({ rows: await models.get(model).embed(texts, defined({ depth, prompt })) }));
}

async function timed(signal, work) {
  const began = performance.now();
  listener = signal;
  try {
    return { ...(await work()), compute: null, all: performance.now() - began };
  } catch (error) {
    throw error.name === "AlbertError" ? new Problem(error.message) : error;
  }
}

const ANSWERS = {
  similar: async (albert, { texts, depth }) => ({ scores: await albert.similarity(texts, undefined, defined({ depth })) }),
  classify: async (albert, { texts, pairs, depth }) => ({ results: await albert.classify(texts, defined({ pairs, depth })) }),
  tag: async (albert, { texts, depth }) => ({ results: (await albert.tag(texts, defined({ depth }))).map(inPoints) }),
  fill: async (albert, { texts, k, depth }) => ({ results: [{ masks: await albert.fill(texts[0], defined({ k, depth })) }] }),
  tokenize: (albert, { inputs }) => albert.tokenize(inputs),
  explain: async (albert, { text, pair, k, vectors, attention }) => {
    const found = await albert.explain(text, defined({ pair, k, attention: Boolean(attention) }));
    if (found.kind === "tag") throw new Problem(t("local.tool")); // early exit of entities is not computed here
    return {
      kind: found.kind, full_depth: found.fullDepth, tokens: found.tokens, stable_depth: found.stableDepth,
      early_exit: found.earlyExit && {
        kind: found.earlyExit.kind, exit_depths: found.earlyExit.exitDepths, uncertainty: found.earlyExit.uncertainty, exit_depth_99: null,
      },
      depths: found.depths.map((one) => ({
        depth: one.depth, milliseconds: one.milliseconds, cosine: one.cosine, token_cosines: one.tokenCosines,
        prediction: one.prediction, matches_full_depth: one.matchesFullDepth, vector: vectors ? one.vector : null,
      })),
      attention: found.attention && Uint16Array.from(found.attention, (share) => Math.round(share * MAX_UINT16)),
    };
  },
};

/** Options without those that are undefined, which albertkit.js would treat as given. */
function defined(options) {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined && value !== null));
}

/** Entities with places in code points, as the server counts them. */
function inPoints({ text, spans }) {
  const place = (at) => points(text.slice(0, at)).length;
  return { text, spans: spans.map((span) => ({ ...span, start: place(span.start), end: place(span.end) })) };
}
