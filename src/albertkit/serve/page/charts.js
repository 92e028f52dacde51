// Colours for numbers, bars, and the heat map. One hue from pale to deep: it reads the same to every kind of colour vision, and in grey.

import { el } from "./dom.js";
import { number } from "./messages.js";

const RAMPS = {
  light: [[250, 249, 246], [205, 231, 231], [116, 190, 194], [23, 130, 140], [6, 66, 78]],
  dark: [[28, 33, 36], [20, 62, 70], [16, 104, 114], [52, 160, 169], [178, 235, 236]],
};

const theme = () => (document.documentElement.dataset.theme === "dark" ? "dark" : "light");

/** The colour of a number from 0 to 1, as [red, green, blue]. */
export function shade(value) {
  const ramp = RAMPS[theme()];
  const at = Math.min(1, Math.max(0, value)) * (ramp.length - 1);
  const low = Math.min(Math.floor(at), ramp.length - 2);
  return ramp[low].map((part, i) => Math.round(part + (ramp[low + 1][i] - part) * (at - low)));
}

export const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;

/** Black or white, whichever can be read on a colour: with these two the contrast is never below 4.5. */
export function ink(colour) {
  const [r, g, b] = colour.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

/** Rows of {label, value, said, onclick, best}: names, bars from 0 to 1, and the numbers. A list, so that it can be read aloud. */
export function bars(rows, facts = {}) {
  return el(
    "ul", { class: "bars", ...facts },
    rows.map((row) => {
      const parts = [
        el("span", { class: "name", text: row.label }),
        el("span", { class: "track" }, el("span", { class: "bar", vars: { "--share": Math.min(1, Math.max(0, row.value)) } })),
        el("span", { class: "value", text: row.said ?? `${number(100 * row.value, 1)} %` }),
      ];
      const inner = row.onclick
        ? el("button", { type: "button", class: "row", onclick: row.onclick, "aria-pressed": String(Boolean(row.best)) }, parts)
        : el("div", { class: "row" }, parts);
      return el("li", { class: row.best ? "best" : "" }, inner);
    }),
  );
}

/** A table of cosines with a colour for each cell. `heads` name rows and columns; `watch(row, column)` hears what is pointed at. */
export function heatMap(scores, heads, caption, watch) {
  const cell = (value, row, column) => {
    const colour = shade(value);
    return el("td", {
      text: number(value, 2), vars: { background: css(colour), color: ink(colour) },
      onpointerenter: () => watch(row, column),
    });
  };
  const span = (kind, text) => el("span", { class: kind, text });
  const top = el("tr", {}, el("td", { class: "corner" }), scores[0].map((_, i) => el("th", { scope: "col", text: String(i + 1) })));
  const rows = scores.map((line, row) =>
    el(
      "tr", {},
      el("th", { scope: "row", title: heads[row] }, span("place", String(row + 1)), span("told", heads[row])),
      line.map((value, column) => cell(value, row, column)),
    ),
  );
  const said = el("caption", { class: "hidden", text: caption });
  return el("table", { class: scores.length > 8 ? "heat many" : "heat" }, said, el("thead", {}, top), el("tbody", {}, rows));
}

/** The scale of the colours, from 0 to 1. */
export function legend() {
  const steps = Array.from({ length: 24 }, (_, i) => el("i", { vars: { background: css(shade(i / 23)) } }));
  return el("div", { class: "legend", "aria-hidden": "true" }, el("span", { text: "0" }), el("div", {}, steps), el("span", { text: "1" }));
}
