// Speed against agreement: every trained depth of some texts, measured on this server now.

import { Problem, ask, dot, shownDepths } from "./api.js";
import { cli, curl, opened, py, pyList } from "./code.js";
import { el, fresh, lines, svg } from "./dom.js";
import { field, makeTool } from "./tool.js";
import { number, t } from "./messages.js";

const MOST = 12;
const ROUNDS = 3; // the fastest one counts
const area = field("textarea", "depth.texts", { rows: 5 });
let chosen = 0; // a depth

async function measure({ texts, model }, signal, say) {
  if (texts.length < 2) throw new Problem(t("error.texts"));
  if (texts.length > MOST) throw new Problem(t("error.many", { count: texts.length, most: MOST }));
  const began = performance.now();
  const found = [];
  for (const [at, text] of texts.entries()) {
    say(t("depth.measuring", { done: at + 1, count: texts.length }));
    const rounds = [];
    for (let round = 0; round < ROUNDS; round++) {
      rounds.push((await ask("explain", { text, model: model.id, vectors: true, k: 1 }, signal)).answer);
    }
    rounds[0].depths.forEach((one, i) => { one.milliseconds = Math.min(...rounds.map((round) => round.depths[i].milliseconds)); });
    found.push(rounds[0]);
  }
  return { points: summed(found), full: found[0].full_depth, kind: found[0].kind, count: texts.length, all: performance.now() - began };
}

/** Times that grow with depth, as they must: where one is shorter than the one before, both become their mean. */
function rising(times) {
  const groups = [];
  for (const time of times) {
    groups.push({ time, count: 1 });
    while (groups.length > 1 && groups.at(-2).time > groups.at(-1).time) {
      const [a, b] = groups.splice(-2);
      groups.push({ time: (a.time * a.count + b.time * b.count) / (a.count + b.count), count: a.count + b.count });
    }
  }
  return groups.flatMap(({ time, count }) => Array(count).fill(time));
}

/** For each depth: how fast, how much the vectors agree, and how many answers and neighbours stay. */
function summed(found) {
  const depths = shownDepths(found[0]);
  const nearest = (at) => found.map((mine, i) => {
    let best = -1;
    found.forEach((other, j) => {
      if (j === i) return;
      const score = dot(mine.depths[at].vector, other.depths[at].vector);
      if (best < 0 || score > dot(mine.depths[at].vector, found[best].depths[at].vector)) best = j;
    });
    return best;
  });
  const wanted = nearest(depths.length - 1);
  const sum = (at, read) => found.reduce((total, one) => total + read(one.depths[at]), 0);
  const times = rising(depths.map((_, at) => sum(at, (one) => one.milliseconds)));
  return times.map((milliseconds, at) => {
    return {
      depth: depths[at].depth, speed: times.at(-1) / milliseconds, rate: (1000 * found.length) / milliseconds,
      agreement: sum(at, (one) => one.cosine) / found.length,
      same: found.every((one) => one.depths[at].matches_full_depth !== null) ? sum(at, (one) => Number(one.matches_full_depth)) : null,
      kept: nearest(at).filter((place, i) => place === wanted[i]).length,
    };
  });
}

const [HIGH, LEFT, BELOW, ABOVE, RIGHT] = [320, 48, 52, 30, 26];

/** The depths for which no faster one agrees as much: these are worth choosing. */
function best(points) {
  return points
    .filter((one) => points.every((other) => other === one || other.speed < one.speed || other.agreement < one.agreement))
    .sort((a, b) => a.speed - b.speed);
}

function chart(points, at, wide, pick) {
  const fast = Math.max(...points.map((one) => one.speed)) * 1.04;
  const low = Math.min(0.8, Math.floor(Math.min(...points.map((one) => one.agreement)) * 5) / 5);
  const x = (speed) => LEFT + ((speed - 1) / Math.max(0.5, fast - 1)) * (wide - LEFT - RIGHT);
  const y = (agreement) => ABOVE + ((1 - agreement) / (1 - low)) * (HIGH - ABOVE - BELOW);
  const step = fast > 8 ? 2 : 1;
  const across = Array.from({ length: Math.floor((fast - 1) / step) + 1 }, (_, i) => 1 + i * step);
  const up = Array.from({ length: 5 }, (_, i) => low + ((1 - low) * i) / 4);
  const good = best(points);
  const line = good.map((one) => `${x(one.speed).toFixed(1)},${y(one.agreement).toFixed(1)}`).join(" ");
  const now = points[at];
  return svg(
    "svg", { viewBox: `0 0 ${wide} ${HIGH}`, class: "chart", role: "img", "aria-label": t("depth.chart") },
    up.map((value) => [
      svg("line", { class: "rule", x1: LEFT, x2: wide - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: LEFT - 12, y: y(value) + 4, "text-anchor": "end", text: number(value, 2) }),
    ]),
    across.map((value) => svg("text", { class: "tick", x: x(value), y: HIGH - BELOW + 24, "text-anchor": "middle", text: `${number(value)}×` })),
    svg("text", { class: "axis", x: wide - RIGHT, y: HIGH - 6, "text-anchor": "end", text: `${t("depth.axis.speed")} →` }),
    svg("text", { class: "axis", x: 0, y: 11, text: `↑ ${t("depth.axis.agreement")}` }),
    svg("polyline", { class: "curve", points: line }),
    points.map((one, i) => svg(
      "g", { class: good.includes(one) ? "dot good" : "dot", onclick: () => pick(i) },
      svg("circle", { class: "reach", cx: x(one.speed), cy: y(one.agreement), r: 14 }),
      svg("circle", { cx: x(one.speed), cy: y(one.agreement), r: 5 }),
    )),
    svg("circle", { class: "now", cx: x(now.speed), cy: y(now.agreement), r: 13 }),
    svg("text", { class: "label", x: x(now.speed), y: y(now.agreement) + 4.5, "text-anchor": "middle", text: String(now.depth) }),
  );
}

