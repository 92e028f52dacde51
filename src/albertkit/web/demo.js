/** The demo page of `albertkit export --web`: compare, search and predict, in English or in the language of a Chinese model. */
import { Albert } from "./albertkit.js";

const TEXTS = {
  en: {
    title: "ALBERT in your browser",
    intro: "The model runs on this page. Your texts stay on this device, and the page works offline after the first visit.",
    loading: "Loading the model", ready: "Ready", threads: (count) => (count === 1 ? "1 thread" : `${count} threads`), working: "Computing",
    depth: "Depth (layers to apply: fewer are faster, more are better)",
    compare: "Compare texts", compareTexts: "One text per line", compareRun: "Compare",
    search: "Search notes", searchTexts: "Notes, one per line", searchAdd: "Add to the index", searchClear: "Clear the index",
    searchQuery: "Query", searchRun: "Search", indexed: (count) => `${count} notes in the index`,
    predictText: "Text", predictRun: "Predict", classify: "Classify", tag: "Find entities", fill: "Fill [MASK]", none: "no entity",
    examples: ["A man is playing the guitar", "Someone is making music", "It rains in the mountains"],
    notes: ["Return shoes within 30 days for a refund", "The train to Paris leaves at nine", "Water the plants twice a week", "Dentist appointment on Friday"],
    query: "How do I send back something I bought?", masked: "She drank a cup of [MASK].",
  },
  zh: {
    title: "浏览器中的 ALBERT",
    intro: "模型在本页面内运行。文本不会离开此设备；首次访问后，页面可离线使用。",
    loading: "正在加载模型", ready: "就绪", threads: (count) => `${count} 个线程`, working: "正在计算",
    depth: "深度（应用的层数：层少则快，层多则好）",
    compare: "比较文本", compareTexts: "每行一条文本", compareRun: "比较",
    search: "搜索笔记", searchTexts: "笔记，每行一条", searchAdd: "加入索引", searchClear: "清空索引",
    searchQuery: "查询", searchRun: "搜索", indexed: (count) => `索引中有 ${count} 条笔记`,
    predictText: "文本", predictRun: "预测", classify: "分类", tag: "识别实体", fill: "填充 [MASK]", none: "没有实体",
    examples: ["一个男人在弹吉他", "有人在演奏音乐", "山里下雨了"],
    notes: ["鞋子三十天内可以退货退款", "去北京的火车九点出发", "每周给花浇两次水", "周五看牙医"],
    query: "买的东西怎么退？", masked: "中国的首都是北[MASK]。",
  },
};

const find = (id) => document.getElementById(id);
const lines = (id) => find(id).value.split("\n").map((line) => line.trim()).filter(Boolean);
let texts = TEXTS.en;
let albert;
let index;

start().catch(showError);

async function start() {
  const [language] = await Promise.all([modelLanguage(), useServiceWorker()]);
  setLanguage(language);
  const began = performance.now();
  albert = await Albert.load("./model", { onProgress: showProgress, onWarning: showWarning });
  if (["embed", "match", "pretrain"].includes(albert.about.task)) await albert.embed([texts.query]);
  performance.mark("first vector");
  const seconds = ((performance.now() - began) / 1000).toFixed(1);
  const { name, threads } = albert.about;
  find("status").textContent = `${texts.ready}: ${name}, ${seconds} s, ${texts.threads(threads)}`;
  find("progress").hidden = true;
  fillForm();
  await openIndex();
  document.querySelector("main").hidden = false;
  document.documentElement.dataset.state = "ready";
}

async function modelLanguage() {
  const about = await fetch("./model/model.json").then((response) => response.json()).catch(() => ({}));
  return about.language === "Chinese" ? "zh" : "en";
}

/** Files that the service worker has served once are there offline; so the first visit loads the model through it. */
async function useServiceWorker() {
  const { serviceWorker } = navigator;
  const registering = serviceWorker?.register("./service-worker.js").catch(() => {}); // without it there is no offline use
  if (serviceWorker?.controller) serviceWorker.oncontrollerchange = reloadUnlessReady; // the host has a new export
  if (!serviceWorker || serviceWorker.controller) return;
  const worker = (await registering)?.installing; // none if it is active: a reload without the cache goes past it
  if (!worker) return;
  await new Promise((resolve) => {
    worker.onstatechange = () => ["activated", "redundant"].includes(worker.state) && resolve();
  });
}

function reloadUnlessReady() {
  if (document.documentElement.dataset.state !== "ready") location.reload();
}

