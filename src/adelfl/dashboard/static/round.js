// One round: its hourglass, and the layers of each device, which fill from the last to the first before the deadline.

import { $, colour, layerColour, say, seconds, sheet, still } from "./draw.js";

const MOST = 240, ROW = 24, HEAD = 22, REPLAY = 450, PLAY = 700;

export class Round {
  /** `fetchRow(name, number)` resolves to a complete row; `serverNow()` returns the server's time. */
  constructor(fetchRow, serverNow) {
    this.fetchRow = fetchRow;
    this.serverNow = serverNow;
    this.view = null;
    this.row = null;
    this.following = true;
    this.playing = false;
    this.began = null;
    $("scrub").addEventListener("input", () => this.turn(Number($("scrub").value)));
    $("follow").addEventListener("click", () => this.follow());
    $("play").addEventListener("click", () => this.play(!this.playing));
    this.play(false);
  }

  /** Show a run, or new rows of the shown run. */
  set(view, fresh) {
    const other = this.view?.name !== view.name;
    this.view = view;
    if (other) {
      this.play(false);
      this.following = true;
    }
    const last = Math.max(1, view.last?.round ?? 1);
    $("scrub").max = last;
    $("scrub").disabled = $("play").disabled = !view.rows.some((row) => row.round > 0);
    if (this.following || other) {
      this.take(view.last, fresh);
      $("scrub").value = last;
    }
    $("follow").setAttribute("aria-pressed", String(this.following));
    this.draw();
  }

  take(row, moving) {
    this.row = row;
    this.began = moving && !still.matches ? performance.now() : null;
    this.frame();
  }

  follow() {
    this.play(false);
    this.following = true;
    if (this.view) this.set(this.view, true);
  }

  async turn(number, moving = false) {
    if (!moving) this.play(false);
    this.following = number >= Number($("scrub").max) && !moving;
    $("follow").setAttribute("aria-pressed", String(this.following));
    $("scrub").value = number;
    const name = this.view.name, requested = (this.requested = number);
    const row = number === this.view.last?.round ? this.view.last : await this.fetchRow(name, number);
    if (row && requested === this.requested && name === this.view.name) this.take(row, moving);
  }

  play(on) {
    this.playing = on;
    say($("play"), on ? "❚❚" : "▶");
    $("play").setAttribute("aria-label", on ? "Stop playing" : "Play rounds from here");
    clearTimeout(this.timer);
    if (!on || !this.view) return;
    const here = this.row?.round ?? 0;
    this.step(here >= Number($("scrub").max) ? 1 : Math.max(1, here));
  }

  async step(number) {
    await this.turn(number, true);
    if (!this.playing) return;
    if (number >= Number($("scrub").max)) return this.follow();
    this.timer = setTimeout(() => this.step(number + 1), PLAY + 150);
  }

  /** Seconds that the current round has taken and may take; null unless the run is in progress on a real clock. */
  now() {
    const { about, last } = this.view, state = about.state;
    if (!this.following || about.clock !== "real" || state !== "running" || about.started === null) return null;
    const passed = this.serverNow() - about.started - (last?.time ?? 0);
    const rest = about.deadlines.slice(last?.round ?? 0), planned = rest.reduce((a, b) => a + b, 0);
    const left = about.budget - (last?.time ?? 0);
    const allowed = planned > 0 ? (rest[0] * left) / planned : last?.deadline ?? left;
    return { passed: Math.max(0, passed), allowed: Math.max(1e-9, Math.min(allowed, left)) };
  }

  /** Share of the round's time that has passed, from 0 to 1. */
  share() {
    const now = this.now();
    if (now) return Math.min(1, now.passed / now.allowed);
    if (!this.row?.round) return this.view.about.state === "finished" ? 1 : 0;
    if (this.began === null) return 1;
    const share = (performance.now() - this.began) / (this.playing ? PLAY : REPLAY);
    if (share >= 1) this.began = null;
    return Math.min(1, share);
  }

