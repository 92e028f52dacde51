// All messages of the page, in English and in Chinese. {name} is filled in.

export const MESSAGES = {
  "skip": ["Skip to the tool", "跳到工具"],
  "docs": ["API", "接口"],
  "tools": ["Tools", "工具"],
  "served": ["Served models", "当前模型"],
  "served.facts": ["{layers} layers · {parameters} · {weights}", "{layers} 层 · {parameters} · {weights}"],
  "served.parameters": ["{count} parameters", "{count} 参数"],
  "opening": ["Loading the list of models…", "正在加载模型列表……"],
  "language": ["中文", "English"],
  "language.label": ["Switch the language to Chinese", "切换到英文"],
  "theme.dark": ["Switch to dark colours", "切换到深色"],
  "theme.light": ["Switch to light colours", "切换到浅色"],
  "footer": [
    "Your texts are sent to this server only and are not logged.",
    "文本只发送到这台服务器，不会写入日志。",
  ],
  "local": ["Run in this browser", "在浏览器中运行"],
  "local.loading": ["Downloading {name}: {percent} %", "正在下载 {name}：{percent} %"],
  "local.on": ["Everything runs in this browser. No request is sent.", "全部在浏览器中运行，不发送任何请求。"],
  "local.some": ["Runs in this browser: {names}. Other models need the server.", "在浏览器中运行：{names}。其他模型需要服务器。"],
  "local.missing": [
    "The server has no onnxruntime-web. Run  npm install onnxruntime-web@{version}  in the folder where the server starts, then restart it.",
    "服务器上没有 onnxruntime-web。请在启动服务器的文件夹中运行  npm install onnxruntime-web@{version}，然后重启服务器。",
  ],
  "local.tool": ["This tool or model needs the server. Turn off “Run in this browser”.", "此工具或模型需要服务器。请关闭“在浏览器中运行”。"],
  "key.label": ["This server requires an API key", "此服务器需要 API 密钥"],
  "key.use": ["Continue", "继续"],
  "key.hint": ["The key is kept until you close this window.", "关闭此窗口后，密钥不再保留。"],

  "error.unreachable": ["The server does not respond. Is it still running?", "服务器没有响应。它还在运行吗？"],
  "error.status": ["The server answered with status {status}.", "服务器返回状态码 {status}。"],
  "error.again": ["Try again in {seconds} s.", "请在 {seconds} 秒后重试。"],
  "error.json": ["The server's response is not JSON.", "服务器的响应不是 JSON。"],
  "error.empty": ["Enter some text first.", "请先输入内容。"],
  "error.texts": ["Enter at least two texts, one per line.", "请至少输入两段文本，每行一段。"],
  "error.many": ["There are {count} texts; this page shows at most {most}.", "共有 {count} 段文本，本页最多显示 {most} 段。"],
  "error.mask": ["Write [MASK] where a word is missing.", "请在缺词处写上 [MASK]。"],
  "error.large": ["The text has {count} parts; this page takes at most {most}.", "文本分成了 {count} 段，本页最多接受 {most} 段。"],
  "error.file": ["{name} is not a text file in UTF-8.", "{name} 不是 UTF-8 文本文件。"],
  "error.other": ["Something went wrong on this page: {what}", "页面出错了：{what}"],

  "model": ["Model", "模型"],
  "depth": ["Depth", "深度"],
  "depth.of": ["{depth} of {layers}", "{depth} / {layers}"],
  "depth.full": ["all {layers}", "全部 {layers} 层"],
  "examples": ["Examples", "示例"],
  "example.topics": ["Music, weather, money", "音乐、天气、金钱"],
  "example.questions": ["Questions", "提问"],
  "example.order": ["Same words, different meaning", "用词相同，意思不同"],
  "example.capital": ["Capital", "首都"],
  "example.two": ["Two masks", "两个空格"],
  "example.history": ["History", "历史"],
  "example.mask": ["A mask", "一个空格"],
  "example.senses": ["Two meanings", "一词多义"],
  "example.who": ["What does “it” mean?", "“它”指什么？"],
  "unreadable": [
    "The model cannot read this text: most of its characters are not in the vocabulary, so the result is meaningless. Choose a model for the language of the text.",
    "模型读不懂这段文本：大部分字符不在词表中，结果没有意义。请选择支持该语言的模型。",
  ],
  "working": ["Working…", "计算中……"],
  "took": ["{compute} ms of computing, {all} ms in total.", "计算 {compute} 毫秒，共 {all} 毫秒。"],
  "took.all": ["Done in {all} ms.", "用时 {all} 毫秒。"],
  "stop": ["Stop", "停止"],
  "stopped": ["Stopped.", "已停止。"],
  "code": ["Use it in your own program", "在自己的程序里使用"],
  "code.python": ["Python", "Python"],
  "code.curl": ["curl", "curl"],
  "code.cli": ["Command line", "命令行"],
  "code.copy": ["Copy", "复制"],
  "code.copied": ["Copied", "已复制"],
  "code.folder": ["the folder of the model “{name}”", "模型“{name}”所在的文件夹"],
  "code.saved": ["your text, saved as {name}", "把文本保存为 {name}"],
  "code.all": ["this command always uses all layers", "此命令总是使用全部层"],

  "missing": [
    "No served model can do this. Fine-tune one on your own examples and serve it:",
    "当前没有支持此功能的模型。用自己的样本微调一个，再启动服务：",
  ],
  "missing.builtin": [
    "No served model can do this. A built-in model can:",
    "当前没有支持此功能的模型。可以使用内置模型：",
  ],
  "missing.tab": ["no model", "无模型"],

  "compare.tab": ["Compare", "比较"],
  "compare.title": ["How similar are they?", "它们有多相似？"],
  "compare.lead": [
    "Each text becomes a vector. The similarity is the cosine of two vectors: about 1 for the same meaning, about 0 for unrelated texts.",
    "每段文本变成一个向量。相似度是两个向量的余弦：意思相同时接近 1，毫不相关时接近 0。",
  ],
  "compare.texts": ["Texts, one per line", "文本，每行一段"],
  "compare.run": ["Compare", "比较"],
  "compare.table": ["Similarity of each pair of texts", "每两段文本的相似度"],
  "compare.most": ["Most similar", "最相似"],
  "compare.least": ["Least similar", "最不相似"],
  "compare.download": ["Download the vectors", "下载向量"],

  "search.tab": ["Search", "搜索"],
  "search.title": ["Search by meaning", "按语义搜索"],
  "search.lead": [
    "Paste a text or choose a file, then search it by meaning. The wording may differ.",
    "粘贴文本或选择文件，按语义查找其中的内容，用词可以不同。",
  ],
  "search.text": ["Text to search", "要搜索的文本"],
  "search.file": ["Choose a file", "选择文件"],
  "search.drop": ["or drop one here", "或把文件拖到这里"],
  "search.parts": ["Split into", "切分为"],
  "search.lines": ["lines", "行"],
  "search.paragraphs": ["paragraphs", "段落"],
  "search.query": ["What are you looking for?", "想找什么？"],
  "search.run": ["Search", "搜索"],
  "search.reading": ["Embedding part {done} of {count}…", "正在计算向量：{done} / {count} 段……"],
  "search.indexed": [
    "{count} parts searched; {compute} ms of computing for this query.",
    "共 {count} 段；本次查询计算 {compute} 毫秒。",
  ],
  "search.line": ["line {line}", "第 {line} 行"],

  "fill.tab": ["Fill a mask", "填词"],
  "fill.title": ["Predict the missing word", "预测缺失的词"],
  "fill.lead": [
    "Write [MASK] where a word is missing, and the model predicts it.",
    "在缺词处写上 [MASK]，模型会预测这个词。",
  ],
  "fill.text": ["Text with [MASK]", "带 [MASK] 的文本"],
  "fill.insert": ["Insert [MASK]", "插入 [MASK]"],
  "fill.run": ["Fill", "填词"],
  "fill.mask": ["Mask {number}", "空格 {number}"],
  "fill.guesses": ["Most likely words", "最可能的词"],

  "classify.tab": ["Classify", "分类"],
  "classify.title": ["Classify texts", "文本分类"],
  "classify.lead": ["The class of each line, with its probability.", "每一行的类别及其概率。"],
  "classify.texts": ["Texts, one per line", "文本，每行一段"],
  "classify.pairs": ["Second texts, one per line, for a model of text pairs (optional)", "第二段文本，每行一段，用于文本对模型（可留空）"],
  "classify.run": ["Classify", "分类"],
  "classify.value": ["value {value}", "数值 {value}"],
  "classify.none": ["none", "无"],

  "tag.tab": ["Entities", "实体"],
  "tag.title": ["Find entities", "识别实体"],
  "tag.lead": [
    "People, places and other entities that the model was trained on.",
    "人名、地名，以及模型训练过的其他实体类型。",
  ],
  "tag.texts": ["Texts, one per line", "文本，每行一段"],
  "tag.run": ["Find entities", "识别"],
  "tag.none": ["No entities in this text.", "没有找到实体。"],
  "tag.intent": ["Intent: {intent}", "意图：{intent}"],

  "answer.tab": ["Answer", "问答"],
  "answer.title": ["Answer a question", "阅读理解"],
  "answer.lead": ["The model finds the answer in your text and highlights it.", "模型在原文中找到答案并标出。"],
  "answer.context": ["Paragraph", "段落"],
  "answer.question": ["Question", "问题"],
  "answer.run": ["Answer", "回答"],
  "answer.none": ["The paragraph does not answer this question.", "这段文字里没有答案。"],
  "answer.others": ["Other candidates", "其他候选"],

  "explain.tab": ["Explain", "解释"],
  "explain.title": ["How a prediction forms", "预测如何形成"],
  "explain.lead": [
    "ALBERT applies one layer repeatedly. See the prediction after each layer, where early exit would stop, and the attention of each head.",
    "ALBERT 反复使用同一层。查看每一层之后的预测、会在哪一层提前退出，以及每个注意力头关注什么。",
  ],
  "explain.text": ["Text", "文本"],
  "explain.pair": ["Second text, for a model of text pairs (optional)", "第二段文本，用于文本对模型（可留空）"],
  "explain.question": ["Question about the text", "关于文本的问题"],
  "explain.run": ["Explain", "解释"],
  "explain.layers": ["Layer by layer", "逐层"],
  "explain.layer": ["Layer", "层"],
  "explain.says": ["Prediction", "预测"],
  "explain.sure": ["Confidence", "置信度"],
  "explain.still": ["Cosine with the previous exit", "与上一出口的余弦"],
  "explain.agreement": ["Cosine with full depth", "与全部层的余弦"],
  "explain.threshold": ["Exit at this confidence", "达到此置信度时提前退出"],
  "explain.threshold.vector": ["Exit at this cosine with the previous exit", "与上一出口的余弦达到此值时提前退出"],
  "explain.exit": [
    "Early exit would stop after layer {layer} of {layers}: {saved} % less work.",
    "在第 {layer} 层提前退出（共 {layers} 层）：计算量减少 {saved} %。",
  ],
  "explain.exit.same": ["The prediction is the same as at full depth.", "预测与全部层相同。"],
  "explain.exit.other": ["The prediction differs from full depth.", "预测与全部层不同。"],
  "explain.exit.never": ["This confidence is never reached: all {layers} layers are used.", "没有达到此置信度：使用全部 {layers} 层。"],
  "explain.calibrated": ["early_exit=\"99%\" exits after layer {layer}.", "early_exit=\"99%\" 会在第 {layer} 层退出。"],
  "explain.stable": ["The prediction stays the same from layer {layer} on.", "从第 {layer} 层起，预测不再改变。"],
  "explain.attention": ["Attention of the heads", "各注意力头的注意力"],
  "explain.grid": ["Layers from top to bottom, heads from left to right", "从上到下是层，从左到右是头"],
  "explain.head": ["Layer {layer}, head {head}", "第 {layer} 层，第 {head} 头"],
  "explain.pick": ["Choose a token to see what it attends to", "选择一个词元，看它关注哪里"],
  "explain.map": ["From each token (rows) to each token (columns)", "每个词元（行）对每个词元（列）的关注"],
  "explain.from": ["{from} attends to {to}: {share} %", "{from} 关注 {to}：{share} %"],
  "explain.weak": ["Attention is not shown: the text is longer than {most} tokens.", "文本超过 {most} 个词元，不显示注意力。"],

  "depth.tab": ["Depth", "深度"],
  "depth.title": ["Fewer layers, faster", "层数更少，速度更快"],
  "depth.lead": [
    "All layers share their weights, so you can use fewer of them. Move the slider to compare speed and agreement with full depth.",
    "各层共享权重，因此可以少用几层。移动滑块，比较速度和与全部层的一致程度。",
  ],
  "depth.texts": ["Texts to measure with, one per line", "用来测量的文本，每行一段"],
  "depth.run": ["Measure", "测量"],
  "depth.measuring": ["Measuring text {done} of {count}…", "正在测量第 {done} / {count} 段……"],
  "depth.slider": ["Layers", "层数"],
  "depth.speed": ["speedup over full depth", "相对全部层的加速"],
  "depth.rate": ["texts per second", "每秒文本数"],
  "depth.vectors": ["cosine with the vectors of full depth", "与全部层向量的余弦"],
  "depth.answers": ["predictions as at full depth", "预测与全部层相同"],
  "depth.nearest": ["texts with the same nearest neighbour", "最近邻不变的文本"],
  "depth.better": ["Depth {depth} is faster and closer to full depth.", "深度 {depth} 更快，而且更一致。"],
  "depth.chart": ["Speed against agreement, one point per depth", "速度与一致度，每个点是一个深度"],
  "depth.axis.speed": ["speedup (×)", "速度倍数"],
  "depth.axis.agreement": ["agreement", "一致度"],
};