function setLanguage(language) {
  texts = TEXTS[language];
  document.documentElement.lang = language;
  document.title = texts.title;
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = texts[element.dataset.text];
}

function fillForm() {
  const { depths, depth, task, parts } = albert.about;
  find("depth").replaceChildren(...depths.map((number) => new Option(number, number, number === depth, number === depth)));
  find("depth-row").hidden = depths.length < 2;
  find("depth").onchange = () => run(find("depth"), openIndex);
  find("compare-texts").value = texts.examples.join("\n");
  find("search-texts").value = texts.notes.join("\n");
  find("search-query").value = texts.query;
  find("compare-run").onclick = ({ target }) => run(target, compare);
  find("search-add").onclick = ({ target }) => run(target, addNotes);
  find("search-clear").onclick = ({ target }) => run(target, clearNotes);
  find("search-run").onclick = ({ target }) => run(target, search);
  const kind = ["classify", "tag"].includes(task) ? task : parts.includes("mlm") ? "fill" : null;
  find("predict").hidden = kind === null;
  if (kind === null) return;
  find("predict-title").textContent = texts[kind];
  find("predict-text").value = kind === "fill" ? texts.masked : texts.examples[0];
  find("predict-run").onclick = ({ target }) => run(target, () => predict(kind));
}

/** Run an action of a button. An error is shown, and the page goes on working. */
async function run(button, action) {
  find("error").hidden = find("warning").hidden = true;
  button.disabled = true;
  try {
    await action();
  } catch (error) {
    showError(error);
  } finally {
    button.disabled = false;
  }
}

const depthOption = () => (find("depth").value ? { depth: Number(find("depth").value) } : {});

async function openIndex() {
  index?.close();
  index = await albert.openIndex(`demo ${albert.about.id.slice(0, 16)} ${find("depth").value}`, depthOption());
  find("search-size").textContent = texts.indexed(index.size);
}

async function compare() {
  const rows = lines("compare-texts");
  const scores = await albert.similarity(rows, undefined, depthOption());
  find("compare-result").replaceChildren(
    ...rows.map((text, at) => {
      const row = document.createElement("tr");
      const title = Object.assign(document.createElement("th"), { scope: "row", textContent: text });
      row.append(title, ...scores[at].map((score) => make("td", score.toFixed(2))));
      return row;
    }),
  );
}

async function addNotes() {
  const onProgress = ({ done, total }) => (find("search-size").textContent = `${texts.working}: ${done} / ${total}`);
  try {
    await index.add(lines("search-texts"), { onProgress });
  } finally {
    find("search-size").textContent = texts.indexed(index.size);
  }
}

async function clearNotes() {
  await index.clear();
  find("search-result").replaceChildren();
  find("search-size").textContent = texts.indexed(0);
}

async function search() {
  const found = await index.search(find("search-query").value, { k: 5 });
  find("search-result").replaceChildren(...found.map(({ text, score }) => item(text, score.toFixed(2))));
}

async function predict(kind) {
  const text = find("predict-text").value;
  const [result] = kind === "fill" ? await albert.fill(text, depthOption()) : await albert[kind]([text], depthOption());
  const rows = {
    classify: () => Object.entries(result.probabilities ?? { [result.label]: result.probability }).sort((a, b) => b[1] - a[1]),
    tag: () => result.spans.map((span) => [`${span.text} (${span.label})`, span.score]),
    fill: () => result.map(({ word, score }) => [word, score]),
  }[kind]();
  const shown = rows.slice(0, 10).map(([name, number]) => item(name, number.toFixed(2)));
  find("predict-result").replaceChildren(...(shown.length ? shown : [make("li", texts.none)]));
}

function make(tag, text) {
  return Object.assign(document.createElement(tag), { textContent: text });
}

function item(text, number) {
  const made = make("li", `${text} `);
  made.append(make("span", number));
  return made;
}

function showProgress({ loaded, total }) {
  find("progress").value = loaded / Math.max(1, total);
  find("status").textContent = `${texts.loading}: ${(loaded / 1e6).toFixed(1)} / ${(total / 1e6).toFixed(1)} MB`;
}

function showWarning(message) {
  find("warning").textContent = message;
  find("warning").hidden = false;
}

function showError(error) {
  find("error").textContent = error.message;
  find("error").hidden = false;
  find("progress").hidden = true;
  document.documentElement.dataset.state ??= "failed";
}

