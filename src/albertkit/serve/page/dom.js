// Elements in few words. Text is always text, never HTML, so nothing that a user or a model says can run.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, facts, children) {
  for (const [name, value] of Object.entries(facts ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "text") node.textContent = value;
    else if (name === "vars") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else if (name === "value" || name === "checked") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An HTML element: el("p", {class: "hint", text: "…"}, children…). `vars` are CSS variables, `onclick` a listener. */
export function el(tag, facts, ...children) {
  return fill(document.createElement(tag), facts, children);
}

/** An SVG element. */
export function svg(tag, facts, ...children) {
  return fill(document.createElementNS(SVG, tag), facts, children);
}

let count = 0;
/** A name that no other element has. */
export const fresh = (word) => `${word}-${++count}`;

/** Characters as the server counts them: whole code points, while JavaScript counts halves of rare ones. */
export const points = (text) => Array.from(text);

/** Lines that hold something. */
export const lines = (text) => text.split(/\r?\n/).map((line) => line.trim()).filter(Boolean);

/** A text cut short for a label. */
export function short(text, most = 40) {
  const all = points(text);
  return all.length > most ? `${all.slice(0, most - 1).join("").trimEnd()}…` : text;
}

/** Later, unless it is called again before. */
export function debounce(action, milliseconds) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
}

/** Arrow keys, Home and End move the focus among buttons of which one is in the tab order; `columns` for a grid. */
export function roving(box, selector, columns = () => 0) {
  box.addEventListener("keydown", (event) => {
    const all = [...box.querySelectorAll(selector)];
    const at = all.indexOf(event.target.closest(selector));
    if (at < 0) return;
    const wide = columns();
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide || 1, ArrowUp: -(wide || 1) };
    let next = event.key in steps ? at + steps[event.key] : -1;
    if (event.key === "Home") next = 0;
    else if (event.key === "End") next = all.length - 1;
    else if (!(event.key in steps)) return;
    event.preventDefault();
    if (wide ? next < 0 || next >= all.length : false) return;
    const target = all[(next + all.length) % all.length];
    target.focus();
    target.click();
  });
}
