/** Types of `albertkit.js`: ALBERT in the browser. */

/** A mistake that the caller can correct. The message has the value, the rule and the remedy. */
export class AlbertError extends Error {
  name: "AlbertError";
}

export interface LoadOptions {
  /** Called while the files of the model are downloaded. */
  onProgress?: (progress: { loaded: number; total: number }) => void;
  /** Called for texts that the model cannot read. Default: console.warn. */
  onWarning?: (message: string) => void;
  /** Threads on a cross-origin isolated page; other pages have one. Default: all cores but one, at most 4. */
  threads?: number;
  /** Headers of the requests for the model's files, such as an API key. */
  headers?: Record<string, string>;
}

export interface EmbedOptions {
  /** Layers to apply: one of `about.depths`. Fewer are faster. */
  depth?: number;
  /** Keep only the first numbers of each vector. */
  dim?: number;
  /** Scale vectors to length 1. Default: as the model was made. */
  normalize?: boolean;
  /** A prefix of each text, or the name of one of the model's prompts. */
  prompt?: string | null;
  /** How to treat texts longer than `about.max_tokens`. Default: split. */
  longTexts?: "split" | "truncate" | "error";
  /** Called after each batch. */
  onProgress?: (progress: { done: number; total: number }) => void;
}

export interface Classification {
  /** The class, the classes (kind multi) or the value (kind regression). */
  label: string | string[] | number;
  probability: number;
  /** The probability of every class; null for a regression. */
  probabilities: Record<string, number> | null;
}

export interface Entity {
  text: string;
  /** Places in the text, for `String.prototype.slice`. */
  start: number;
  end: number;
  label: string;
  score: number;
}

export interface TagResult {
  text: string;
  spans: Entity[];
}

export interface MaskPrediction {
  word: string;
  /** Its probability. */
  score: number;
}

export interface Token {
  id: number;
  text: string;
  special: boolean;
  /** Places in the text; null for special tokens and those of a second text. */
  start: number | null;
  end: number | null;
}

export interface Explanation {
  /** What `prediction` is; null for a model of vectors. */
  kind: "classify" | "tag" | "fill" | null;
  /** The deepest at which a text exits, with which the others are compared. */
  fullDepth: number;
  tokens: Token[];
  depths: {
    depth: number;
    milliseconds: number;
    /** Of the sentence vector with that at full depth. */
    cosine: number;
    tokenCosines: number[];
    vector: Float32Array;
    prediction: Classification | TagResult | MaskPrediction[][] | null;
    matchesFullDepth: boolean | null;
  }[];
  /** The first depth after which the prediction no longer changes. */
  stableDepth: number | null;
  /** The uncertainty at each exit depth and at full depth; null for entities, masks and models with one depth. */
  earlyExit: { kind: "cosine" | "entropy" | "change"; exitDepths: number[]; uncertainty: (number | null)[] } | null;
  /** On request: layers × heads × from token × to token. */
  attention: Float32Array | null;
  heads: number;
}

/** The content of `model/model.json`, and the number of threads. */
export interface About {
  readonly name: string;
  readonly id: string;
  readonly task: string;
  readonly dim: number;
  readonly depth: number;
  readonly depths: readonly number[];
  readonly max_tokens: number;
  /** Prefixes of texts by name. */
  readonly prompts: Readonly<Record<string, string>>;
  /** Whether `classify` needs pairs of texts. */
  readonly pairs: boolean;
  readonly threads: number;
  readonly language: string | null;
  readonly licence: string | null;
}

export class Albert {
  /** Download and open a model. Default: the folder `model` beside `albertkit.js`. */
  static load(folder?: string | URL, options?: LoadOptions): Promise<Albert>;
  readonly about: About;
  /** The vector of each text. */
  embed(texts: string | string[], options?: EmbedOptions): Promise<Float32Array[]>;
  /** The cosine of each text with each of the others, or of all texts with each other. */
  similarity(texts: string | string[], others?: string | string[], options?: EmbedOptions): Promise<number[][]>;
  /** The texts nearest to a query, the best first. */
  search(
    query: string,
    texts: string | string[],
    options?: EmbedOptions & { k?: number },
  ): Promise<{ place: number; text: string; score: number }[]>;
  /** The class of each text, for a model of `albertkit finetune classify`. */
  classify(texts: string | string[], options?: { depth?: number; pairs?: string | string[] }): Promise<Classification[]>;
  /** The entities of each text, for a model of `albertkit finetune tag`. */
  tag(texts: string | string[], options?: { depth?: number }): Promise<TagResult[]>;
  /** The likeliest words for each [MASK] of a text. */
  fill(text: string, options?: { depth?: number; k?: number }): Promise<MaskPrediction[][]>;
  /** The tokens of each text, with the special ones. */
  tokenize(texts: string | string[]): Promise<Token[][]>;
  /** One text at every trained depth. `pair`: the second text, for a model of pairs. `k`: words for each [MASK]. */
  explain(text: string, options?: { pair?: string; k?: number; attention?: boolean }): Promise<Explanation>;
  /** An index of texts that the browser keeps (IndexedDB); it is made if there is none of this name. */
  openIndex(name?: string, options?: { depth?: number; dim?: number }): Promise<SearchIndex>;
  /** End the worker and free its memory. */
  close(): void;
}

export type IndexItem = string | { id: string | number; text: string };

export class SearchIndex {
  /** Delete an index and its texts. Where it is open, also in other tabs, it is closed. */
  static delete(name: string): Promise<void>;
  /** Texts in the index. */
  readonly size: number;
  /** Add or change texts; the number of texts that were computed. A text without an id is its own id. */
  add(texts: IndexItem | IndexItem[], options?: { onProgress?: (progress: { done: number; total: number }) => void }): Promise<number>;
  /** The texts nearest to a query, the best first. */
  search(query: string, options?: { k?: number }): Promise<{ id: string | number; text: string; score: number }[]>;
  remove(ids: string | number | (string | number)[]): Promise<void>;
  clear(): Promise<void>;
  close(): void;
}
