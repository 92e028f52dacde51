// What fine-tuned models do: classes, entities, answers.

import { Problem, ask } from "./api.js";
import { bars } from "./charts.js";
import { cli, curl, opened, py, pyList, sh } from "./code.js";
import { el, lines, points } from "./dom.js";
import { field, makeTool } from "./tool.js";
import { number, t } from "./messages.js";

const SHOWN = 12; // classes of one text
const KINDS = 8; // colours for kinds of entities
const OTHERS = 4; // answers beside the best

function wanted(texts) {
  if (!texts.length) throw new Problem(t("error.empty"));
}

/** The depth, for Python and for the command line. */
const inPython = (depth) => (depth ? `, depth=${depth}` : "");
const flags = ({ model, depth }) => ["-m", model.id, ...(depth ? ["--depth", depth] : [])];

// Classes ---------------------------------------------------------------------------------------------------------

const texts = field("textarea", "classify.texts", { rows: 3 });
const pairs = field("textarea", "classify.pairs", { rows: 1 });

function classBody({ texts: all, second, model, depth }) {
  return { texts: all, ...(second.length ? { pairs: second } : {}), model: model.id, ...(depth ? { depth } : {}) };
}

/** One label: its name and the bars of all classes, or its value. */
function oneClass(found, text) {
  const head = el("blockquote", { class: "sentence", text });
  const said = (text) => el("p", { class: "value-of", text });
  if (typeof found.label === "number") return el("section", { class: "one" }, head, said(t("classify.value", { value: number(found.label, 2) })));
  const chosen = Array.isArray(found.label) ? found.label : [found.label];
  const rows = Object.entries(found.probabilities ?? { [chosen[0]]: found.probability })
    .sort((a, b) => b[1] - a[1]).slice(0, SHOWN)
    .map(([label, value]) => ({ label, value, best: chosen.includes(label) }));
  return el("section", { class: "one" }, head, said(chosen.join(", ") || t("classify.none")), bars(rows));
}

export const classify = makeTool({
  id: "classify", group: 2, needs: ["classify"],
  make: ["albertkit finetune classify train.tsv --dev dev.tsv -o sentiment", "albertkit serve sentiment"],
  fields: [texts.node, pairs.node],
  examples: {
    en: [{ texts: ["What a lovely film.", "I was bored from the first minute to the last."] }],
    zh: [{ texts: ["这部电影真好看。", "从头到尾都很无聊。"] }],
  },
  read: () => ({ texts: lines(texts.input.value), second: lines(pairs.input.value) }),
  write: (example) => { texts.input.value = example.texts.join("\n"); },
  ask(values, signal) {
    wanted(values.texts);
    return ask("classify", classBody(values), signal);
  },
  draw: ({ answer }, values) => answer.results.map((found, i) => oneClass(found, [values.texts[i], values.second[i]].filter(Boolean).join(" — "))),
  code: (values) => ({
    python:
      `${opened(values.model.id)}texts = ${pyList(values.texts)}\n${values.second.length ? `pairs = ${pyList(values.second)}\n` : ""}` +
      `for found in albert.classify(texts${values.second.length ? ", pairs" : ""}${inPython(values.depth)}):` +
      "\n    print(found.label, round(found.probability, 3))",
    curl: curl("classify", classBody(values)),
    cli: values.second.length
      ? values.texts
        .map((text, i) => cli("classify", ...flags(values), "--pair", values.second[i] ?? "", "--", text))
        .join("\n")
      : cli("classify", ...flags(values), "--", ...values.texts),
  }),
});

// Entities --------------------------------------------------------------------------------------------------------

const tagged = field("textarea", "tag.texts", { rows: 3 });

/** A text with its spans marked; each kind has its colour and its name. */
function marked(text, spans, kinds) {
  const all = points(text);
  const parts = [];
  let at = 0;
  for (const span of spans) {
    parts.push(all.slice(at, span.start).join(""));
    parts.push(el(
      "mark", { class: `entity kind-${kinds.indexOf(span.label) % KINDS}`, title: `${span.label} ${number(100 * span.score)} %` },
      all.slice(span.start, span.end).join(""), el("small", { text: span.label }),
    ));
    at = span.end;
  }
  parts.push(all.slice(at).join(""));
  return el("blockquote", { class: "sentence wide" }, parts);
}

const tagBody = ({ texts: all, model, depth }) => ({ texts: all, model: model.id, ...(depth ? { depth } : {}) });
const intents = (model) => model.task === "intent";

