// Search in a text. Its parts are embedded once, in pieces that a server takes at a time, and their vectors stay in this window's
// memory; each question then needs one more vector.

import { Problem, dot, vectors } from "./api.js";
import { bars } from "./charts.js";
import { cli, curl, opened, py, sh } from "./code.js";
import { el, fresh } from "./dom.js";
import { field, makeTool } from "./tool.js";
import { number, t } from "./messages.js";

const CHUNK = 64;
const MOST = 20_000;
const K = 5;
const INLINE = 4000; // characters of a text that is written into the request that is shown

const area = field("textarea", "search.text", { rows: 7 });
const query = field("input", "search.query", { type: "search" });
const chooser = el("input", { id: fresh("file"), type: "file", class: "hidden", accept: ".txt,.md,.csv,.tsv,.json,.jsonl,.log,text/*" });
const KINDS = ["lines", "paragraphs"];
const kinds = KINDS.map((kind) => {
  const id = fresh("parts");
  const input = el("input", { type: "radio", name: "parts", id, value: kind, checked: kind === "lines" });
  return el("span", { class: "choice" }, input, el("label", { for: id, "data-t": `search.${kind}` }));
});
let fileName = "";
let taking = null; // a file that is being read
let index = null; // what is in memory: {name, parts, rows}

async function read(file) {
  if (!file) return;
  try {
    area.input.value = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    fileName = file.name;
    area.input.setCustomValidity("");
    area.input.fit();
  } catch {
    area.input.setCustomValidity(t("error.file", { name: file.name }));
    area.input.form.requestSubmit(); // which says it
  }
}
function take(file) {
  taking = read(file);
}
chooser.addEventListener("change", () => { take(chooser.files[0]); chooser.value = ""; }); // so that the same file can be chosen again
area.input.addEventListener("input", () => { fileName = ""; area.input.setCustomValidity(""); });
area.input.addEventListener("dragover", (event) => event.preventDefault());
area.input.addEventListener("drop", (event) => {
  if (!event.dataTransfer.files.length) return;
  event.preventDefault();
  take(event.dataTransfer.files[0]);
});

/** The parts of a text, each with the line where it begins. */
export function partsOf(text, kind) {
  const found = [];
  let part = null;
  text.split(/\r?\n/).forEach((line, at) => {
    const own = line.trim();
    if (kind === "lines" || !own) {
      if (part) found.push(part);
      part = null;
    }
    if (!own) return;
    if (kind === "lines") found.push({ line: at + 1, text: own });
    else if (part) part.text += ` ${own}`;
    else part = { line: at + 1, text: own };
  });
  if (part) found.push(part);
  return found;
}

const prompted = (model, name) => (model.prompts[name] === undefined ? {} : { prompt: name });

async function reads(values, signal, say) {
  const { model, depth, text, kind } = values;
  const name = JSON.stringify([model.id, model.version, depth, kind, text]);
  if (index?.name === name) return index;
  const parts = partsOf(text, kind);
  if (!parts.length) throw new Problem(t("error.empty"));
  if (parts.length > MOST) throw new Problem(t("error.large", { count: number(parts.length), most: number(MOST) }));
  const rows = [];
  for (let at = 0; at < parts.length; at += CHUNK) {
    if (parts.length > CHUNK) say(t("search.reading", { done: number(at), count: number(parts.length) }));
    const chunk = parts.slice(at, at + CHUNK).map((part) => part.text);
    rows.push(...(await vectors(model.id, chunk, { ...(depth ? { depth } : {}), ...prompted(model, "passage") }, signal)).rows);
  }
  return (index = { name, parts, rows });
}

async function ask(values, signal, say) {
  await taking;
  values.text = area.input.value;
  if (area.input.validationMessage) throw new Problem(area.input.validationMessage);
  if (!values.query) throw new Problem(t("error.empty"));
  const { parts, rows } = await reads(values, signal, say);
  const { model, depth } = values;
  const asked = await vectors(model.id, [values.query], { ...(depth ? { depth } : {}), ...prompted(model, "query") }, signal);
  const long = Math.sqrt(dot(asked.rows[0], asked.rows[0])) || 1;
  const hits = rows.map((row, i) => ({ ...parts[i], score: dot(row, asked.rows[0]) / (Math.sqrt(dot(row, row)) || 1) / long }));
  hits.sort((a, b) => b.score - a.score);
  return { hits: hits.slice(0, K), count: parts.length, compute: asked.compute, all: asked.all };
}

