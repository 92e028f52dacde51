// The word behind a mask.

import { Problem, ask } from "./api.js";
import { bars } from "./charts.js";
import { cli, curl, opened, py } from "./code.js";
import { el } from "./dom.js";
import { field, makeTool } from "./tool.js";
import { t } from "./messages.js";

const K = 8;
const MASK = "[MASK]";
const insert = el("button", { type: "button", class: "quiet", "data-t": "fill.insert", onclick: put });
const area = field("textarea", "fill.text", { rows: 2 }, insert);

function put() {
  const { input } = area;
  input.setRangeText(MASK, input.selectionStart, input.selectionEnd, "end");
  input.focus();
  input.fit();
}

function draw({ answer }, { text }) {
  const { masks } = answer.results[0];
  const chosen = masks.map(() => 0);
  const box = el("div");

  function show(moved) {
    const pieces = text.split(MASK);
    const sentence = pieces.flatMap((piece, i) => [piece, i < masks.length ? el("mark", { text: masks[i][chosen[i]].word }) : null]);
    const lists = masks.map((guesses, nth) =>
      el(
        "section", { class: "mask" },
        masks.length > 1 ? el("h3", { class: "small", text: t("fill.mask", { number: nth + 1 }) }) : null,
        bars(
          guesses.map((guess, i) => ({
            label: guess.word, value: guess.score, best: chosen[nth] === i,
            onclick: () => { chosen[nth] = i; show([nth, i]); },
          })),
          { "aria-label": masks.length > 1 ? t("fill.mask", { number: nth + 1 }) : t("fill.guesses") },
        ),
      ),
    );
    box.replaceChildren(el("blockquote", { class: "sentence" }, sentence), el("div", { class: masks.length > 1 ? "columns" : "" }, lists));
    if (moved) box.querySelectorAll(".mask")[moved[0]].querySelectorAll("button")[moved[1]].focus();
  }
  show();
  return box;
}

export const fill = makeTool({
  id: "fill", group: 1, needs: ["fill"], builtin: true,
  make: ["albertkit serve small small-pretrained"],
  fields: [area.node],
  examples: { en: [
    { name: "example.capital", text: "Paris is the [MASK] of France." },
    { name: "example.two", text: "She opened the [MASK] and walked into the [MASK]." },
    { name: "example.history", text: "The First World [MASK] began in 1914." },
  ], zh: [
    { text: "北京是中国的[MASK]。" },
    { text: "他是一位著名的[MASK]，写了很多[MASK]。" },
    { text: "第二次世界[MASK]于1945年结束。" },
  ] },
  read: () => ({ text: area.input.value.trim() }),
  write: ({ text }) => { area.input.value = text; },
  ask({ text, model, depth }, signal) {
    if (!text.includes(MASK)) throw new Problem(t("error.mask"));
    return ask("fill", body(text, model, depth), signal);
  },
  draw,
  code: ({ text, model, depth }) => ({
    python:
      `${opened(model.id)}for mask in albert.fill_mask(${py(text)}, k=${K}${depth ? `, depth=${depth}` : ""}):\n` +
      "    for guess in mask:\n        print(guess.word, round(guess.score, 3))",
    curl: curl("fill", body(text, model, depth)),
    cli: cli("fill", "-m", model.id, "-k", K, ...(depth ? ["--depth", depth] : []), "--", text),
  }),
});

function body(text, model, depth) {
  return { texts: [text], k: K, model: model.id, ...(depth ? { depth } : {}) };
}
