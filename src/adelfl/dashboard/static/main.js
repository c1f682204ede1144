// Connects the parts of the page: events from the server, selection of runs, drawing.

import { Chart } from "./chart.js";
import { $, colour, largest, layerColour, make, percent, say, seconds, series, sheet } from "./draw.js";
import { RunList } from "./list.js";
import { Round } from "./round.js";

const MOST = 8;
const views = new Map(); // runs whose rows are loaded, by name
const slots = new Map(); // colours of the selected runs, by name, in the order of selection
let main = null, source = null, ahead = 0, retry = null;

const serverNow = () => Date.now() / 1000 + ahead;
const list = new RunList(show, overlay);
const chart = new Chart((name) => overlay(name));
const round = new Round(async (name, number) => {
  const answer = await fetch(`api/round?${new URLSearchParams({ name, number })}`);
  return answer.ok ? answer.json() : null;
}, serverNow);

// -- selection

function freeSlot() {
  const taken = new Set(slots.values());
  return Array.from({ length: MOST }, (_, i) => i).find((i) => !taken.has(i));
}

function show(name) {
  if (slots.has(name)) {
    main = name;
  } else {
    slots.clear();
    slots.set(name, 0);
    main = name;
  }
  selectionChanged();
}

function overlay(name) {
  if (slots.has(name)) {
    if (slots.size === 1) return;
    slots.delete(name);
    if (main === name) main = slots.keys().next().value;
  } else {
    if (slots.size === MOST) return status(`at most ${MOST} runs can be shown at a time`, "lost");
    slots.set(name, freeSlot());
    main ??= name;
  }
  selectionChanged();
}

function selectionChanged() {
  const names = [main, ...[...slots.keys()].filter((name) => name !== main)];
  const words = new URLSearchParams(names.map((name) => ["run", name]));
  history.replaceState(null, "", `#${words}`);
  for (const name of views.keys()) if (!slots.has(name)) views.delete(name);
  list.select(slots, main);
  connect();
  draw(false);
}

function fromAddress() {
  const names = new URLSearchParams(location.hash.slice(1)).getAll("run").slice(0, MOST);
  slots.clear();
  names.forEach((name, i) => slots.set(name, i));
  main = names[0] ?? null;
}

/** Select a run that is in progress, or else the latest one. */
function selectDefault() {
  const rank = (card) => (card.state === "running" ? 1e12 : 0) + card.changed;
  const best = [...list.cards.values()].sort((a, b) => rank(b) - rank(a))[0];
  if (best) show(best.name);
}

// -- events from the server

function status(text, kind) {
  say($("link"), text);
  $("link").className = `link ${kind}`;
}

const wantedAddress = () => `events?${new URLSearchParams([...slots.keys()].sort().map((name) => ["run", name]))}`;

function connect(again = false) {
  const address = wantedAddress();
  if (!again && source && source.wanted === address && source.readyState !== EventSource.CLOSED) return;
  source?.close();
  clearTimeout(retry);
  source = new EventSource(address);
  source.wanted = address;
  source.onopen = () => status("live", "live");
  source.onerror = () => {
    status("not connected, reconnecting", "lost");
    if (source.readyState === EventSource.CLOSED) retry = setTimeout(() => connect(true), 3000);
  };
  const on = (event, handle) => source.addEventListener(event, (message) => handle(JSON.parse(message.data)));
  on("runs", onRuns);
  on("run", onRun);
  on("rows", onRows);
  on("gone", ({ name }) => {
    views.delete(name);
    draw(false);
  });
}

function onRuns({ first, now, changed, gone }) {
  ahead = now - Date.now() / 1000;
  if (first) {
    const here = new Set(changed.map((card) => card.name));
    gone = [...list.cards.keys()].filter((name) => !here.has(name));
  }
  list.update(changed, gone);
  for (const card of changed) {
    const view = views.get(card.name);
    if (view) Object.assign(view.about, card);
  }
  list.select(slots, main);
  if (main === null) selectDefault();
  draw(false);
}

