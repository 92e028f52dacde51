// The page: asks the server what it can do, makes a tab for each tool, and keeps language, colours and place.

import { Problem, ask, useKey } from "./api.js";
import { compare } from "./compare.js";
import { depth } from "./depth.js";
import { el, roving } from "./dom.js";
import { fill } from "./fill.js";
import { explain } from "./explain.js";
import { turnLocal } from "./local.js";
import { search } from "./search.js";
import { answer, classify, tag } from "./tasks.js";
import { brief, otherLanguage, setLanguage, t, translate } from "./messages.js";

const TOOLS = [compare, search, fill, classify, tag, answer, explain, depth];
const $ = (name) => document.querySelector(name);
const tabs = new Map();
let served = [];
let opened = false;

function choose(id, focus = false) {
  for (const tool of TOOLS) {
    const here = tool.id === id;
    const tab = tabs.get(tool.id);
    tab.setAttribute("aria-selected", String(here));
    tab.tabIndex = here ? 0 : -1;
    if (here) {
      if (focus) tab.focus();
      tab.scrollIntoView({ block: "nearest", inline: "nearest" });
      tool.show();
    } else tool.hide();
  }
  if (location.hash.slice(1) !== id) history.replaceState(null, "", `#${id}`);
}

function makeTabs() {
  const list = $(".tabs");
  for (const tool of TOOLS) {
    const there = tool.offer(served);
    const tab = el(
      "button",
      {
        type: "button", role: "tab", id: `tab-${tool.id}`, "aria-controls": `panel-${tool.id}`, "data-group": tool.group,
        class: there ? "tab" : "tab off", onclick: () => choose(tool.id),
      },
      el("span", { "data-t": `${tool.id}.tab` }),
      there ? null : " ", there ? null : el("small", { "data-t": "missing.tab" }),
    );
    tabs.set(tool.id, tab);
    list.append(tab);
    $("main").append(tool.panel);
  }
  roving(list, "[role=tab]");
}

function showServed() {
  $("#served").replaceChildren(...served.map((one) => {
    const parameters = t("served.parameters", { count: brief(one.parameters) });
    return el("li", {}, el("b", { text: one.id }), el("span", { text: t("served.facts", { layers: one.layers, parameters, weights: one.weights }) }));
  }));
  $(".served").hidden = false;
}

function words() {
  translate(document);
  const language = $("#language");
  language.textContent = t("language");
  language.setAttribute("aria-label", t("language.label"));
  language.lang = otherLanguage();
  const dark = document.documentElement.dataset.theme === "dark";
  const theme = $("#theme");
  theme.setAttribute("aria-label", t(dark ? "theme.light" : "theme.dark"));
  theme.textContent = dark ? "☀" : "☾";
  if (opened) showServed();
}

async function open() {
  const notice = $("#notice");
  try {
    served = (await ask("v1/models")).answer.data;
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    notice.removeAttribute("data-t");
    notice.textContent = error.status === 401 ? "" : error.message;
    $("#gate").hidden = error.status !== 401;
    if (error.status === 401) $("#key").focus();
    return;
  }
  notice.hidden = $("#gate").hidden = true;
  makeTabs();
  opened = true;
  $("#local").disabled = false;
  words();
  const wanted = location.hash.slice(1);
  choose(tabs.has(wanted) ? wanted : "compare");
  addEventListener("hashchange", () => { if (tabs.has(location.hash.slice(1))) choose(location.hash.slice(1)); });
}

setLanguage();
words();
document.documentElement.classList.add("ready");
$("#gate").addEventListener("submit", (event) => { event.preventDefault(); useKey($("#key").value.trim()); open(); });
$("#language").addEventListener("click", () => { setLanguage(otherLanguage()); words(); for (const tool of TOOLS) tool.renew(); });
$("#theme").addEventListener("click", () => {
  const wanted = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  dispatchEvent(new CustomEvent("theme-wanted", { detail: wanted }));
});
$("#local").addEventListener("change", async ({ target }) => {
  const status = $("#local-status");
  const say = (text) => { status.textContent = text; status.hidden = !text; };
  target.disabled = true;
  try {
    say(await turnLocal(target.checked, served, say));
  } catch (error) {
    target.checked = false;
    say(error.message);
  }
  target.disabled = false;
  for (const tool of TOOLS) tool.again();
});
addEventListener("theme", () => { words(); for (const tool of TOOLS) tool.renew(); });
matchMedia("(max-width: 60rem)").addEventListener("change", turn);
function turn() {
  $(".tabs").setAttribute("aria-orientation", matchMedia("(max-width: 60rem)").matches ? "horizontal" : "vertical");
}
turn();
await open();
