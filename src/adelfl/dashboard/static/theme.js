// Runs before anything is drawn. Light or dark: what the viewer chose, and without a choice what the system says.

const system = matchMedia("(prefers-color-scheme: dark)");

const theme = {
  system: () => (system.matches ? "dark" : "light"),

  apply() {
    let chosen = null;
    try {
      chosen = localStorage.getItem("adelfl-theme");
    } catch {
      // no storage, no memory
    }
    document.documentElement.dataset.theme = chosen === "light" || chosen === "dark" ? chosen : this.system();
  },

  /** The other one. Back at what the system says, the system is followed again. */
  toggle() {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      if (next === this.system()) localStorage.removeItem("adelfl-theme");
      else localStorage.setItem("adelfl-theme", next);
    } catch {
      // no storage, no memory
    }
  },
};

theme.apply();
system.addEventListener("change", () => theme.apply());
globalThis.theme = theme;
