// Light or dark, before anything is drawn: a classic script, so that nobody sees the other one first.
// The machine's own wish holds until somebody has chosen here.
const theme = {
  chosen() {
    try { return localStorage.getItem("theme") ?? ""; } catch { return ""; }
  },
  isDark() {
    const chosen = this.chosen();
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  },
  choose(name) {
    try { localStorage.setItem("theme", name); } catch { /* then for this page only */ }
    this.apply(name);
  },
  apply(name) {
    document.documentElement.dataset.theme = name;
    dispatchEvent(new Event("themechange"));
  },
};
if (theme.chosen()) theme.apply(theme.chosen());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  if (!theme.chosen()) dispatchEvent(new Event("themechange"));
});
globalThis.theme = theme;