export const tag = makeTool({
  id: "tag", group: 2, needs: ["tag", "intent"],
  fits: (model) => model.task !== "classify", // whose intents have no slots to mark
  make: ["albertkit finetune tag train.conll --dev dev.conll -o names", "albertkit serve names"],
  fields: [tagged.node],
  examples: {
    en: [{ texts: ["Angela Merkel visited Paris in spring.", "Marie Curie was born in Warsaw."] }],
    zh: [{ texts: ["王小明在北京大学读书。", "李华上个月去了上海。"] }],
  },
  read: () => ({ texts: lines(tagged.input.value) }),
  write: (example) => { tagged.input.value = example.texts.join("\n"); },
  ask(values, signal) {
    wanted(values.texts);
    return ask(intents(values.model) ? "intent" : "tag", tagBody(values), signal);
  },
  draw({ answer }, values) {
    const kinds = [...new Set(answer.results.flatMap((found) => found.spans.map((span) => span.label)))].sort();
    return answer.results.map((found, i) => el(
      "section", { class: "one" },
      found.intent === undefined ? null : el("p", { class: "value-of", text: t("tag.intent", { intent: found.intent }) }),
      marked(values.texts[i], found.spans, kinds),
      found.spans.length ? null : el("p", { class: "hint", "data-t": "tag.none" }),
    ));
  },
  code: (values) => ({
    python:
      `${opened(values.model.id)}texts = ${pyList(values.texts)}\n` +
      `for found in albert.${intents(values.model) ? "understand" : "tag"}(texts${inPython(values.depth)}):\n    print(found)`,
    curl: curl(intents(values.model) ? "intent" : "tag", tagBody(values)),
    cli: cli(intents(values.model) ? "intent" : "tag", ...flags(values), "--", ...values.texts),
  }),
});

// Answers ---------------------------------------------------------------------------------------------------------

const context = field("textarea", "answer.context", { rows: 5 });
const question = field("input", "answer.question", { type: "text" });
const answerBody = (v) => ({ question: v.question, context: v.context, model: v.model.id, ...(v.depth ? { depth: v.depth } : {}) });

export const answer = makeTool({
  id: "answer", group: 2, needs: ["answer"],
  make: ["albertkit finetune answer train.json --dev dev.json -o reader", "albertkit serve reader"],
  fields: [context.node, question.node],
  examples: { en: [{
    context: "ALBERT was published in 2019 by Zhenzhong Lan and others. It shares one layer's weights among all layers, " +
      "so that the model is small, and splits the embedding into two smaller matrices.",
    question: "When was ALBERT published?",
  }], zh: [{
    context: "ALBERT 由蓝振忠等人于 2019 年发表。它的各层共享一组权重，因此模型很小；词嵌入矩阵也分解成两个较小的矩阵。",
    question: "ALBERT 是哪一年发表的？",
  }] },
  read: () => ({ context: context.input.value.trim(), question: question.input.value.trim() }),
  write: (example) => { context.input.value = example.context; question.input.value = example.question; },
  ask(values, signal) {
    wanted(values.context && values.question);
    return ask("answer", answerBody(values), signal);
  },
  draw({ answer: found }, values) {
    const all = points(values.context);
    const part = (start, end) => all.slice(start, end).join("");
    const quote = (...parts) => el("blockquote", { class: "sentence wide" }, parts);
    const others = found.others.filter((other) => other.text).slice(0, OTHERS).map((o) => ({ label: o.text, value: o.probability }));
    const best = found.text
      ? [
        el("p", { class: "value-of" }, found.text, el("small", { text: ` ${number(100 * found.probability)} %` })),
        quote(part(0, found.start), el("mark", { text: part(found.start, found.end) }), part(found.end)),
      ]
      : [el("p", { class: "value-of", "data-t": "answer.none" }), quote(values.context)];
    const more = others.length ? [el("h3", { class: "small", "data-t": "answer.others" }), bars(others, { class: "bars long" })] : [];
    return [...best, ...more];
  },
  code: (values) => ({
    python: `${opened(values.model.id)}context = ${py(values.context)}\n` +
      `found = albert.answer(${py(values.question)}, context${inPython(values.depth)})\nprint(found.text, round(found.probability, 3))`,
    curl: curl("answer", answerBody(values)),
    cli: `printf %s ${sh(values.context)} | ${cli("answer", ...flags(values), "--", values.question)}`,
  }),
});
