// Attention: a small map for each layer and head, one of them large, and the words with what one of them looks at.

import { css, ink, shade } from "./charts.js";
import { el, roving } from "./dom.js";
import { number, t } from "./messages.js";

const SMALL = 44; // pixels of a small map

/** Small differences matter where attention is spread thin: the root brings them out. */
const seen = (share) => Math.sqrt(share);

/** A piece as people write it. */
export const plain = (token) => token.text.replace(/^▁/, "").replace(/^##/, "") || "␣";

const hint = (key) => el("p", { class: "hint", "data-t": key });

function paint(canvas, attention, layer, head, size) {
  const n = attention.tokens;
  canvas.width = canvas.height = n;
  const image = new ImageData(n, n);
  for (let from = 0; from < n; from++) {
    for (let to = 0; to < n; to++) image.data.set([...shade(seen(attention.at(layer, head, from, to))), 255], 4 * (from * n + to));
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  canvas.style.width = canvas.style.height = `${size}px`;
}

/** The maps of all heads; `chosen` is {layer, head}, `tell` hears a new choice. */
export function attentionView(attention, tokens, chosen, tell) {
  let { layer, head } = chosen;
  let from = Math.max(0, tokens.findIndex((token) => token.text === "[MASK]"));
  if (!from) from = Math.min(1, tokens.length - 1);
  const title = el("h4", { class: "small" });
  const words = el("div", { class: "looks", role: "group", "data-t-label": "explain.pick" });
  const large = el("div", { class: "large" });
  const said = el("p", { class: "readout" });
  const grid = el("div", { class: "grid", role: "group", "data-t-label": "explain.grid", vars: { "--heads": attention.heads } });
  const buttons = [];
  const place = (text) => el("span", { "aria-hidden": "true", text });
  grid.append(place(""), ...Array.from({ length: attention.heads }, (_, h) => place(String(h + 1))));
  for (let l = 0; l < attention.layers; l++) {
    grid.append(place(String(l + 1)));
    for (let h = 0; h < attention.heads; h++) {
      const canvas = el("canvas", { "aria-hidden": "true" });
      paint(canvas, attention, l, h, SMALL);
      const button = el("button", { type: "button", class: "small-map", onclick: () => choose(l, h), "data-place": `${l}-${h}` }, canvas);
      button.setAttribute("aria-label", t("explain.head", { layer: l + 1, head: h + 1 }));
      buttons.push(button);
      grid.append(button);
    }
  }
  roving(grid, "button", () => attention.heads);

  function choose(l, h) {
    [layer, head] = [l, h];
    show();
    tell({ layer, head });
  }
  function look(to) {
    const share = number(100 * attention.at(layer, head, from, to), 1);
    said.textContent = t("explain.from", { from: plain(tokens[from]), to: plain(tokens[to]), share });
  }
  function point(row, column) {
    if (row !== from) {
      from = row;
      show();
    }
    look(column);
  }
  function strongest() {
    let best = 0;
    for (let to = 1; to < tokens.length; to++) if (attention.at(layer, head, from, to) > attention.at(layer, head, from, best)) best = to;
    return best;
  }
  function show(focused) {
    title.textContent = t("explain.head", { layer: layer + 1, head: head + 1 });
    buttons.forEach((button, i) => {
      const here = i === layer * attention.heads + head;
      button.setAttribute("aria-pressed", String(here));
      button.tabIndex = here ? 0 : -1;
    });
    words.replaceChildren(...tokens.map((token, i) => {
      const share = attention.at(layer, head, from, i);
      const colour = shade(seen(share));
      const node = el("button", {
        type: "button", class: i === from ? "look from" : "look", vars: { background: css(colour), color: ink(colour) },
        "aria-pressed": String(i === from), onclick: () => { from = i; show(true); },
      }, el("span", { text: plain(token) }), el("small", { text: `${number(100 * share)} %` }));
      if (focused && i === from) requestAnimationFrame(() => node.focus());
      return node;
    }));
    large.replaceChildren(largeMap(attention, tokens, layer, head, from, point));
    look(strongest());
  }
  show();
  return el(
    "div", { class: "attention" },
    el("div", { class: "maps" }, hint("explain.grid"), el("div", { class: "scroll", tabindex: 0, role: "region", "data-t-label": "explain.grid" }, grid)),
    el("div", { class: "chosen" }, title, hint("explain.pick"), words, said, hint("explain.map"), large),
  );
}

/** One head's map with the words beside it; pointing at a cell tells its row and column. */
function largeMap(attention, tokens, layer, head, from, point) {
  const n = tokens.length;
  const canvas = el("canvas", { class: "map", role: "img", "aria-label": t("explain.head", { layer: layer + 1, head: head + 1 }) });
  paint(canvas, attention, layer, head, 0);
  canvas.style.removeProperty("width");
  canvas.style.removeProperty("height");
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    const at = (offset, size) => Math.min(n - 1, Math.max(0, Math.floor((offset / size) * n)));
    return [at(event.clientY - box.top, box.height), at(event.clientX - box.left, box.width)];
  };
  canvas.addEventListener("click", (event) => point(...place(event)));
  const name = (token, i) => el("span", { text: plain(token), class: i === from ? "from" : "" });
  const names = (kind) => el("div", { class: kind, "aria-hidden": "true" }, tokens.map(name));
  return el("div", { class: n > 40 ? "labelled dense" : "labelled", vars: { "--n": n } }, names("columns-of"), names("rows-of"), canvas);
}