function onRun({ name, now, about, rows, last, error }) {
  if (!slots.has(name)) return;
  ahead = now - Date.now() / 1000;
  // If run.json of a run is lost, its rows still give the number of layers.
  if (!about.layers.length) about.layers = (last?.contributors ?? []).map((_, l) => `layer ${l + 1}`);
  views.set(name, { name, about, rows, last, error });
  draw(false);
}

function onRows({ name, rows, last, error }) {
  const view = views.get(name);
  if (!view) return;
  view.rows.push(...rows);
  Object.assign(view, { last, error });
  draw(name === main && rows.length > 0);
}

// -- drawing

function draw(fresh) {
  const view = views.get(main);
  $("run").hidden = !view;
  $("nothing").hidden = Boolean(view);
  if (!view) return say($("nothing"), main === null ? "There are no runs yet.\nStart some with adelfl compare." : "Loading this run …");
  title(view);
  tiles(view);
  chart.set([...slots].filter(([name]) => views.has(name)).map(([name, slot]) => line(name, slot)));
  coverage(view);
  round.set(view, fresh);
}

function line(name, slot) {
  const { about, rows } = views.get(name);
  const evaluated = rows.filter((row) => row.accuracy !== null);
  return { name, slot, label: about.label || name, seed: about.seed ?? "", budget: about.budget, main: name === main, rows: evaluated };
}

function title({ name, about, error }) {
  say($("label"), about.label || name);
  say($("seed"), about.seed === null ? "" : `seed ${about.seed}`);
  say($("state"), about.state);
  $("state").className = `badge is-${about.state}`;
  const facts = [name, about.data, about.devices && `${about.devices} devices`, about.layers.length && `${about.layers.length} layers`];
  say($("facts"), [...facts, about.clock && `${about.clock} clock`].filter(Boolean).join(" · "));
  const why = error || about.why;
  $("why").hidden = !why;
  say($("why"), why);
  document.title = `${about.label || name} · adelfl`;
  say($("chart-time"), about.clock === "real" ? "time" : "virtual time");
}

function tiles({ about, rows, last }) {
  const evaluated = rows.filter((row) => row.accuracy !== null);
  const latest = evaluated.at(-1)?.accuracy, best = largest(evaluated.map((row) => row.accuracy), 0);
  const final = about.state === "finished" ? about.accuracy : null;
  say($("accuracy"), percent(final ?? latest));
  const end = final === null ? "" : "mean over the last tenth; ";
  say($("accuracy-note"), evaluated.length ? `${end}best ${percent(best)}` : "not evaluated yet");
  const steps = (about.layers.length || 1) * about.iterations;
  const mean = last?.depth.length ? last.depth.reduce((a, b) => a + b, 0) / last.depth.length : null;
  say($("depth"), mean === null ? "–" : percent(mean / steps, 0));
  say($("depth-note"), mean === null ? (about.state === "finished" ? "no round closed" : "no round finished yet") : `of layers finished, mean in round ${last.round}`);
  budget();
}

/** Update the budget; with a real clock, also between rows. */
function budget() {
  const view = views.get(main);
  if (!view) return;
  const { about, last } = view, live = about.clock === "real" && about.state === "running" && about.started !== null;
  const used = Math.min(about.budget ?? 0, live ? serverNow() - about.started : last?.time ?? 0);
  const over = about.state === "finished" && !last?.round; // the first round did not close within the budget
  const left = about.budget === null ? null : over ? 0 : about.budget - used;
  say($("budget-left"), seconds(left));
  say($("budget-note"), about.budget === null ? "" : `of ${seconds(about.budget)}${about.clock === "real" ? "" : ", virtual"}`);
  const share = over ? 1 : about.budget ? used / about.budget : 0;
  $("budget-meter").firstChild.style.width = `${100 * (1 - share)}%`;
  $("budget-meter").setAttribute("aria-valuenow", String(Math.round(100 * share)));
}

