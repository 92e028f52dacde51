// Compare: the similarity of every text with every other.

import { Problem, ask, vectors } from "./api.js";
import { heatMap, legend } from "./charts.js";
import { cli, curl, opened, pyList } from "./code.js";
import { el, lines, short } from "./dom.js";
import { field, makeTool } from "./tool.js";
import { number, t } from "./messages.js";

const MOST = 40;
const area = field("textarea", "compare.texts", { rows: 6 });

/** The two most alike texts and the two least alike ones. */
function extremes(scores) {
  const pairs = scores.flatMap((line, row) => line.slice(0, row).map((value, column) => ({ row: column, column: row, value })));
  pairs.sort((a, b) => b.value - a.value);
  return [["compare.most", pairs[0]], ["compare.least", pairs.at(-1)]];
}

function draw({ answer }, { texts, model, depth }) {
  const said = el("p", { class: "readout" });
  const watch = (row, column) => {
    said.replaceChildren(
      el("b", { text: number(answer.scores[row][column], 3) }), ` ${short(texts[row], 60)} · ${short(texts[column], 60)}`,
    );
  };
  const table = heatMap(answer.scores, texts, t("compare.table"), watch);
  const first = extremes(answer.scores);
  watch(first[0][1].row, first[0][1].column);
  const download = async () => {
    const { rows } = await vectors(model.id, texts, depth ? { depth } : {});
    const data = texts.map((text, i) => ({ text, vector: Array.from(rows[i]) }));
    const link = el("a", { href: URL.createObjectURL(new Blob([JSON.stringify(data)], { type: "application/json" })), download: "vectors.json" });
    link.click();
    URL.revokeObjectURL(link.href);
  };
  return [
    el("div", { class: "scroll", tabindex: 0, role: "region", "data-t-label": "compare.table" }, table),
    el("div", { class: "under" }, said, legend()),
    el("dl", { class: "facts" }, first.map(([key, { row, column, value }]) => el(
      "div", {}, el("dt", { "data-t": key }),
      el("dd", {}, el("b", { text: number(value, 2) }), el("span", { text: texts[row] }), el("span", { text: texts[column] })),
    ))),
    el("button", { type: "button", class: "quiet", "data-t": "compare.download", onclick: download }),
  ];
}

export const compare = makeTool({
  id: "compare", group: 1, needs: ["similar"], builtin: true,
  make: ["albertkit serve small"],
  fields: [area.node],
  examples: { en: [
    {
      name: "example.topics",
      texts: [
        "A man plays the guitar.", "Someone is making music.", "It rains all day long.", "The weather is terrible.",
        "The bank raised its interest rates.", "Loans will cost more from now on.",
      ],
    },
    {
      name: "example.questions",
      texts: [
        "How do I get my money back?", "What is your refund policy?", "Where can I park my car?", "Is there a garage near the hotel?",
        "When does breakfast start?",
      ],
    },
    { name: "example.order", texts: ["The dog bit the man.", "The man bit the dog.", "A dog has bitten somebody.", "The dog did not bite anybody."] },
  ], zh: [
    { texts: ["有人在弹吉他。", "他正在演奏音乐。", "雨下了一整天。", "今天天气很糟糕。", "银行提高了利率。", "以后贷款会更贵。"] },
    { texts: ["怎样才能退款？", "你们的退货政策是什么？", "车可以停在哪里？", "酒店附近有停车场吗？", "早餐几点开始？"] },
    { texts: ["狗咬了人。", "人咬了狗。", "有人被狗咬了。", "狗没有咬人。"] },
  ] },
  read: () => ({ texts: lines(area.input.value) }),
  write: ({ texts }) => { area.input.value = texts.join("\n"); },
  ask({ texts, model, depth }, signal) {
    if (texts.length < 2) throw new Problem(t("error.texts"));
    if (texts.length > MOST) throw new Problem(t("error.many", { count: texts.length, most: MOST }));
    return ask("similar", body(texts, model, depth), signal);
  },
  draw,
  code: ({ texts, model, depth }) => ({
    python: `${opened(model.id)}texts = ${pyList(texts)}\nprint(albert.similarity(texts${depth ? `, depth=${depth}` : ""}).round(2))`,
    curl: curl("similar", body(texts, model, depth)),
    cli: cli("similar", "-m", model.id, ...(depth ? ["--depth", depth] : []), "--", ...texts),
  }),
});

function body(texts, model, depth) {
  return { texts, model: model.id, ...(depth ? { depth } : {}) };
}
