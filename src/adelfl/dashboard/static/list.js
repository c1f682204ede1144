// The list of runs: filter and order it, move with the keyboard, show one run, add others to the chart.

import { $, make, percent, say, series } from "./draw.js";

const STATES = ["running", "finished", "failed", "stopped", "corrupt"];
const ORDERS = {
  name: (a, b) => a.name.localeCompare(b.name, "en", { numeric: true }),
  changed: (a, b) => b.changed - a.changed,
  accuracy: (a, b) => (b.accuracy ?? -1) - (a.accuracy ?? -1),
};

export class RunList {
  /** `show(name)` is called when the viewer selects a run, `overlay(name)` when it is added to the chart or removed. */
  constructor(show, overlay) {
    this.show = show;
    this.overlay = overlay;
    this.cards = new Map();
    this.options = new Map();
    this.wanted = "";
    this.active = null;
    this.slots = new Map();
    this.main = null;
    this.box = $("list");
    this.empty = make("p", "empty");
    $("filter").addEventListener("input", () => this.arrange());
    $("order").addEventListener("change", () => this.arrange());
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("focus", () => this.activate(this.active ?? this.main ?? this.names[0]));
    this.box.addEventListener("click", (event) => this.click(event));
    $("filter").addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "Enter") {
        event.preventDefault();
        this.activate(this.names[0]);
        this.box.focus();
      }
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
        event.preventDefault();
        $("filter").focus();
      }
    });
    for (const state of ["", ...STATES]) {
      const button = make("button", "", state || "all");
      button.type = "button";
      button.dataset.state = state;
      button.setAttribute("aria-pressed", String(state === ""));
      button.addEventListener("click", () => {
        this.wanted = state;
        for (const other of $("states").children) other.setAttribute("aria-pressed", String(other === button));
        this.arrange();
      });
      $("states").append(button);
    }
    this.names = [];
  }

  update(changed, gone) {
    for (const name of gone) {
      this.cards.delete(name);
      this.options.get(name)?.remove();
      this.options.delete(name);
    }
    for (const card of changed) {
      this.cards.set(card.name, card);
      if (!this.options.has(card.name)) this.options.set(card.name, this.option(card.name));
      this.fill(card);
    }
    this.arrange();
  }

  option(name) {
    const option = make("div", "option");
    option.setAttribute("role", "option");
    option.id = `run-${(this.made = (this.made ?? 0) + 1)}`;
    option.dataset.name = name;
    const done = make("div", "done");
    done.append(make("span"));
    const selector = make("span", "selector");
    selector.title = "add to the chart, or remove";
    option.append(selector, make("div", "name"), make("div", "score"), make("div", "more"), make("div", "state"), done);
    option.title = name;
    return option;
  }

  fill(card) {
    const option = this.options.get(card.name);
    const [, name, score, more, state, done] = option.children;
    name.replaceChildren(card.label || card.name, " ", make("span", "soft", card.seed === null ? "" : `seed ${card.seed}`));
    say(score, card.accuracy === null ? "" : percent(card.accuracy));
    const rounds = card.rounds && card.state !== "finished" ? `${card.round}/${card.rounds}` : "";
    say(more, [card.data, rounds, card.label && card.name].filter(Boolean).join(" · ") || "unreadable");
    say(state, card.state);
    state.className = `state is-${card.state}`;
    done.hidden = card.state !== "running";
    done.firstChild.style.width = `${100 * card.progress}%`;
    const accuracy = card.accuracy === null ? "not evaluated" : `accuracy ${percent(card.accuracy)}`;
    const words = [card.label || card.name, `seed ${card.seed}`, card.data, card.state, accuracy];
    option.setAttribute("aria-label", `${words.filter(Boolean).join(", ")}, ${Math.round(100 * card.progress)} % done`);
    this.mark(card.name);
  }

  mark(name) {
    const option = this.options.get(name);
    if (!option) return;
    const slot = this.slots.get(name);
    option.setAttribute("aria-selected", String(slot !== undefined));
    option.classList.toggle("shown", name === this.main);
    option.firstChild.style.background = slot === undefined ? "" : series(slot);
  }

  /** Mark the selected runs with their colours, and the run that is shown. */
  select(slots, main) {
    this.slots = slots;
    this.main = main;
    for (const name of this.options.keys()) this.mark(name);
    if (main !== this.revealed && this.options.has(main)) {
      this.revealed = main;
      this.reveal(this.options.get(main));
    }
  }

  arrange() {
    const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const counts = Object.fromEntries(STATES.map((state) => [state, 0]));
    const matching = [];
    for (const card of this.cards.values()) {
      counts[card.state] += 1;
      const text = `${card.name} ${card.label} ${card.data} seed${card.seed} seed ${card.seed} ${card.state}`.toLowerCase();
      if ((!this.wanted || card.state === this.wanted) && words.every((word) => text.includes(word))) matching.push(card);
    }
    for (const button of $("states").children) {
      const state = button.dataset.state, count = state ? counts[state] : this.cards.size;
      say(button, `${state || "all"} ${count}`);
      button.hidden = state !== "" && count === 0 && this.wanted !== state;
    }
    matching.sort(ORDERS[$("order").value]);
    const names = matching.map((card) => card.name);
    if (names.length === this.names.length && names.every((name, i) => name === this.names[i]) && names.length) return;
    this.names = names;
    say(this.empty, this.cards.size ? "No run matches the filter." : "There are no runs yet.");
    const top = this.box.scrollTop;
    this.box.replaceChildren(...(names.length ? names.map((name) => this.options.get(name)) : [this.empty]));
    this.box.scrollTop = top;
    if (!names.includes(this.active)) this.activate(null);
  }

  activate(name) {
    this.options.get(this.active)?.classList.remove("active");
    this.active = name ?? null;
    const option = this.options.get(this.active);
    if (!option) return this.box.removeAttribute("aria-activedescendant");
    option.classList.add("active");
    this.box.setAttribute("aria-activedescendant", option.id);
    this.reveal(option);
  }

  /** Scroll the list, but not the page, until an option can be seen. */
  reveal(option) {
    const top = option.offsetTop, bottom = top + option.offsetHeight, { scrollTop, clientHeight } = this.box;
    if (top < scrollTop) this.box.scrollTop = top - 4;
    else if (bottom > scrollTop + clientHeight) this.box.scrollTop = bottom - clientHeight + 4;
  }

  key(event) {
    const here = this.names.indexOf(this.active), last = this.names.length - 1;
    const to = {
      ArrowDown: here + 1, ArrowUp: here - 1, PageDown: here + 8, PageUp: here - 8, Home: 0, End: last,
    }[event.key];
    if (to !== undefined && last >= 0) {
      this.activate(this.names[Math.max(0, Math.min(last, to))]);
    } else if (event.key === "Enter" && this.active) {
      this.show(this.active);
    } else if (event.key === " " && this.active) {
      this.overlay(this.active);
    } else {
      return;
    }
    event.preventDefault();
  }

  click(event) {
    const name = event.target.closest(".option")?.dataset.name;
    if (name === undefined) return;
    this.activate(name);
    const also = event.target.classList.contains("selector") || event.ctrlKey || event.metaKey || event.shiftKey;
    (also ? this.overlay : this.show)(name);
  }
}