  frame() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = null;
      if (!this.view) return;
      this.draw();
      if (this.began !== null || this.now()) this.frame();
    });
  }

  draw() {
    if (!this.view) return;
    const share = this.share();
    this.glass(share);
    this.devices(share);
  }

  glass(share) {
    const high = 29 * Math.sqrt(1 - share), now = this.now(), row = this.row;
    $("above").setAttribute("y", 36 - high);
    $("above").setAttribute("height", high);
    $("below").setAttribute("y", 36 + high);
    $("below").setAttribute("height", 29 - high);
    $("thread").style.visibility = share < 1 ? "visible" : "hidden";
    if (now) {
      const left = now.allowed - now.passed;
      say($("round-name"), `Round ${(this.view.last?.round ?? 0) + 1}, under way`);
      say($("round-left"), left > 0 ? `${seconds(left)} left` : "closing");
      say($("round-note"), `of about ${seconds(now.allowed)}`);
    } else if (!row || row.round === 0) {
      const over = this.view.about.state === "finished";
      say($("round-name"), over ? "No round" : "Round 1");
      say($("round-left"), over ? "closed within the budget" : "not started");
      say($("round-note"), "");
    } else {
      const left = (row.deadline ?? 0) * (1 - share);
      say($("round-name"), `Round ${row.round}${this.view.about.rounds ? ` of ${this.view.about.rounds}` : ""}`);
      say($("round-left"), share < 1 ? `${seconds(left)} left` : row.abandoned ? "abandoned" : "closed");
      const early = row.length !== null && row.deadline && row.length < 0.98 * row.deadline;
      say($("round-note"), `deadline ${seconds(row.deadline)}${early ? `, closed after ${seconds(row.length)}` : ""}`);
    }
    $("glass").setAttribute("aria-label", `Hourglass: ${Math.round(100 * (1 - share))} % of the round's time is left`);
  }

  devices(share) {
    const { about } = this.view, row = this.row;
    const layers = about.layers.length || 1, all = row?.depth.length ?? 0, count = Math.min(MOST, all);
    const wide = $("devices").clientWidth;
    const columns = Math.max(1, Math.min(4, Math.floor(wide / 270), Math.ceil(count / 4)));
    const lines = Math.ceil(count / columns);
    const height = count ? HEAD + ROW * lines + 4 : 60;
    $("devices").style.height = `${height}px`;
    const { pen, width } = sheet($("devices"), height);
    this.words(all, layers);
    if (!count) {
      pen.fillStyle = colour("soft");
      pen.fillText(about.state === "finished" ? "No round closed within the budget." : "No round is finished yet.", 2, 30);
      return;
    }
    const gap = 26, size = (width - gap * (columns - 1)) / columns;
    const look = { cell: colour("cell"), soft: colour("soft"), ink: colour("ink"), late: colour("late"), sand: colour("sand") };
    for (let c = 0; c < columns; c++) {
      const left = c * (size + gap), rows = Math.min(lines, count - c * lines);
      this.head(pen, left, size, rows, look);
      for (let i = 0; i < rows; i++) this.device(pen, c * lines + i, left, HEAD + ROW * i, size, share, layers, look);
    }
  }

  head(pen, left, size, rows, look) {
    const [x0, x1] = [left + 46, left + size - 42];
    pen.fillStyle = look.soft;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    pen.fillText("device", left, 8);
    pen.fillText(x1 - x0 > 190 ? "last layer → first" : "last → first", x0, 8);
    pen.textAlign = "right";
    pen.fillText("batch", left + size, 8);
    pen.fillStyle = look.late;
    pen.fillText("deadline", x1 + 2, 8);
    pen.fillRect(x1 + 1, HEAD - 5, 1.5, ROW * rows + 3);
  }

  device(pen, i, left, top, size, share, layers, look) {
    const { about } = this.view, { depth, batch, devices, nodes } = this.row;
    const steps = layers * about.iterations, done = Math.min(steps, depth[i]), out = batch[i] === 0;
    const [x0, x1] = [left + 46, left + size - 42], middle = top + 8;
    const name = nodes[i] ? `…${nodes[i].slice(-4)}` : String(devices[i] ?? i);
    pen.globalAlpha = out ? 0.45 : 1;
    pen.fillStyle = look.ink;
    pen.textBaseline = "middle";
    pen.textAlign = "left";
    pen.fillText(name, left, middle);
    pen.textAlign = "right";
    pen.fillStyle = look.soft;
    pen.fillText(out ? "idle" : String(batch[i]), left + size, middle);
    // A device that did not finish was in the middle of a layer at the deadline; that layer is not delivered.
    const reached = done < steps ? (done + 0.5) * share : done * Math.min(1, share / 0.95);
    const full = share >= 1 ? done : Math.min(done, Math.floor(reached));
    const cell = (x1 - x0) / steps, space = cell > 6 ? 2 : cell > 3 ? 1 : 0;
    for (let k = 0; k < steps; k++) {
      const shade = layerColour(layers - 1 - (k % layers), layers);
      const part = k < full ? 1 : k === full && share < 1 && !out ? Math.max(0, reached - full) : 0;
      pen.fillStyle = look.cell;
      pen.fillRect(x0 + k * cell, top + 1, cell - space, 13);
      if (!part) continue;
      pen.fillStyle = shade;
      pen.globalAlpha = part < 1 ? 0.5 : 1;
      pen.fillRect(x0 + k * cell, top + 1, (cell - space) * part, 13);
      pen.globalAlpha = out ? 0.45 : 1;
    }
    if (!out && share < 1) {
      pen.fillStyle = look.sand;
      pen.fillRect(x0, top + 16, (x1 - x0) * share, 2.5);
    }
    pen.globalAlpha = 1;
  }

  words(all, layers) {
    const { about } = this.view, row = this.row, now = this.now();
    if (!all) {
      say($("devices-title"), "Devices");
      return say($("devices-note"), "");
    }
    const mean = row.depth.reduce((a, b) => a + b, 0) / all, steps = layers * about.iterations;
    const parts = [`${all} devices finished ${mean.toFixed(1)} of ${steps} ${about.iterations > 1 ? "layer steps" : "layers"} on average`];
    if (about.iterations > 1) parts.push(`${about.iterations} local iterations`);
    if (all > MOST) parts.push(`the first ${MOST} are shown`);
    parts.push(...Object.entries(row.rejected).map(([reason, n]) => `${n} rejected (${reason})`));
    if (row.late) parts.push(`${row.late} late`);
    if (row.abandoned) parts.push("the round was abandoned");
    const first = now ? `Round ${row.round + 1} is under way and drawn at the pace of round ${row.round}, in which ` : "";
    say($("devices-title"), `Devices in round ${row.round + (now ? 1 : 0)}`);
    say($("devices-note"), `${first}${parts.join("; ")}.`);
    $("devices").setAttribute("aria-label", parts.join("; "));
  }
}
