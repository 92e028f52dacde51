// What was just done, as Python, curl and command line: programs that can be pasted and run.

import { base, hasKey } from "./api.js";
import { el, roving } from "./dom.js";
import { t } from "./messages.js";

const BUILTIN = ["small", "small-pretrained"];
const FORMS = ["python", "curl", "cli"];
let chosen = "python";

/** A word for a POSIX shell. */
export const sh = (text) => (/^[A-Za-z0-9_@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

/** A string for Python; what JSON writes is one too. */
export const py = (text) => JSON.stringify(text);

/** A list of strings for Python, one per line if there are several. */
export function pyList(texts) {
  if (texts.length === 1) return `[${py(texts[0])}]`;
  return `[\n${texts.map((text) => `    ${py(text)},\n`).join("")}]`;
}

/** The lines that open a model; `more` is another line to import. */
export function opened(model, more = "") {
  const note = BUILTIN.includes(model) ? "" : `  # ${t("code.folder", { name: model })}`;
  return `from albertkit import Albert\n${more}\nalbert = Albert(${py(model)})${note}\n`;
}

/** A request. */
export function curl(path, body) {
  const key = hasKey() ? ` \\\n  -H "authorization: Bearer $KEY"` : "";
  return `curl -s ${base()}/${path} \\\n  -H 'content-type: application/json'${key} \\\n  -d ${sh(JSON.stringify(body))}`;
}

/** A line of the command line. */
export const cli = (...parts) => ["albertkit", ...parts.map((part) => sh(String(part)))].join(" ");

/** The block that shows programs: {node, show({python, curl, cli})}. One choice holds for all tools. */
export function codeBlock() {
  const text = el("code");
  const copy = el("button", { type: "button", class: "quiet copy", onclick: take, "data-t": "code.copy" });
  const choices = FORMS.map((form) =>
    el("button", { type: "button", class: "segment", "data-form": form, "data-t": `code.${form}`, onclick: () => choose(form) }),
  );
  const bar = el("div", { class: "segments", role: "group", "data-t-label": "code" }, choices);
  roving(bar, "button");
  const pre = el("pre", { tabindex: 0, "data-t-label": "code" }, text);
  const node = el(
    "section", { class: "code", hidden: true },
    el("h3", { class: "small", "data-t": "code" }),
    el("div", { class: "bar" }, bar, copy),
    pre,
  );
  let programs = null;

  function draw() {
    for (const button of choices) button.setAttribute("aria-pressed", String(button.dataset.form === chosen));
    if (programs) text.textContent = programs[chosen];
  }
  function choose(form) {
    chosen = form;
    dispatchEvent(new Event("code-form"));
  }
  async function take() {
    await clip(text.textContent, pre);
    copy.textContent = t("code.copied");
    setTimeout(() => { copy.textContent = t("code.copy"); }, 1500);
  }
  addEventListener("code-form", draw);
  draw();
  return { node, show: (made) => { programs = made; node.hidden = false; draw(); } };
}

/** Copy a text; where the browser forbids it (pages that are neither local nor encrypted), select it and try the old way. */
export async function clip(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    getSelection().selectAllChildren(shown);
    document.execCommand("copy");
  }
}
