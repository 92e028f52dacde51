// What all tools share: a panel with fields, the choice of model and depth, a button, a line that says how it goes, a result, and
// the program that does the same. A tool says what it needs (`needs`), what it asks (`ask`), how the answer looks (`draw`), and
// what the program is (`code`).

import { Problem } from "./api.js";
import { clip, codeBlock } from "./code.js";
import { debounce, el, fresh } from "./dom.js";
import { language, number, t, translate } from "./messages.js";

/** A field with its label, area or input; `action` is a button beside the label. */
export function field(kind, key, facts = {}, action = null) {
  const id = fresh("field");
  const input = el(kind, { id, spellcheck: "false", autocomplete: "off", ...facts });
  if (kind === "textarea") {
    const fit = () => { input.style.height = "auto"; input.style.height = `${Math.min(input.scrollHeight + 2, 420)}px`; };
    input.addEventListener("input", fit);
    input.fit = fit;
  }
  return { input, node: el("div", { class: "field" }, el("div", { class: "over" }, el("label", { for: id, "data-t": key }), action), input) };
}

/** Make a tool out of its description; see `compare.js` for a short one. */
export function makeTool(spec) {
  const id = spec.id;
  const models = el("select", { id: fresh("model") });
  const slider = el("input", { id: fresh("depth"), type: "range", min: 0, step: 1 });
  const depthSaid = el("output", { for: slider.id, class: "said" });
  const status = el("p", { class: "status", role: "status", "aria-live": "polite" });
  const button = el("button", { type: "submit", class: "primary", "data-t": `${id}.run` });
  const halt = el("button", { type: "button", class: "quiet", hidden: true, "data-t": "stop", onclick: () => running?.abort() });
  const unreadable = el("p", { class: "unreadable", role: "alert", hidden: true, "data-t": "unreadable" });
  const result = el("div", { class: "result" });
  const program = codeBlock();
  const modelBox = el("div", { class: "option" }, el("label", { for: models.id, "data-t": "model" }), models);
  const depthBox = el("div", { class: "option grow" }, el("label", { for: slider.id, "data-t": "depth" }), slider, depthSaid);
  const options = el("div", { class: "options" }, modelBox, spec.deep === false ? null : depthBox);
  const body = el("fieldset", { class: "fields" }, el("legend", { class: "hidden", "data-t": `${id}.title` }), spec.fields, options);
  const examples = el("div", { class: "examples", role: "group", "data-t-label": "examples" });
  const form = el(
    "form", { novalidate: true, onsubmit: (event) => { event.preventDefault(); run(); } },
    body,
    el("div", { class: "act" }, button, examples, halt),
    status,
  );
  const missing = el("div", { class: "missing", hidden: true });
  const panel = el(
    "section",
    { class: "panel", role: "tabpanel", id: `panel-${id}`, "aria-labelledby": `tab-${id}`, tabindex: -1, hidden: true },
    el("h2", { "data-t": `${id}.title` }),
    el("p", { class: "lead", "data-t": `${id}.lead` }),
    missing, form, unreadable, result, program.node,
  );

  let known = [];
  let running = null;
  let last = null;
  let visited = false;
  let chosen = false; // the user has chosen a model
  let sample = 0; // the example that is shown
  let written = null; // what the fields held when it was written

  const model = () => known.find((one) => one.id === models.value) ?? known[0];
  const layers = () => model().depths[Number(slider.value)]; // the slider moves among the depths that the model was made for
  const depth = () => (layers() === model().depth ? null : layers());

  function sayDepth() {
    const full = model().depths.at(-1) ?? model().depth;
    depthSaid.textContent = layers() === full ? t("depth.full", { layers: full }) : t("depth.of", { depth: layers(), layers: full });
    slider.setAttribute("aria-valuetext", depthSaid.textContent);
  }
  function fit() {
    const one = model();
    if (!one) return;
    slider.max = one.depths.length - 1;
    slider.value = one.depths.indexOf(one.depth);
    depthBox.hidden = one.depths.length < 2; // a static model has no layers
    spec.fit?.(one);
    sayDepth();
  }
  /** Chinese examples on a Chinese page, if the model reads Chinese. */
  const examplesOf = (one) => spec.examples[language() === "zh-CN" && one?.can_read_chinese ? "zh" : "en"];
  const fields = () => JSON.stringify(spec.read());
  function write(place) {
    sample = place;
    spec.write(examplesOf(model())[place]);
    written = fields();
    for (const area of panel.querySelectorAll("textarea")) area.fit();
  }
  /** The first model that suits the tool; on a Chinese page, one that reads Chinese. */
  function pickModel() {
    const able = language() === "zh-CN" ? known.filter((one) => one.can_read_chinese) : [];
    const from = able.length ? able : known;
    models.value = (spec.prefer?.(from) ?? from[0])?.id ?? "";
  }
  models.addEventListener("change", () => {
    const untouched = fields() === written;
    chosen = true;
    fit();
    if (untouched) write(sample);
    run();
  });
  const again = debounce(() => run(), 250);
  slider.addEventListener("input", () => { sayDepth(); if (last) again(); });
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); }
  });

  function say(text, wrong = false) {
    status.textContent = text;
    status.classList.toggle("wrong", wrong);
  }

  async function run() {
    running?.abort();
    const mine = (running = new AbortController());
    let isReadable = true;
    mine.signal.addEventListener("unreadable", () => { isReadable = false; });
    const values = { ...spec.read(), model: model(), depth: spec.deep === false ? null : depth() };
    const slow = setTimeout(() => { panel.classList.add("busy"); halt.hidden = !spec.slow; say(t("working")); }, 150);
    result.setAttribute("aria-busy", "true");
    try {
      const reply = await spec.ask(values, mine.signal, (text) => say(text));
      if (mine.signal.aborted) return;
      last = { values, reply };
      unreadable.hidden = isReadable;
      redraw();
      say(spec.said?.(last) ?? took(reply));
    } catch (error) {
      if (running !== mine) return; // something newer is under way
      if (error.name === "AbortError") say(t("stopped"));
      else say(error instanceof Problem ? error.message : t("error.other", { what: error.message }), true);
      result.classList.add("stale");
    } finally {
      clearTimeout(slow);
      if (running === mine) {
        panel.classList.remove("busy");
        halt.hidden = true;
        result.setAttribute("aria-busy", "false");
      }
    }
  }
  function took({ compute, all }) {
    if (compute === null || compute === undefined) return t("took.all", { all: number(all) });
    return t("took", { compute: number(compute, compute < 10 ? 1 : 0), all: number(all) });
  }
  function redraw() {
    if (!last) return;
    result.classList.remove("stale");
    result.replaceChildren(...[spec.draw(last.reply, last.values)].flat());
    translate(result);
    showCode();
  }
  function showCode() {
    if (last) program.show(spec.code(last.values, last.reply));
  }
  spec.refresh = showCode;

  function lack() {
    const commands = el("code", { text: spec.make.join("\n") });
    const pre = el("pre", { tabindex: 0, "data-t-label": `${id}.tab` }, commands);
    const copy = el("button", { type: "button", class: "quiet copy", "data-t": "code.copy", onclick: () => clip(commands.textContent, pre) });
    missing.replaceChildren(el("p", { "data-t": spec.builtin ? "missing.builtin" : "missing" }), el("div", { class: "pasted" }, pre, copy));
    missing.hidden = false;
    body.disabled = button.disabled = true;
    form.classList.add("off");
  }

  return {
    id, panel, group: spec.group,
    /** Which of the served models this tool can use; whether there is one. */
    offer(served) {
      known = served.filter((one) => spec.needs.some((ability) => one.endpoints.includes(ability)) && (spec.fits?.(one) ?? true));
      models.replaceChildren(...known.map((one) => el("option", { value: one.id, text: one.id })));
      pickModel();
      modelBox.hidden = known.length < 2;
      spec.examples.en.forEach((example, place) => {
        const use = () => { write(place); run(); };
        examples.append(el("button", { type: "button", class: "chip", "data-t": example.name ?? "examples", onclick: use }));
      });
      if (spec.examples.en.length < 2 || !known.length) examples.hidden = true;
      if (known.length) fit(); else lack();
      write(0);
      return known.length > 0;
    },
    /** The panel comes into view; the first time, its first example is shown at work. */
    show() {
      panel.hidden = false;
      for (const area of panel.querySelectorAll("textarea")) area.fit();
      spec.shown?.();
      if (!visited && known.length) run();
      visited = true;
    },
    hide() { panel.hidden = true; },
    /** After the switch between server and browser: results are computed again when they are next seen. */
    again() {
      if (!visited) return;
      visited = !panel.hidden;
      if (visited) run();
    },
    /** After a change of language or theme. An example that nobody has edited follows the language. */
    renew() {
      const before = written;
      if (known.length && fields() === written) {
        const old = models.value;
        if (!chosen) pickModel();
        if (models.value !== old) fit();
        write(sample);
      }
      translate(panel);
      if (known.length) sayDepth();
      redraw();
      if (written === before) return;
      if (panel.hidden) visited = false; // runs when it is shown again
      else if (visited) run();
    },
  };
}