/** For each layer, the share of rounds in which it was updated, and the mean number of devices that updated it. */
function covered({ about, rows }) {
  const trained = rows.filter((row) => row.round > 0 && !row.abandoned && row.contributors.length === about.layers.length);
  const rounds = rows.filter((row) => row.round > 0).length;
  return about.layers.map((_, l) => {
    const counts = trained.map((row) => row.contributors[l]);
    const share = rounds ? counts.filter((n) => n > 0).length / rounds : 0;
    return { share, devices: rounds ? counts.reduce((a, b) => a + b, 0) / rounds : 0 };
  });
}

function coverage(view) {
  const box = $("cover"), { layers } = view.about, mine = covered(view);
  const others = [...slots].filter(([name]) => name !== main && views.get(name)?.about.layers.length === layers.length);
  const theirs = others.map(([name, slot]) => [slot, covered(views.get(name)), views.get(name).about]);
  box.classList.toggle("many", layers.length > 6);
  while (box.children.length > layers.length) box.lastChild.remove();
  while (box.children.length < layers.length) box.append(layerRow());
  layers.forEach((name, l) => {
    const row = box.children[layers.length - 1 - l], [who, figure, bar] = row.children, { share, devices } = mine[l];
    say(who, name);
    say(figure, `${percent(share, 0)} · ${devices.toFixed(1)}`);
    bar.firstChild.style.width = `${100 * share}%`;
    bar.firstChild.style.background = layerColour(l, layers.length);
    const ticks = theirs.map(([slot, shares, about]) => {
      const tick = make("span", "tick");
      tick.style.left = `${100 * shares[l].share}%`;
      tick.style.background = series(slot);
      tick.title = `${about.label} seed ${about.seed}: ${percent(shares[l].share, 0)}`;
      return tick;
    });
    bar.replaceChildren(bar.firstChild, ...ticks);
    row.setAttribute("aria-label", `${name}: updated in ${percent(share, 0)} of rounds, by ${devices.toFixed(1)} devices`);
  });
  say($("cover-note"), others.length ? "Marks: the other selected runs, in their colours." : "");
  heat(view);
}

/** Layer coverage over time: a row per layer, a column per round; the colour is stronger the more devices updated it. */
function heat({ about, rows }) {
  const layers = about.layers.length, trained = rows.filter((row) => row.round > 0 && row.contributors.length === layers);
  const high = Math.max(4, Math.min(14, Math.floor(110 / Math.max(1, layers))));
  $("heat").style.height = `${high * layers}px`;
  const { pen, width } = sheet($("heat"), high * layers);
  pen.fillStyle = colour("cell");
  pen.fillRect(0, 0, width, high * layers);
  const most = largest(trained.map((row) => largest(row.contributors, 0)), 1), wide = width / Math.max(1, trained.length);
  trained.forEach((row, t) => {
    row.contributors.forEach((count, l) => {
      if (count === 0 || row.abandoned) return;
      pen.globalAlpha = 0.25 + (0.75 * count) / most;
      pen.fillStyle = layerColour(l, layers);
      pen.fillRect(t * wide, (layers - 1 - l) * high, Math.max(wide, 0.5), high - 1);
    });
  });
  pen.globalAlpha = 1;
  say($("heat-end"), String(trained.at(-1)?.round ?? ""));
}

function layerRow() {
  const row = make("div", "layer"), bar = make("div", "line");
  row.setAttribute("role", "listitem");
  bar.append(make("span", "fill"));
  row.append(make("span", "who"), make("span", "soft"), bar);
  return row;
}

// -- page events

function themed() {
  list.select(slots, main);
  draw(false);
}

$("theme").addEventListener("click", () => {
  globalThis.theme.toggle();
  themed();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);
new ResizeObserver(() => views.has(main) && (chart.draw(), round.draw())).observe($("shown"));
setInterval(budget, 250);
addEventListener("hashchange", () => {
  fromAddress();
  selectionChanged();
});
addEventListener("pagehide", () => source?.close());
fromAddress();
connect();
// After the first request the token is in a cookie, so it is removed from the address.
if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", `${location.pathname}${location.hash}`);
