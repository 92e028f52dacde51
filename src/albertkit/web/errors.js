/** A mistake that the caller can correct. The message has the value, the rule and the remedy. */
export class AlbertError extends Error {
  name = "AlbertError";
}
