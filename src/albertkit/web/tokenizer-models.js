/**
 * The models of `tokenizer.js`: the tokens of a word, or of a text, by a unigram or a WordPiece vocabulary.
 *
 * In: a text without lone surrogates. Out: `Tokens`. Before this file: `tokenizer-characters.js`.
 */

import { CharacterSet, CharacterTable, Normalizer, Scripts, decodeDeltas } from "./tokenizer-characters.js";

const SPACE = "▁"; // SentencePiece's mark of a word start
const UNKNOWN_PENALTY = 10; // as in SentencePiece
const MAX_WORD_CHARACTERS = 100; // of WordPiece; a longer word is unknown

/** Ids with the code units that they cover. */
export class Tokens {
  ids = [];
  starts = [];
  ends = [];

  add(id, start, end) {
    this.ids.push(id);
    this.starts.push(start);
    this.ends.push(end);
  }

  /** Append the tokens of a text that begins at code unit `shift`. */
  append({ ids, starts, ends }, shift) {
    for (let i = 0; i < ids.length; i++) this.add(ids[i], starts[i] + shift, ends[i] + shift);
  }
}

/** The most probable tokens of a text, by SentencePiece's unigram model. */
export class Unigram {
  #normalizer;
  #scripts = null;
  #trie;
  #scores;
  #unknown;
  #space;
  #splits;
  #best = new BestPaths();

  constructor(data, tokens) {
    this.#normalizer = new Normalizer(data);
    if (data.scripts) this.#scripts = new Scripts(data.scripts);
    const hidden = new Set(data.hidden);
    this.#trie = new Trie(tokens, (id) => !hidden.has(id)); // "<pad>" in a text is ordinary text
    this.#scores = decodeScores(data.scores);
    this.#unknown = { id: data.unknown, score: this.#scores.reduce((a, b) => Math.min(a, b)) - UNKNOWN_PENALTY };
    this.#space = tokens.indexOf(SPACE);
    this.#splits = new Map(data.splits.map(([id, ids, sizes]) => [id, { ids, sizes }])); // "2010," is "2010" and ","
  }

  tokenize(text) {
    return this.#tokenizeWords(this.#normalize(text), text);
  }

  /** The tokens of a word that begins inside a word: the first has no "▁". */
  tokenizeInsideWord(word) {
    const normalized = this.#normalize(word);
    const space = normalized.text.indexOf(" ");
    const head = space < 0 ? normalized : normalized.slice(0, space);
    const out = this.#mapOffsets(this.#mostProbable(head.text, 0, head.text.length, []), head, 0, word);
    if (space >= 0) out.append(this.#tokenizeWords(normalized.slice(space), word), 0);
    return out;
  }

  #normalize(text) {
    const normalized = this.#normalizer.normalize(text);
    return this.#scripts ? this.#scripts.separate(normalized) : normalized;
  }

