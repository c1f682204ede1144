// Sets the light or dark theme before the page is drawn: the viewer's choice, or the system's setting without one.

const system = matchMedia("(prefers-color-scheme: dark)");

const theme = {
  system: () => (system.matches ? "dark" : "light"),

  apply() {
    let chosen = null;
    try {
      chosen = localStorage.getItem("adelfl-theme");
    } catch {
      // storage is not available: the choice is not kept
    }
    document.documentElement.dataset.theme = chosen === "light" || chosen === "dark" ? chosen : this.system();
  },

  /** Switch the theme. A choice that equals the system's setting is not stored, so that the page follows the system again. */
  toggle() {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      if (next === this.system()) localStorage.removeItem("adelfl-theme");
      else localStorage.setItem("adelfl-theme", next);
    } catch {
      // storage is not available: the choice is not kept
    }
  },
};

theme.apply();
system.addEventListener("change", () => theme.apply());
globalThis.theme = theme;
