/**
 * Words of a text, windows of words, and tags to entities: `tasks/examples.py` and `tasks/tag.py` in JavaScript.
 * Places are those of JavaScript strings (UTF-16 units). After this file: `model.js`.
 */

import { decodeDeltas } from "./tokenizer-characters.js";

// Over the classes of `WordClasses`: U.S. · George W. Bush · all-rounder, O'Brien, 1,000.5 · ... · one character
const WORD =
  /(?:w\.){2,}(?![wd])|w\.(?= +w)|[wd][wdmz]*(?:(?:[-./&@']|(?<=d)[,:](?=d))[wd][wdmz]*)*|([-.'])\1+|[^ ](?:m|zx)*/g;
const CONTRACTION = /(?:n['’]t|['’](?:s|m|d|ll|ve|re))$/iu;

/** The class of each character: w letter, d digit, c Chinese, m modifier of the previous one, z joiner, x other mark, or the mark. */
export class WordClasses {
  #starts;
  #classes;

  /** The table of `word_classes` in `interop/character_tables.py`. */
  constructor([deltas, classes]) {
    this.#starts = decodeDeltas(deltas);
    this.#classes = classes;
  }

  get(character) {
    return this.#classes[lastBefore(this.#starts, character.codePointAt(0))];
  }
}

/** The words of a text as [start, end] places: runs of letters and digits, single marks, single Chinese characters. */
export function splitWords(text, wordClasses) {
  const characters = [...text];
  const places = [0];
  for (const character of characters) places.push(places.at(-1) + character.length);
  const words = [];
  for (const match of characters.map((character) => wordClasses.get(character)).join("").matchAll(WORD)) {
    const end = match.index + match[0].length;
    const own = characters.slice(match.index, end);
    const ending = own.length > 2 ? CONTRACTION.exec(own.join("")) : null;
    const cut = ending ? places[match.index] + ending.index : places[match.index];
    if (cut > places[match.index]) words.push([places[match.index], cut]);
    words.push([cut, places[end]]);
  }
  return words;
}

/** Ranges [first, last) of words that fit into `room` tokens and share at most `overlap` tokens. */
export function wordWindows(sizes, room, overlap) {
  const windows = [];
  let start = 0;
  for (;;) {
    let end = start;
    for (let used = 0; end < sizes.length && used + sizes[end] <= room; end++) used += sizes[end];
    windows.push([start, end]);
    if (end === sizes.length) return windows;
    start = end;
    for (let shared = sizes[end - 1]; shared <= overlap; ) {
      start--;
      shared += sizes[start - 1];
    }
  }
}

/** The [window, token] that predicts each word: its first token, in the window with the most context on both sides. */
export function labelTokens(windows, words) {
  const best = words.map(() => [-1, 0, 0]);
  const wordStarts = words.map(([start]) => start);
  windows.forEach(({ ids, starts }, number) => {
    const last = ids.length - 1;
    const owners = starts.slice(1, last).map((start) => lastBefore(wordStarts, start));
    owners.forEach((word, at) => {
      if (word === owners[at - 1]) return;
      const token = at + 1;
      const left = owners[0] === 0 ? Infinity : token;
      const right = owners.at(-1) === words.length - 1 ? Infinity : last - token;
      if (Math.min(left, right) > best[word][0]) best[word] = [Math.min(left, right), number, token];
    });
  });
  return best.map(([, number, token]) => [number, token]);
}

/** The number of the last one of sorted places that is at or before a place. */
function lastBefore(starts, place) {
  let low = 0, high = starts.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (starts[middle] <= place) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Entities of a text from scores (words, labels), with valid IOB2 tags. */
export function entities(text, words, scores, labels) {
  if (!words.length) return [];
  const logs = scores.map(logSoftmax);
  const path = bestPath(logs, labels);
  const tags = path.map((label) => labels[label]);
  const starts = tags.flatMap((tag, i) => {
    const before = tags[i - 1] ?? "O";
    return tag[0] === "B" || (tag[0] === "I" && before.slice(2) !== tag.slice(2)) ? [i] : [];
  });
  return starts.map((first, at) => {
    let stop = first;
    while (stop < (starts[at + 1] ?? tags.length) && tags[stop] !== "O") stop++;
    const [start, end] = [words[first][0], words[stop - 1][1]];
    const sum = logs.slice(first, stop).reduce((total, row, i) => total + Math.exp(row[path[first + i]]), 0);
    return { text: text.slice(start, end), start, end, label: tags[first].slice(2), score: sum / (stop - first) };
  });
}

function logSoftmax(row) {
  const top = Math.max(...row);
  const sum = Math.log(row.reduce((total, score) => total + Math.exp(score - top), 0));
  return row.map((score) => score - top - sum);
}

/** The most likely valid tags (Viterbi). The start of a text is like "O". */
function bestPath(logs, labels) {
  const needsBegin = labels.map((label) => label[0] === "I" && labels.includes(`B${label.slice(1)}`));
  const allowed = (before, label) => !needsBegin[label] || labels[before].slice(1) === labels[label].slice(1);
  const outside = labels.indexOf("O");
  let best = logs[0].map((score, label) => (allowed(outside, label) ? score : -Infinity));
  const back = [];
  for (const row of logs.slice(1)) {
    const from = labels.map((_, label) => argmax(best.map((score, before) => (allowed(before, label) ? score : -Infinity))));
    back.push(from);
    best = row.map((score, label) => (allowed(from[label], label) ? best[from[label]] + score : -Infinity));
  }
  const path = [argmax(best)];
  for (const from of back.reverse()) path.unshift(from[path[0]]);
  return path;
}

function argmax(numbers) {
  return numbers.indexOf(Math.max(...numbers));
}
