// How a prediction forms: every trained depth of one text, where early exit would stop, and the attention of the heads.

import { Problem, ask, bytes, shownDepths } from "./api.js";
import { attentionView } from "./attention.js";
import { cli, curl, opened, py, sh } from "./code.js";
import { el, fresh } from "./dom.js";
import { field, makeTool } from "./tool.js";
import { number, t } from "./messages.js";

const MAX_TOKENS = 64; // longer texts are shown without attention
const MAX_UINT16 = 65535; // what the server writes for an attention of 1
const area = field("textarea", "explain.text", { rows: 2 });
const pair = field("input", "explain.pair", { type: "text" });
const question = field("input", "explain.question", { type: "text" });
let threshold = 0.8;
let view = { layer: 2, head: 1 };

/** The confidence after each layer, in the numbers that early exit compares; null where it cannot exit. For masks, the
    probability of the best word (of the least confident mask). */
function confidences(answer) {
  const { early_exit: exit, full_depth: full } = answer;
  return shownDepths(answer).map(({ depth, prediction }) => {
    if (!exit) return Math.min(...prediction.map((words) => words[0].score));
    const uncertainty = exit.uncertainty[depth === full ? exit.exit_depths.length : exit.exit_depths.indexOf(depth)];
    return uncertainty === null || uncertainty === undefined ? null : Math.max(0, 1 - uncertainty);
  });
}

/** The value of `early_exit=` for the chosen threshold; null for masks, which always use all layers. */
const rule = (exit) => exit && `${exit.kind}:${Number((exit.kind === "cosine" ? threshold : 1 - threshold).toFixed(3))}`;

/** A prediction in a few words: [[words, probability], …]. */
function summarize(kind, prediction) {
  if (kind === "fill") return prediction.flatMap((words) => words.slice(0, prediction.length > 1 ? 1 : 3).map((g) => [g.word, g.score]));
  if (kind === "classify") {
    if (typeof prediction.label === "number") return [[number(prediction.label, 2), null]];
    return Object.entries(prediction.probabilities ?? {}).sort((a, b) => b[1] - a[1]).slice(0, 3);
  }
  if (kind === "answer") return [[prediction.text || t("classify.none"), prediction.probability]];
  const spans = prediction.spans.map((span) => [`${span.text} ${span.label}`, span.score]);
  if (kind === "intent") return [[prediction.intent, prediction.probability], ...spans];
  return spans.length ? spans : [[t("classify.none"), null]];
}

function layersTable({ answer }) {
  const { kind, early_exit: exit, full_depth: full } = answer;
  const depths = shownDepths(answer);
  const confidence = confidences(answer);
  const digits = exit?.kind === "cosine" ? 3 : 2;
  const gauge = (value, more) => el(
    "td", { class: `gauge ${more}` },
    value === null ? null : el("span", { class: "bar", vars: { "--share": Math.max(0, value) } }),
    el("span", { class: "value", text: value === null ? "–" : number(value, digits) }),
  );
  const rows = depths.map((one, at) => el(
    "tr", {},
    el("th", { scope: "row", text: String(one.depth) }),
    kind ? el("td", { class: "says" }, summarize(kind, one.prediction).map(([words, share], i) => el(
      "span", { class: i ? "word" : "word first" }, words, share === null ? null : el("small", { text: `${number(100 * share)} %` }),
    ))) : null,
    gauge(confidence[at], ""), gauge(one.cosine, "soft"),
  ));
  const table = el(
    "table", { class: kind ? "layers tells" : "layers" },
    el("thead", {}, el(
      "tr", {}, el("th", { scope: "col", "data-t": "explain.layer" }), kind ? el("th", { scope: "col", "data-t": "explain.says" }) : null,
      el("th", { scope: "col", "data-t": kind ? "explain.sure" : "explain.still" }), el("th", { scope: "col", "data-t": "explain.agreement" }),
    )),
    el("tbody", {}, rows),
  );
  const slider = el("input", { id: fresh("threshold"), type: "range", min: 0.3, max: 0.99, step: 0.01, value: threshold });
  const label = el("label", { for: slider.id, "data-t": kind ? "explain.threshold" : "explain.threshold.vector" });
  const said = el("output", { for: slider.id, class: "said" });
  const verdict = el("p", { class: "verdict", role: "status" });
  function stop() {
    threshold = Number(slider.value);
    said.textContent = number(threshold, 2);
    const at = confidence.findIndex((value, i) => i < rows.length - 1 && value !== null && value >= threshold);
    rows.forEach((row, i) => {
      row.classList.toggle("exit", i === at);
      row.classList.toggle("skipped", at >= 0 && i > at);
    });
    const layer = at < 0 ? full : depths[at].depth;
    const saved = number((100 * (full - layer)) / full);
    const notes = [at < 0 ? t("explain.exit.never", { layers: full }) : t("explain.exit", { layer, layers: full, saved })];
    if (at >= 0 && depths[at].matches_full_depth !== null) notes.push(t(depths[at].matches_full_depth ? "explain.exit.same" : "explain.exit.other"));
    if (exit?.exit_depth_99) notes.push(t("explain.calibrated", { layer: exit.exit_depth_99 }));
    verdict.textContent = notes.join(" ");
  }
  slider.addEventListener("input", () => { stop(); spec.refresh(); });
  stop();
  return [
    el("h3", { "data-t": "explain.layers" }),
    el("div", { class: "options" }, el("div", { class: "option grow long" }, label, slider, said)),
    verdict,
    el("div", { class: "scroll", tabindex: 0, role: "region", "data-t-label": "explain.layers" }, table),
    answer.stable_depth ? el("p", { class: "hint", text: t("explain.stable", { layer: answer.stable_depth }) }) : null,
  ];
}

