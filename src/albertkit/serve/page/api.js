// Calls to the server that this page came from. Addresses are relative, so that it also works below a path of a proxy.

import { answerHere, embedHere, isLocal } from "./local.js";
import { t } from "./messages.js";

/** What went wrong, as a sentence for people. */
export class Problem extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

let key = read();

function read() {
  try { return sessionStorage.getItem("key") ?? ""; } catch { return ""; }
}

/** The API key, kept until the window is closed. */
export function useKey(given) {
  key = given;
  try { sessionStorage.setItem("key", given); } catch { /* then it lasts until the page is left */ }
}

export const hasKey = () => key !== "";

/** Headers that identify the user. */
export const keyHeaders = () => (key ? { authorization: `Bearer ${key}` } : {});

/** Where the server is, without a slash at the end. */
export const base = () => new URL(".", document.baseURI).href.replace(/\/$/, "");

/** Ask the server: {answer, compute, all}, times in milliseconds: of the engine, and until the answer was here. If the model cannot read a
 *  text, the signal gets the event "unreadable". */
export async function ask(path, body, signal) {
  if (isLocal()) return answerHere(path, body, signal);
  const headers = { "content-type": "application/json", ...keyHeaders() };
  const began = performance.now();
  let response;
  try {
    const method = body === undefined ? "GET" : "POST";
    response = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(t("error.unreachable"));
  }
  const text = await response.text();
  let answer = null;
  try { answer = JSON.parse(text); } catch { /* said below */ }
  if (!response.ok) {
    const said = answer?.error?.message ?? answer?.error ?? t("error.status", { status: response.status });
    const again = response.headers.get("retry-after");
    throw new Problem(again ? `${sentence(said)} ${t("error.again", { seconds: again })}` : sentence(said), response.status);
  }
  if (answer === null) throw new Problem(t("error.json"));
  if (response.headers.get("x-albertkit-warning")?.includes("cannot read")) signal?.dispatchEvent(new Event("unreadable"));
  const timing = /compute;dur=([\d.]+)/.exec(response.headers.get("server-timing") ?? "");
  return { answer, compute: timing ? Number(timing[1]) : null, all: performance.now() - began };
}

function sentence(said) {
  const text = String(said);
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?。！？]$/.test(text) ? "" : ".");
}

/** Base64 to bytes. */
export function bytes(text) {
  const found = atob(text);
  const made = new Uint8Array(found.length);
  for (let i = 0; i < found.length; i++) made[i] = found.charCodeAt(i);
  return made;
}

/** Vectors of texts as Float32Arrays. */
export async function vectors(model, texts, more, signal) {
  if (isLocal()) return embedHere(model, texts, more, signal);
  const body = { model, input: texts, encoding_format: "base64", ...more };
  const { answer, compute, all } = await ask("v1/embeddings", body, signal);
  return { rows: answer.data.map((one) => new Float32Array(bytes(one.embedding).buffer)), compute, all };
}

export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

/** The depths of an explanation up to the one that the model uses; all were trained. */
export const shownDepths = ({ depths, full_depth: full }) => depths.filter((one) => one.depth <= full);
