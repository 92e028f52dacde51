// Light or dark, set before the first paint so that nothing flashes. Runs before everything else, so it is no module.
(() => {
  const asked = () => {
    try { return localStorage.getItem("theme"); } catch { return null; }
  };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => { document.documentElement.dataset.theme = asked() ?? (dark.matches ? "dark" : "light"); };
  apply();
  dark.addEventListener("change", () => { apply(); dispatchEvent(new Event("theme")); });
  addEventListener("theme-wanted", (event) => {
    try { localStorage.setItem("theme", event.detail); } catch { /* then it lasts until the page is left */ }
    document.documentElement.dataset.theme = event.detail;
    dispatchEvent(new Event("theme"));
  });
})();