function draw({ points, full, kind, count }) {
  const place = () => points.findIndex((one) => one.depth === chosen);
  if (place() < 0) chosen = points[Math.floor((points.length - 1) / 2)].depth;
  const slider = el("input", { id: fresh("layers"), type: "range", min: 0, max: points.length - 1, step: 1, value: place() });
  const said = el("output", { for: slider.id, class: "said" });
  const box = el("div", { class: "plot" });
  const numbers = el("dl", { class: "numbers", "aria-live": "polite" });
  const advice = el("p", { class: "hint advice" });
  const good = best(points);
  const big = (value, key, unit = "") => el("div", {}, el("dt", { "data-t": key, text: t(key) }), el("dd", {}, value, el("small", { text: unit })));
  function show() {
    const one = points[place()];
    slider.value = place();
    said.textContent = t("depth.of", { depth: chosen, layers: full });
    slider.setAttribute("aria-valuetext", said.textContent);
    plot();
    const better = good.find((other) => other.speed >= one.speed && other.agreement > one.agreement);
    advice.textContent = better ? t("depth.better", { depth: better.depth }) : "";
    numbers.replaceChildren(
      big(number(one.speed, 1), "depth.speed", "×"),
      big(number(one.agreement, 3), "depth.vectors"),
      one.same === null || !kind ? big(String(one.kept), "depth.nearest", ` / ${count}`) : big(String(one.same), "depth.answers", ` / ${count}`),
      big(number(one.rate), "depth.rate"),
    );
    spec.refresh();
  }
  let wide = 0;
  function plot() {
    if (wide) box.replaceChildren(chart(points, place(), wide, (at) => { chosen = points[at].depth; show(); }));
  }
  new ResizeObserver(() => {
    const now = Math.round(box.clientWidth);
    if (now && now !== wide) { wide = now; plot(); }
  }).observe(box);
  slider.addEventListener("input", () => { chosen = points[Number(slider.value)].depth; show(); });
  queueMicrotask(show); // after the result stands, so that the program shown is that of this depth
  return [
    el("div", { class: "options" }, el("div", { class: "option grow" }, el("label", { for: slider.id, "data-t": "depth.slider" }), slider, said)),
    numbers, advice, box,
  ];
}

const spec = {
  id: "depth", group: 3, needs: ["explain"], builtin: true, deep: false, slow: true,
  make: ["albertkit serve small"],
  fields: [area.node],
  examples: { en: [{
    texts: [
      "A man plays the guitar.", "Someone is making music.", "It rains all day long.", "The weather is terrible.",
      "The bank raised its interest rates.", "Loans will cost more from now on.",
    ],
  }], zh: [{ texts: ["有人在弹吉他。", "他正在演奏音乐。", "雨下了一整天。", "今天天气很糟糕。", "银行提高了利率。", "以后贷款会更贵。"] }] },
  read: () => ({ texts: lines(area.input.value) }),
  write: ({ texts }) => { area.input.value = texts.join("\n"); },
  ask: measure,
  draw,
  code({ texts, model }) {
    return {
      python:
        `import time\n\n${opened(model.id)}texts = ${pyList(texts)}\nfull = albert.embed(texts)\n` +
        `for depth in [${model.depths.join(", ")}]:\n    began = time.perf_counter()\n    vectors = albert.embed(texts, depth=depth)\n` +
        `    took = time.perf_counter() - began\n    print(depth, round(1000 * took, 1), "ms", round(float((vectors * full).sum(1).mean()), 3))`,
      curl: curl("explain", { text: texts[0] ?? "", model: model.id, vectors: true, k: 1 }),
      cli: cli("embed", "-m", model.id, "--depth", model.depths.includes(chosen) ? chosen : model.depth, "--", ...texts),
    };
  },
};
export const depth = makeTool(spec);
