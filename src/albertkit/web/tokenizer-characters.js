/**
 * The rules of `tokenizer.js` for characters: tables and sets of code points, and the normalisation of unigram models.
 *
 * In: texts, and the tables of `interop/character_tables.py`. Out: normalised texts with the source of each code unit.
 * After this file: `tokenizer-models.js`.
 */

const SPACE = "▁"; // SentencePiece's mark of a word start
const HANGUL = 0xac00; // the first of 19 × 21 × 28 syllables
const [LEADING, VOWEL, TRAILING] = [0x1100, 0x1161, 0x11a7]; // the first parts of a syllable
const MAX_STRING_CHARACTERS = 64; // of SentencePiece's table

/** A normalised text, and for each of its code units the part of the source it came from. Spaces are collapsed. */
class Normalized {
  text = "";
  starts = [];
  ends = [];

  add(part, start, end) {
    if (part === " " && (this.text === "" || this.text.endsWith(" "))) return;
    this.text += part;
    for (let i = 0; i < part.length; i++) {
      this.starts.push(start);
      this.ends.push(end);
    }
  }

  slice(from, to = this.text.length) {
    const out = new Normalized();
    out.text = this.text.slice(from, to);
    out.starts = this.starts.slice(from, to);
    out.ends = this.ends.slice(from, to);
    return out;
  }
}

/** Normalisation for unigram models: white space, compatibility forms, accents, case, then SentencePiece's table. */
export class Normalizer {
  #table;
  #strings;
  #contextual;
  #marks;
  #cased;
  #ignorable;
  #cache = new Map();

  constructor(data) {
    this.#table = new CharacterTable(data);
    this.#strings = data.charsmap ? new Charsmap(data.charsmap) : new StringTable(data);
    this.#contextual = new CharacterSet(data.contextual);
    this.#marks = new CharacterSet(data.marks);
    this.#cased = data.sigma && new CharacterSet(data.sigma.cased);
    this.#ignorable = data.sigma && new CharacterSet(data.sigma.ignorable);
  }