  /** Puts a "▁" before each word, and splits the words into tokens. */
  #tokenizeWords(normalized, source) {
    let text = normalized.text.replaceAll(" ", SPACE);
    const shift = text === "" || text.startsWith(SPACE) ? 0 : 1;
    if (shift) text = SPACE + text;
    const found = [];
    for (let start = 0, end; start < text.length; start = end) {
      end = text.indexOf(SPACE, start + 1);
      if (end < 0) end = text.length;
      const isBare = this.#scripts !== null && !this.#scripts.keepsMark(text.codePointAt(start + 1));
      this.#mostProbable(text, start + isBare, end, found);
    }
    return this.#mapOffsets(found, normalized, shift, source);
  }

  /** Appends id, start and end of each token of a part of a text to `found`, and returns it. */
  #mostProbable(text, from, to, found) {
    const { scores, starts, ids } = this.#best.reset(to - from + 1);
    const trie = this.#trie;
    for (let at = from, size; at < to; at += size) {
      size = text.codePointAt(at) > 0xffff ? 2 : 1;
      const here = scores[at - from];
      let hasSingle = false;
      for (let end = at, node = 0; end < to && (node = trie.child(node, text.charCodeAt(end++))) !== 0; ) {
        const id = trie.ids[node];
        if (id < 0) continue;
        hasSingle ||= end === at + size;
        this.#best.offer(end - from, here + this.#scores[id], at - from, id);
      }
      if (!hasSingle) this.#best.offer(at + size - from, here + this.#unknown.score, at - from, this.#unknown.id);
    }
    const path = [];
    for (let end = to - from; end > 0; end = starts[end]) path.push(ids[end], starts[end] + from, end + from);
    return this.#appendPath(path, text, found);
  }

  /** Appends a path, which is in reverse order; unknown tokens in a row become one. */
  #appendPath(path, text, found) {
    for (let i = path.length - 3; i >= 0; i -= 3) {
      let [id, start, end] = [path[i], path[i + 1], path[i + 2]];
      if (id === this.#unknown.id) {
        while (i > 0 && path[i - 3] === id) end = path[(i -= 3) + 2];
        id = this.#trie.find(text.slice(start, end)) ?? id;
      }
      found.push(id, start, end);
    }
    return found;
  }

  /** Tokens with offsets into the source. `shift`: length of the "▁" that was put before the normalised text. */
  #mapOffsets(found, { text, starts, ends }, shift, source) {
    const out = new Tokens();
    for (let i = 0; i < found.length; i += 3) {
      const id = found[i];
      let from = Math.max(0, found[i + 1] - shift);
      let to = found[i + 2] - shift || firstLength(text);
      if (text[from] === " ") from++;
      if (i === 0 && id === this.#space && text[0] !== " ") from = to = 0; // a "▁" before a symbol covers nothing
      const start = starts[from];
      const split = this.#splits.get(id);
      if (split) this.#addSplit(out, split, start, ends[to - 1], source);
      else out.add(id, start, to > from ? ends[to - 1] : start);
    }
    return out;
  }

  #addSplit(out, { ids, sizes }, start, stop, source) {
    const last = stop - lastLength(source.slice(start, stop));
    let at = start;
    ids.forEach((id, i) => {
      const end = sizes[i] < 0 ? stop : Math.max(at, Math.min(skipCharacters(source, at, sizes[i]), last));
      out.add(id, at, id === this.#space ? start : end);
      at = end;
    });
  }
}

/** The best path to each position of a text; the memory is used again for the next text. */
class BestPaths {
  reset(size) {
    if (!(size <= this.scores?.length)) {
      this.scores = new Float64Array(size * 2);
      this.starts = new Int32Array(size * 2);
      this.ids = new Int32Array(size * 2);
    }
    this.scores[0] = 0;
    this.starts.fill(-1, 0, size);
    return this;
  }

  offer(end, score, start, id) {
    if (this.starts[end] >= 0 && score <= this.scores[end]) return;
    this.scores[end] = score;
    this.starts[end] = start;
    this.ids[end] = id;
  }
}

/** The longest tokens from the left of each word, by BERT's rules. */
export class WordPiece {
  #table;
  #isolated;
  #order;
  #trie;
  #inside;
  #unknown;

  constructor(data, tokens) {
    this.#table = new CharacterTable(data);
    this.#isolated = new CharacterSet(data.isolated);
    this.#order = new Map(data.order[0].map((point, i) => [String.fromCodePoint(point), data.order[1][i]]));
    this.#trie = new Trie(tokens, () => true);
    this.#inside = this.#trie.walk("##");
    this.#unknown = data.unknown;
  }

  tokenize(text) {
    const out = new Tokens();
    let word = [];
    for (const part of this.#normalize(text)) {
      const isSpace = part.text === " ";
      if (!isSpace && !this.#isolated.has(part.text.codePointAt(0))) {
        word.push(part);
        continue;
      }
      this.#addWord(out, word);
      if (!isSpace) this.#addWord(out, [part]);
      word = [];
    }
    this.#addWord(out, word);
    return out;
  }