function draw({ hits }) {
  const goTo = (line) => () => {
    const before = area.input.value.split("\n").slice(0, line - 1).join("\n").length;
    const start = line > 1 ? before + 1 : 0;
    area.input.focus();
    area.input.setSelectionRange(start, start + area.input.value.slice(start).split("\n")[0].length);
  };
  return el("ol", { class: "hits" }, hits.map((hit) => el(
    "li", {},
    el("div", { class: "meter" }, bars([{ label: "", value: hit.score, said: number(hit.score, 2) }])),
    el("p", { text: hit.text }),
    el("button", { type: "button", class: "quiet", text: t("search.line", { line: hit.line }), onclick: goTo(hit.line) }),
  )));
}

function programs(values) {
  const { model, depth, text, kind } = values;
  const file = fileName || "notes.txt";
  const how = (name) => `${depth ? `, depth=${depth}` : ""}${model.prompts[name] === undefined ? "" : `, prompt="${name}"`}`;
  const note = fileName ? "" : `  # ${t("code.saved", { name: file })}`;
  const cut = kind === "lines" ? "text.splitlines()" : 'text.split("\\n\\n")';
  const body = { query: values.query, texts: partsOf(text, kind).map((part) => part.text), k: K, model: model.id, ...(depth ? { depth } : {}) };
  const make = `import json, sys; text = open(${py(file)}, encoding="utf-8").read(); ` +
    `print(json.dumps({**json.loads(sys.argv[1]), "texts": [p for p in ${cut} if p.strip()]}))`;
  const large = `python3 -c ${sh(make)} ${sh(JSON.stringify({ ...body, texts: undefined }))} |\n  ` +
    curl("search", body).replace(/-d [\s\S]*$/, "-d @-");
  return {
    python:
      `from pathlib import Path\n\n${opened(model.id)}text = Path(${py(file)}).read_text(encoding="utf-8")${note}\n` +
      `parts = [part for part in ${cut} if part.strip()]\n` +
      `vectors = albert.embed(parts${how("passage")})\nscores = vectors @ albert.embed(${py(values.query)}${how("query")})\n` +
      `for place in scores.argsort()[::-1][:${K}]:\n    print(round(float(scores[place]), 2), parts[place])`,
    curl: text.length > INLINE ? large : curl("search", body),
    cli: `${depth ? `# ${t("code.all")}\n` : ""}${cli("index", "-o", "notes.idx", "-m", model.id, "--split", kind, "--", file)}${note}\n` +
      cli("search", "--mode", "vector", "-k", K, "notes.idx", "--", values.query),
  };
}

export const search = makeTool({
  id: "search", group: 1, needs: ["search"], builtin: true, slow: true,
  make: ["albertkit serve small"],
  fields: [
    area.node,
    el(
      "div", { class: "options" },
      el(
        "div", { class: "option" }, chooser, el("label", { for: chooser.id, class: "button", "data-t": "search.file" }),
        el("span", { class: "hint wide-only", "data-t": "search.drop" }),
      ),
      el(
        "div", { class: "option", role: "radiogroup", "data-t-label": "search.parts" },
        el("span", { class: "label", "data-t": "search.parts" }), kinds,
      ),
    ),
    query.node,
  ],
  examples: { en: [{
    text: [
      "The library opens at nine and closes at six, on Thursdays at eight.",
      "Books may be kept for four weeks; you can extend that twice.",
      "A card costs ten euros a year. It is free for children and students.",
      "Please leave coats and bags in the lockers beside the entrance.",
      "There are forty desks on the second floor, each with a lamp and a socket.",
      "Whoever brings a book back late pays fifty cents for each week.",
      "You may eat and drink in the garden, not in the reading rooms.",
      "Wireless internet is free; ask for the password at the desk.",
    ].join("\n"),
    query: "What happens if I return something too late?",
  }], zh: [{
    text: [
      "图书馆早上九点开门，晚上六点关门，周四到八点。",
      "图书可以借四周，可以续借两次。",
      "借书证每年五十元，儿童和学生免费。",
      "请把外套和包放进入口旁边的储物柜。",
      "二楼有四十张书桌，每张都有台灯和插座。",
      "逾期还书，每周付两元。",
      "可以在花园里吃东西，阅览室里不可以。",
      "无线网络免费，密码请到服务台询问。",
    ].join("\n"),
    query: "还书晚了怎么办？",
  }] },
  read: () => ({
    text: area.input.value, query: query.input.value.trim(),
    kind: KINDS.find((_, i) => kinds[i].querySelector("input").checked),
  }),
  write: (example) => { area.input.value = example.text; query.input.value = example.query; },
  ask,
  draw,
  said: ({ reply }) => t("search.indexed", { count: number(reply.count), compute: number(reply.compute ?? 0, 1) }),
  code: programs,
});