function draw(reply) {
  const { answer } = reply;
  if (!reply.attention) return [...layersTable(reply), el("p", { class: "hint", text: t("explain.weak", { most: MAX_TOKENS }) })];
  const maps = attentionView(reply.attention, answer.tokens, view, (chosen) => { view = chosen; spec.refresh(); });
  return [...layersTable(reply), el("h3", { "data-t": "explain.attention" }), maps];
}

function body(v, attention) {
  return {
    text: v.text, model: v.model.id, k: 3, ...(attention ? { attention } : {}),
    ...(v.pair ? { pair: v.pair } : {}), ...(v.question ? { question: v.question } : {}),
  };
}

/** The call in Python; its arguments come before depth= or early_exit=. */
function call(kind, v) {
  const pair = v.pair ? `, ${py(v.pair)}` : "";
  return {
    fill: "albert.fill_mask(text, k=3", classify: `albert.classify(text${pair}`, tag: "albert.tag(text",
    intent: "albert.understand(text", answer: `albert.answer(${py(v.question)}, text`,
  }[kind];
}

function programs(v, { answer }) {
  const { kind, early_exit: exit } = answer;
  const { layer, head } = view;
  const value = rule(exit);
  const each = kind ? `${call(kind, v)}, depth=depth)` : "albert.embed(text, depth=depth) @ albert.embed(text)";
  const left = kind ? `${call(kind, v)}, early_exit=${py(value)})` : `albert.embed_early_exit([text], early_exit=${py(value)})[1]`;
  const early = value ? `print(${left})\n` : "";
  const command = [kind ?? "embed", "-m", v.model.id, ...(kind === "classify" && v.pair ? ["--pair", v.pair] : [])];
  const pipe = kind === "answer" ? `printf %s ${sh(v.text)} | ` : "";
  const line = (...flags) => pipe + cli(...command, ...flags, "--", kind === "answer" ? v.question : v.text);
  return {
    python:
      `${opened(v.model.id)}text = ${py(v.text)}\n` +
      `for depth in [${shownDepths(answer).map((one) => one.depth).join(", ")}]:\n    print(depth, ${each})\n${early}` +
      `explanation = albert.explain(text${v.pair ? `, pair=${py(v.pair)}` : ""}${v.question ? `, question=${py(v.question)}` : ""})\n` +
      `print(explanation.maps[0].attention[${layer}, ${head}].round(2))  # ${t("explain.head", { layer: layer + 1, head: head + 1 })}`,
    curl: curl("explain", body(v, "float")),
    cli: cli("explain", "-m", v.model.id, ...(v.pair ? ["--pair", v.pair] : []), ...(v.question ? ["--question", v.question] : []), "--", v.text) +
      (value ? `\n${line("--early-exit", value)}` : ""),
  };
}

const spec = {
  id: "explain", group: 3, needs: ["explain"], builtin: true, deep: false, slow: true,
  make: ["albertkit serve small small-pretrained"],
  fields: [area.node, pair.node, question.node],
  examples: { en: [
    { name: "example.mask", text: "She is a professor at the [MASK] of Oxford.", question: "Who is it?" },
    { name: "example.senses", text: "She sat on the bank of the river and counted her money.", question: "Where did she sit?" },
    { name: "example.who", text: "The cup did not fit into the bag because it was too big.", question: "What was too big?" },
  ], zh: [
    { text: "北京是中国的[MASK]。", question: "首都是哪里？" },
    { text: "他在银行门口等了半天，一行人也没有看见。", question: "他在哪里等？" },
    { text: "杯子放不进包里，因为它太大了。", question: "什么太大？" },
  ] },
  fit(model) {
    pair.node.hidden = model.task !== "classify";
    question.node.hidden = model.task !== "answer";
  },
  prefer: (models) => models.find((one) => one.endpoints.includes("fill")),
  read: () => ({
    text: area.input.value.trim(),
    pair: pair.node.hidden ? "" : pair.input.value.trim(),
    question: question.node.hidden ? "" : question.input.value.trim(),
  }),
  write: (example) => { area.input.value = example.text; question.input.value = example.question; },
  async ask(values, signal) {
    if (!values.text) throw new Problem(t("error.empty"));
    const { model } = values;
    const [tokens] = (await ask("tokenize", { inputs: [values.text], model: model.id }, signal)).answer;
    const short = tokens.length + values.pair.length / 2 <= MAX_TOKENS;
    const reply = await ask("explain", body(values, short ? "base64" : null), signal);
    const { attention } = reply.answer;
    if (attention) {
      const packed = typeof attention === "string" ? new Uint16Array(bytes(attention).buffer) : attention;
      const n = reply.answer.tokens.length;
      const heads = model.heads;
      reply.attention = {
        heads, layers: packed.length / (heads * n * n), tokens: n,
        at: (layer, head, from, to) => packed[((layer * heads + head) * n + from) * n + to] / MAX_UINT16,
      };
      view = { layer: Math.min(view.layer, reply.attention.layers - 1), head: Math.min(view.head, heads - 1) };
      reply.answer.attention = null;
    }
    return reply;
  },
  draw,
  code: programs,
};
export const explain = makeTool(spec);