  /** The normalised characters of a text with the code units that they came from. */
  #normalize(text) {
    const parts = [];
    let at = 0;
    for (const c of text) {
      for (const x of this.#table.get(c.codePointAt(0)) ?? c) parts.push({ text: x, start: at, end: at + c.length });
      at += c.length;
    }
    if (parts.some((part) => this.#order.has(part.text))) this.#sortAccents(parts);
    return parts;
  }

  /** Canonical order of the accents that follow a letter. The source positions stay in order. */
  #sortAccents(parts) {
    const rank = (part) => this.#order.get(part.text) ?? 0;
    for (let start = 0, end; start < parts.length; start = end + 1) {
      for (end = start; end < parts.length && rank(parts[end]); ) end++;
      const sorted = parts.slice(start, end).sort((a, b) => rank(a) - rank(b));
      sorted.map((part) => part.text).forEach((x, i) => (parts[start + i].text = x));
    }
  }

  #addWord(out, word) {
    if (!word.length) return;
    const found = word.length > MAX_WORD_CHARACTERS ? null : this.#longestTokens(word);
    if (found === null) out.add(this.#unknown, word[0].start, word.at(-1).end);
    else for (const { id, from, to } of found) out.add(id, word[from].start, word[to - 1].end);
  }

  /** The tokens of a word, or null if a part of it is not in the vocabulary. */
  #longestTokens(word) {
    const found = [];
    for (let from = 0, best; from < word.length; from = best.to) {
      best = null;
      for (let to = from, node = from ? this.#inside : 0; to < word.length && node >= 0; ) {
        node = this.#trie.walk(word[to++].text, node);
        if (node >= 0 && this.#trie.ids[node] >= 0) best = { id: this.#trie.ids[node], from, to };
      }
      if (best === null) return null;
      found.push(best);
    }
    return found;
  }
}

/** The tokens of a vocabulary by their code units. Node 0 is the root; `ids` has -1 where no token ends. */
class Trie {
  #slots;
  #parents;
  #units;
  #count = 1;

  constructor(tokens, isUsed) {
    const used = tokens.map((token, id) => [token, id]).filter(([token, id]) => token !== "" && isUsed(id));
    const most = used.reduce((total, [token]) => total + token.length, 1);
    this.#slots = new Int32Array(2 ** Math.ceil(Math.log2(2 * most)));
    this.#parents = new Int32Array(most);
    this.#units = new Uint16Array(most);
    this.ids = new Int32Array(most).fill(-1);
    for (const [token, id] of used) this.ids[this.#insert(token)] = id;
  }

  #insert(token) {
    let node = 0;
    for (let i = 0; i < token.length; i++) {
      const unit = token.charCodeAt(i);
      const slot = this.#slot(node, unit);
      if (this.#slots[slot] === 0) {
        this.#parents[this.#count] = node;
        this.#units[this.#count] = unit;
        this.#slots[slot] = this.#count++;
      }
      node = this.#slots[slot];
    }
    return node;
  }

  /** The slot of the edge from a node, which is 0 if there is no such edge. */
  #slot(node, unit) {
    const slots = this.#slots;
    const last = slots.length - 1;
    let slot = (Math.imul(node, 0x9e3779b1) ^ Math.imul(unit, 0x85ebca6b)) >>> 7 & last;
    for (let child; (child = slots[slot]) !== 0; slot = (slot + 1) & last) {
      if (this.#parents[child] === node && this.#units[child] === unit) break;
    }
    return slot;
  }

  /** The node after one code unit, or 0. */
  child(node, unit) {
    return this.#slots[this.#slot(node, unit)];
  }

  /** The node after a text, or -1. */
  walk(text, node = 0) {
    for (let i = 0; i < text.length; i++) {
      node = this.child(node, text.charCodeAt(i));
      if (node === 0) return -1;
    }
    return node;
  }

  /** The id of a token, or undefined. */
  find(token) {
    const node = this.walk(token);
    return node > 0 && this.ids[node] >= 0 ? this.ids[node] : undefined;
  }
}

/** The scores of the tokens: decimal fractions, or the bits of 32-bit numbers. */
function decodeScores({ scale, deltas }) {
  const numbers = decodeDeltas(deltas);
  const scores = scale ? numbers.map((number) => number / scale) : new Float32Array(Uint32Array.from(numbers).buffer);
  return Float64Array.from(Float32Array.from(scores));
}

/** Code units of the first character. */
function firstLength(text) {
  return text.codePointAt(0) > 0xffff ? 2 : 1;
}

/** Code units of the last character. */
function lastLength(text) {
  return text.codePointAt(text.length - 2) > 0xffff ? 2 : 1;
}

/** The position of the character that is `count` characters after a position. */
function skipCharacters(text, at, count) {
  for (; count > 0; count--) at += text.codePointAt(at) > 0xffff ? 2 : 1;
  return at;
}
