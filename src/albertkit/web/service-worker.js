/**
 * Keeps the page, the model and onnxruntime-web in the browser, so that they work offline. It serves its own folder only.
 * `albertkit export --web` writes the version and the files that only another version replaces. The demo page and your
 * own files are fetched from the host, and come from the cache where it cannot be reached.
 *
 * The headers isolate the page from other origins, as threads of WebAssembly require. They apply from the second visit.
 */
const VERSION = "VERSION_OF_THIS_EXPORT";
const FILES = new Set(["FILES_OF_THIS_EXPORT"].map((file) => new URL(file, self.registration.scope).href));
const PREFIX = `albertkit ${self.registration.scope} `;
const PAGE = ["./", "demo.js", "demo.css", "albertkit.js", "errors.js", "numbers.js", "search-index.js", "model/model.json"];
const HEADERS = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
  "Cross-Origin-Resource-Policy": "same-origin",
};

self.addEventListener("install", (event) => {
  self.skipWaiting();
  event.waitUntil(Promise.all(PAGE.map((file) => fetchAndKeep(new Request(file), event))));
});

self.addEventListener("activate", (event) => event.waitUntil(activate()));

async function activate() {
  for (const name of await caches.keys())
    if (name.startsWith(PREFIX) && name !== PREFIX + VERSION) await caches.delete(name);
  await self.clients.claim();
}

self.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method === "GET" && request.url.startsWith(self.registration.scope)) event.respondWith(answer(request, event));
});

async function answer(request, event) {
  const address = request.url.replace(/[?#].*/, "");
  const cache = await caches.open(PREFIX + VERSION);
  const kept = await cache.match(FILES.has(address) ? address : request, { ignoreVary: true });
  if (kept && FILES.has(address) && request.cache !== "reload") return kept;
  try {
    return await fetchAndKeep(request, event);
  } catch (error) {
    if (kept) return kept; // offline
    throw error;
  }
}

async function fetchAndKeep(request, event) {
  // The browser's own cache may have files of an earlier export, so the host is asked about each.
  const response = await fetch(request, request.mode === "navigate" || request.cache === "reload" ? {} : { cache: "no-cache" });
  const isPrivate = /no-store/.test(response.headers.get("Cache-Control"));
  if (response.status !== 200 || response.type !== "basic" || response.redirected || isPrivate) return response;
  const headers = new Headers(response.headers);
  for (const [name, value] of Object.entries(HEADERS)) headers.set(name, value);
  const kept = new Response(response.body, { headers });
  const cache = await caches.open(PREFIX + VERSION);
  event.waitUntil(cache.put(request.url, kept.clone()).catch(() => {})); // a cut download is not kept
  return kept;
}
