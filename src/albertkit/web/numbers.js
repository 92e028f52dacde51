/**
 * Scores and vectors to results: normalisation, probabilities, labels (`tasks/classify.py`). After this file: `model.js`.
 */
import { AlbertError } from "./errors.js";

const OUT_OF_SCOPE = "oos";

export function finite(numbers) {
  if (numbers.every(Number.isFinite)) return numbers;
  throw new AlbertError(
    "the model computed NaN or infinity; results must be finite. Its weights are damaged: use another copy of the model.",
  );
}

export function unitLength(vector) {
  const length = Math.sqrt(vector.reduce((sum, number) => sum + number * number, 0));
  return vector.map((number) => number / Math.max(length, 1e-12));
}

/** One vector for the windows of a text: their mean weighted by tokens; their maximum where pooling is max. */
export function meanOf(vectors, lengths, pooling) {
  if (vectors.length === 1) return vectors[0];
  const total = lengths.reduce((sum, length) => sum + length, 0);
  return vectors[0].map((_, i) =>
    pooling === "max"
      ? Math.max(...vectors.map((vector) => vector[i]))
      : vectors.reduce((sum, vector, at) => sum + (vector[i] * lengths[at]) / total, 0),
  );
}

export function softmax(scores) {
  const top = scores.reduce((a, b) => Math.max(a, b));
  const powers = Array.from(scores, (score) => Math.exp(score - top));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / sum);
}

export function likeliest(scores, k) {
  const ranked = Array.from(softmax(scores).entries());
  return ranked.sort((a, b) => b[1] - a[1]).slice(0, k);
}

export function wordOf(token) {
  return token.replace(/^##/, "").replaceAll("▁", "") || token;
}

/** The label of one text, from its scores (`tasks/classify.py`). */
export function classification(row, { labels, kind, temperature, threshold, min_probability: least, mean, std }) {
  if (kind === "regression") return { label: mean + std * row[0], probability: 1, probabilities: null };
  const scores = row.map((score) => score / temperature);
  const numbers = kind === "multi" ? scores.map((score) => 1 / (1 + Math.exp(-score))) : softmax(scores);
  const probabilities = Object.fromEntries(labels.map((label, at) => [label, numbers[at]]));
  if (kind === "multi") {
    const probability = numbers.reduce((product, p) => product * Math.max(p, 1 - p), 1);
    return { label: labels.filter((_, at) => numbers[at] >= threshold), probability, probabilities };
  }
  const best = numbers.indexOf(Math.max(...numbers));
  if (numbers[best] < least && labels[best] !== OUT_OF_SCOPE)
    return { label: OUT_OF_SCOPE, probability: 1 - numbers[best], probabilities };
  return { label: labels[best], probability: numbers[best], probabilities };
}

export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}