  normalize(text) {
    const out = new Normalized();
    for (let at = 0, size; at < text.length; at += size) {
      const point = text.codePointAt(at);
      size = point > 0xffff ? 2 : 1;
      let part = this.#cache.get(point);
      if (part === undefined) this.#cache.set(point, (part = this.#normalizeCharacter(point)));
      if (part === null) return this.#normalizeInContext(text);
      if (part.length === 1) out.add(part, at, at + size);
      else for (const x of part) out.add(x, at, at + size);
      if (part === "" && out.text !== "" && this.#marks.has(point)) out.ends[out.ends.length - 1] = at + size;
    }
    return out.text.endsWith(" ") ? out.slice(0, -1) : out;
  }

  /** The normalised form of one character, or null if it depends on its neighbours. */
  #normalizeCharacter(point) {
    if (this.#contextual.has(point)) return null;
    const prepared = Array.from(this.#table.get(point) ?? String.fromCodePoint(point));
    return prepared.map((x) => this.#strings.longestMatch([x], 0)?.text ?? x).join("");
  }

  #normalizeInContext(text) {
    const [characters, starts, ends] = [[], [], []];
    let at = 0;
    for (const c of text) {
      const part = this.#table.get(c.codePointAt(0)) ?? c;
      for (const x of part) {
        characters.push(x);
        starts.push(at);
        ends.push(at + c.length);
      }
      if (part === "" && ends.length && this.#marks.has(c.codePointAt(0))) ends[ends.length - 1] = at + c.length;
      at += c.length;
    }
    if (this.#cased) this.#lowerSigmas(characters);
    const out = new Normalized();
    for (let i = 0; i < characters.length; ) {
      const match = this.#strings.longestMatch(characters, i);
      const count = match?.count ?? 1;
      const end = ends[i + count - 1];
      const part = match?.text ?? characters[i];
      for (const x of part) out.add(x, starts[i], end);
      if (part === "" && out.text !== "" && this.#marks.has(lastPoint(text.slice(0, end)))) out.ends[out.ends.length - 1] = end;
      i += count;
    }
    return trimMarks(out);
  }

  /** Lower case of Σ: "ς" at the end of a word, "σ" elsewhere. */
  #lowerSigmas(characters) {
    const isCased = (from, step) => {
      let at = from + step;
      while (at in characters && this.#ignorable.has(characters[at].codePointAt(0))) at += step;
      return at in characters && this.#cased.has(characters[at].codePointAt(0));
    };
    const sigmas = characters.flatMap((c, at) => (c === "Σ" ? [at] : []));
    const lower = sigmas.map((at) => (isCased(at, -1) && !isCased(at, 1) ? "ς" : "σ"));
    sigmas.forEach((at, i) => (characters[at] = lower[i]));
  }
}

/** The last code point of a text. */
function lastPoint(text) {
  const point = text.codePointAt(text.length - 2);
  return point > 0xffff ? point : text.charCodeAt(text.length - 1);
}

/** SentencePiece treats a literal "▁" at the end as a space; one at the start has the text's own "▁" before it. */
function trimMarks(normalized) {
  let end = normalized.text.length;
  while (end > 0 && (normalized.text[end - 1] === " " || normalized.text[end - 1] === SPACE)) end--;
  const out = normalized.slice(0, end);
  if (!out.text.startsWith(SPACE)) return out;
  out.text = SPACE + out.text;
  out.starts.unshift(out.starts[0]);
  out.ends.unshift(out.ends[0]);
  return out;
}

/** Runs of letters and digits as words of their own, in languages without spaces between words. */
export class Scripts {
  #letters;

  constructor({ letters }) {
    this.#letters = new CharacterSet(letters);
  }

  /** Whether a word that begins with a character keeps the "▁" before it. */
  keepsMark(point) {
    return point !== undefined && this.#letters.has(point);
  }

  /** The text with a space on both sides of each run of letters and digits. */
  separate({ text, starts, ends }) {
    const out = new Normalized();
    let wasLetter = false;
    for (let at = 0, size; at < text.length; at += size) {
      const point = text.codePointAt(at);
      size = point > 0xffff ? 2 : 1;
      const isLetter = this.#letters.has(point);
      if (isLetter !== wasLetter && at) out.add(" ", starts[at], starts[at]);
      out.add(text.slice(at, at + size), starts[at], ends[at + size - 1]);
      wasLetter = isLetter;
    }
    return out;
  }
}

// --- tables ---------------------------------------------------------------------------------------------------------

/** A set of code points. */
export class CharacterSet {
  #bits = new Uint8Array(0x110000 / 8);

  constructor(deltas) {
    const edges = decodeDeltas(deltas);
    for (let i = 0; i < edges.length; i += 2) {
      for (let point = edges[i]; point < edges[i + 1]; point++) this.#bits[point >> 3] |= 1 << (point & 7);
    }
  }

  has(point) {
    return ((this.#bits[point >> 3] >> (point & 7)) & 1) === 1;
  }
}

/** What each character is replaced by. */
export class CharacterTable {
  #replaced;
  #removed;
  #decomposesHangul;

  constructor({ replaced: [deltas, values], removed, decomposesHangul }) {
    const strings = decodeStrings(values);
    this.#replaced = new Map(decodeDeltas(deltas).map((point, i) => [point, strings[i]]));
    this.#removed = new CharacterSet(removed);
    this.#decomposesHangul = decomposesHangul;
  }

  /** The replacement of a code point, or undefined. */
  get(point) {
    if (this.#removed.has(point)) return "";
    if (this.#decomposesHangul && point >= HANGUL && point < HANGUL + 11172) return decomposeHangul(point - HANGUL);
    return this.#replaced.get(point);
  }
}

function decomposeHangul(index) {
  const [leading, vowel, trailing] = [Math.floor(index / 588), Math.floor((index % 588) / 28), index % 28];
  const parts = [LEADING + leading, VOWEL + vowel, ...(trailing ? [TRAILING + trailing] : [])];
  return String.fromCodePoint(...parts);
}

/** The longest Hangul syllable at a position, or null. */
function composeHangul(characters, at) {
  const [leading, vowel] = [characters[at].codePointAt(0) - LEADING, characters[at + 1]?.codePointAt(0) - VOWEL];
  if (!(leading >= 0 && leading < 19 && vowel >= 0 && vowel < 21)) return null;
  const trailing = characters[at + 2]?.codePointAt(0) - TRAILING;
  const hasTrailing = trailing > 0 && trailing < 28;
  const point = HANGUL + leading * 588 + vowel * 28 + (hasTrailing ? trailing : 0);
  return { count: hasTrailing ? 3 : 2, text: String.fromCodePoint(point) };
}

/** The strings that SentencePiece's table replaces. */
class StringTable {
  #replaced = new Map();
  #longest = new Map(); // by first character: the number of characters
  #composesHangul;

  constructor({ strings = ["", ""], composesHangul }) {
    const [old, replacements] = strings.map(decodeStrings);
    this.#composesHangul = composesHangul;
    old.forEach((string, i) => {
      const [first, ...rest] = string;
      this.#replaced.set(string, replacements[i]);
      this.#longest.set(first, Math.max(this.#longest.get(first) ?? 0, 1 + rest.length));
    });
  }

  /** The longest string at a position: its number of characters and its replacement; or null. */
  longestMatch(characters, at) {
    const syllable = this.#composesHangul ? composeHangul(characters, at) : null;
    const most = Math.min(this.#longest.get(characters[at]) ?? 0, characters.length - at);
    for (let count = most; count > (syllable?.count ?? 0); count--) {
      const text = this.#replaced.get(characters.slice(at, at + count).join(""));
      if (text !== undefined) return { count, text };
    }
    return syllable;
  }
}

/** SentencePiece's table as it is in a `spiece.model`: a double-array trie of UTF-8 bytes, then the replacements. */
class Charsmap {
  #units;
  #texts;
  #encoder = new TextEncoder();

  constructor(base64) {
    const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
    const size = new DataView(bytes.buffer).getUint32(0, true);
    this.#units = new Uint32Array(bytes.slice(4, 4 + size).buffer);
    this.#texts = bytes.subarray(4 + size);
  }

  /** The longest string at a position: its number of characters and its replacement; or null. */
  longestMatch(characters, at) {
    const units = this.#units;
    let node = jump(units[0]);
    let match = null;
    for (let i = at; i < characters.length && i < at + MAX_STRING_CHARACTERS; i++) {
      let unit = 0;
      for (const byte of this.#encoder.encode(characters[i])) {
        node ^= byte;
        unit = units[node];
        if (unit === undefined || (unit & 0x800000ff) !== byte) return match;
        node ^= jump(unit);
      }
      if ((unit >>> 8) & 1) match = { count: i + 1 - at, text: this.#replacement(units[node]) };
    }
    return match;
  }

  #replacement(unit) {
    const start = unit & 0x7fffffff;
    return new TextDecoder().decode(this.#texts.subarray(start, this.#texts.indexOf(0, start)));
  }
}

function jump(unit) {
  return (unit >>> 10) << ((unit & 512) >>> 6);
}

export function decodeDeltas(deltas) {
  let total = 0;
  return deltas.map((delta) => (total += delta));
}

export function decodeStrings(strings) {
  return typeof strings === "string" ? strings.split("\n") : strings;
}
