// Attention maps: a picture of one layer and head, and the tokens that one token attends to. All data is in the page.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const ink = matchMedia("(prefers-color-scheme: dark)");
const plain = (token) => token.replace(/^▁|^##/, "") || "␣";

function option(select, value, text) {
  const made = document.createElement("option");
  made.value = value;
  made.textContent = text;
  select.append(made);
}

/** Squares of n × n numbers, `rows` by `columns` of them, with a line between; `at` gives a number from 0 to 1. */
function paint(canvas, n, rows, columns, at) {
  const [gap, wide] = [Number(rows * columns > 1), (size) => size * (n + Number(rows * columns > 1))];
  [canvas.width, canvas.height] = [wide(columns), wide(rows)];
  const image = new ImageData(canvas.width, canvas.height);
  const [paper, full] = ink.matches ? [[28, 33, 36], [92, 195, 203]] : [[255, 255, 255], [10, 109, 119]];
  for (let y = 0; y < canvas.height; y++) {
    for (let x = 0; x < canvas.width; x++) {
      const [from, to] = [y % (n + gap), x % (n + gap)];
      if (from === n || to === n) continue;
      const share = Math.sqrt(at(Math.floor(y / (n + gap)), Math.floor(x / (n + gap)), from, to)); // the root brings out small ones
      const place = 4 * (y * canvas.width + x);
      for (let c = 0; c < 3; c++) image.data[place + c] = paper[c] + (full[c] - paper[c]) * share;
      image.data[place + 3] = 255;
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** Where in a canvas was clicked, as shares of its height and width. */
function clicked(event) {
  const box = event.currentTarget.getBoundingClientRect();
  return [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
}

function view(map, root) {
  const [layer, head, from] = root.querySelectorAll("select");
  const [all, canvas] = root.querySelectorAll("canvas");
  const [list, said] = [root.querySelector(".pieces"), root.querySelector("[role=status]")];
  const n = map.tokens.length;
  const maps = bytes(map.data);
  const rolled = bytes(map.rollout);
  option(layer, "rollout", "all, rolled out");
  map.layers.forEach((number, i) => option(layer, i, number));
  map.heads.forEach((name, i) => option(head, i, name));
  map.tokens.forEach((token, i) => option(from, i, `${i + 1} ${plain(token)}`));
  const heads = map.heads.length;
  all.style.maxWidth = `${Math.min(40, 7 * heads)}rem`; // few columns stay small, or a page of many layers has no end
  const read = (l, h, a, b) => maps[((l * heads + h) * n + a) * n + b] / 255;
  const at = (a, b) => (layer.value === "rollout" ? rolled[a * n + b] / 255 : read(Number(layer.value), Number(head.value), a, b));
  function look() {
    const own = Number(from.value);
    list.replaceChildren(...map.tokens.map((token, i) => {
      const item = document.createElement("li");
      const share = at(own, i);
      item.style.setProperty("--share", 0.6 * Math.sqrt(share));
      item.className = i === own ? "from" : "";
      const small = document.createElement("small");
      small.textContent = ` ${Math.round(100 * share)} %`;
      item.append(plain(token), small);
      return item;
    }));
    said.textContent = `What “${plain(map.tokens[own])}” looks at:`;
  }
  function draw() {
    head.disabled = layer.value === "rollout";
    paint(canvas, n, 1, 1, (l, h, a, b) => at(a, b));
    look();
  }
  for (const select of [layer, head]) select.addEventListener("change", draw);
  from.addEventListener("change", look);
  all.addEventListener("click", (event) => {
    const [y, x] = clicked(event);
    layer.value = Math.min(map.layers.length - 1, Math.floor(y * map.layers.length));
    head.value = Math.min(heads - 1, Math.floor(x * heads));
    draw();
  });
  canvas.addEventListener("click", (event) => {
    from.value = Math.min(n - 1, Math.floor(clicked(event)[0] * n));
    look();
  });
  function whole() {
    paint(all, n, map.layers.length, heads, read);
    draw();
  }
  ink.addEventListener("change", whole);
  from.value = map.from;
  whole();
}

data.forEach((map, i) => view(map, document.getElementById(`map-${i}`)));