const LANGUAGES = ["en", "zh"];
const TAGS = { en: "en", zh: "zh-CN" };
let current = 0;

/** The language's tag, for the page and for numbers. */
export const language = () => TAGS[LANGUAGES[current]];

/** A message in the chosen language. */
export function t(key, values = {}) {
  const message = MESSAGES[key]?.[current];
  if (message === undefined) throw new Error(`no message for ${key}`);
  return message.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

/** Numbers as the language writes them. */
export const number = (value, digits = 0) =>
  new Intl.NumberFormat(language(), { minimumFractionDigits: digits, maximumFractionDigits: digits }).format(value);

/** Large numbers in short: 5.8M. */
export const brief = (value) => new Intl.NumberFormat(language(), { notation: "compact", maximumFractionDigits: 1 }).format(value);

/** Fill in messages: data-t for the text, data-t-label for the accessible name. */
export function translate(root) {
  for (const node of root.querySelectorAll("[data-t]")) node.textContent = t(node.dataset.t);
  for (const node of root.querySelectorAll("[data-t-label]")) node.setAttribute("aria-label", t(node.dataset.tLabel));
}

/** Set the language and store it; without one, use the stored one or the browser's. */
export function setLanguage(wanted) {
  let chosen = wanted;
  try {
    if (wanted) localStorage.setItem("language", wanted);
    else chosen = localStorage.getItem("language");
  } catch { /* no storage: the choice lasts until the page is closed */ }
  chosen ??= navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
  current = Math.max(0, LANGUAGES.indexOf(chosen));
  document.documentElement.lang = language();
}

export const otherLanguage = () => LANGUAGES[1 - current];
