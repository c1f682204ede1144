// Before anything is drawn: what the viewer chose last time. Without a choice the system decides.
try {
  const chosen = localStorage.getItem("adelfl-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // no storage, no memory
}
