/** A mistake that the caller can correct. The message has the value, the rule and the remedy. */
export class AlbertError extends Error {
  name = "AlbertError";
}

export function checkKeys(options, known) {
  for (const key of Object.keys(options))
    if (!known.includes(key)) throw new AlbertError(`unknown option ${JSON.stringify(key)}; choose one of ${known.join(", ")}`);
}

export function checkCount(name, number) {
  if (!Number.isInteger(number) || number < 1) throw new AlbertError(`${name}=${number} is out of range. Pass 1 or more.`);
}
