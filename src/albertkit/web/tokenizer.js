/**
 * Text to token ids, the same as albertkit's tokenizer in Python, for SentencePiece unigram and WordPiece vocabularies.
 *
 * In: texts, and the data that `albertkit export --web` writes (`interop/web_tokenizer.py`). Out: ids and offsets.
 * The data contains the rule for each character, so results do not depend on the Unicode version of the browser.
 * Offsets count UTF-16 code units, as `String.prototype.slice` does.
 */

import { AlbertError } from "./errors.js";
import { decodeStrings } from "./tokenizer-characters.js";
import { Tokens, Unigram, WordPiece } from "./tokenizer-models.js";

const FORMAT = 1;
const SPACE = "▁"; // SentencePiece's mark of a word start
const MASK = "[MASK]";
const MAX_CACHED_WORDS = 50_000;
const MAX_CACHED_LENGTH = 32; // code units of a cached word
const CHECKED_CHARACTERS = 10_000; // of a text, by `unknownShare`
const WHITE_SPACE = /[\t-\r\x1c- \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]/; // as in Python
const NAMES = {
  unigram: ["<pad>", "<unk>", "[CLS]", "[SEP]", MASK],
  wordpiece: ["[PAD]", "[UNK]", "[CLS]", "[SEP]", MASK],
};

/** Text to ids, for one vocabulary. */
export class Tokenizer {
  #tokens;
  #model;
  #words;
  #cache = new Map();

  /** The tokenizer of an exported model. `data` is the parsed content of its tokenizer file. */
  constructor(data) {
    if (data?.format !== FORMAT || !(data.kind in NAMES)) {
      const found = JSON.stringify(data?.format ?? typeof data);
      throw new AlbertError(
        `the tokenizer data has the format ${found}; this module reads format ${FORMAT}. Export the model again.`,
      );
    }
    this.kind = data.kind;
    this.#tokens = decodeStrings(data.tokens);
    const ids = new Map(this.#tokens.map((token, id) => [token, id]));
    [this.padId, this.unkId, this.clsId, this.sepId, this.maskId] = NAMES[this.kind].map((name) => ids.get(name));
    this.#model = this.kind === "unigram" ? new Unigram(data, this.#tokens) : new WordPiece(data, this.#tokens);
    this.#words = new RegExp(`[^${data.spaces}]+`, "g");
  }

  /** Number of tokens in the vocabulary. */
  get size() {
    return this.#tokens.length;
  }

  /** The ids of a text, without special tokens. */
  ids(text) {
    return this.#tokenize(checkText(text), Infinity).ids;
  }

  /** The ids of a text, and the code units of the text that each of them covers. */
  offsets(text, { recognizeMask = false } = {}) {
    const clean = checkText(text);
    return recognizeMask ? this.#tokenizeMasked(clean, Infinity) : this.#tokenize(clean, Infinity);
  }

  /** A text as a model input: [CLS] … [SEP], with at most `maxLength` ids. */
  encode(text, maxLength = Infinity, { recognizeMask = false } = {}) {
    checkLength(maxLength, 3);
    const clean = checkText(text);
    const found = recognizeMask ? this.#tokenizeMasked(clean, maxLength - 2) : this.#tokenize(clean, maxLength - 2);
    return { ids: [this.clsId, ...found.ids.slice(0, maxLength - 2), this.sepId] };
  }

  /** A pair of texts as a model input: [CLS] … [SEP] … [SEP]. The longer text is truncated first. */
  encodePair(first, second, maxLength = Infinity) {
    checkLength(maxLength, 5);
    const a = this.ids(first);
    const b = this.ids(second);
    const [aLength, bLength] = pairLengths(a.length, b.length, maxLength - 3);
    const ids = [this.clsId, ...a.slice(0, aLength), this.sepId, ...b.slice(0, bLength), this.sepId];
    return { ids, types: ids.map((_, at) => (at < aLength + 2 ? 0 : 1)) };
  }

  /** The token of an id. */
  token(id) {
    if (!Number.isInteger(id) || id < 0 || id >= this.size) {
      throw new AlbertError(`id ${id} is not in the vocabulary. Pass ids from 0 to ${this.size - 1}.`);
    }
    return this.#tokens[id];
  }

  /** The share of the visible characters at the start of a text that the vocabulary does not contain. */
  unknownShare(text) {
    const start = Array.from(checkText(text).slice(0, 2 * CHECKED_CHARACTERS)).slice(0, CHECKED_CHARACTERS).join("");
    const visible = (part) => Array.from(part).filter((c) => !WHITE_SPACE.test(c)).length;
    const { ids, starts, ends } = this.#tokenize(start, Infinity);
    let unknown = 0;
    ids.forEach((id, at) => (unknown += id === this.unkId ? visible(start.slice(starts[at], ends[at])) : 0));
    return unknown / (visible(start) || 1);
  }

  /** The tokens of a text, word by word, until there are more than `limit`. */
  #tokenize(text, limit) {
    const out = new Tokens();
    if (this.kind === "unigram" && text.includes(SPACE)) {
      out.append(this.#model.tokenize(text), 0); // a literal "▁" joins words, and is special at both ends of a text
      return out;
    }
    this.#words.lastIndex = 0;
    for (let match; out.ids.length <= limit && (match = this.#words.exec(text)) !== null; ) {
      out.append(this.#tokenizeWord(match[0]), match.index);
    }
    return out;
  }

  #tokenizeWord(word) {
    let found = this.#cache.get(word);
    if (found === undefined) {
      found = this.#model.tokenize(word);
      if (this.#cache.size >= MAX_CACHED_WORDS) this.#cache.clear();
      if (word.length <= MAX_CACHED_LENGTH) this.#cache.set(word, found);
    }
    return found;
  }

  /** A text in which [MASK] is the mask token; text directly after it continues the word. */
  #tokenizeMasked(text, limit) {
    const out = new Tokens();
    let at = 0;
    for (const [number, between] of text.split(MASK).entries()) {
      if (out.ids.length > limit) break;
      if (number) {
        out.append({ ids: [this.maskId], starts: [0], ends: [MASK.length] }, at);
        at += MASK.length;
      }
      this.#words.lastIndex = 0;
      const first = this.#words.exec(between);
      const head = number && this.kind === "unigram" && first?.index === 0 ? first[0].length : 0;
      if (head) out.append(this.#model.tokenizeInsideWord(between.slice(0, head)), at);
      out.append(this.#tokenize(between.slice(head), limit), at + head);
      at += between.length;
    }
    return out;
  }
}

function checkText(text) {
  if (typeof text !== "string") {
    throw new AlbertError(`the text is ${text === null ? "null" : typeof text}, not a string. Convert it first.`);
  }
  return text.replace(/[\ud800-\udfff]/gu, "\ufffd"); // lone surrogates, as in Python
}

function checkLength(maxLength, least) {
  if (maxLength !== Infinity && !(Number.isInteger(maxLength) && maxLength >= least)) {
    throw new AlbertError(
      `maxLength=${maxLength} is too small for the special tokens and one token per text. Pass at least ${least}.`,
    );
  }
}

/** The lengths of two texts that have at most `limit` tokens together: the longer one is truncated first. */
function pairLengths(a, b, limit) {
  let over = Math.max(0, a + b - limit);
  const gap = Math.min(over, Math.abs(a - b));
  over -= gap;
  return [a - (a > b ? gap : 0) - Math.floor(over / 2), b - (a > b ? 0 : gap) - Math.ceil(over / 2)];
}
