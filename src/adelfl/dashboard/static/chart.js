// Accuracy against time, one line per selected run. The legend shows the values at the pointer, which arrow keys move.

import { $, colour, largest, make, percent, seconds, series, sheet, ticks } from "./draw.js";

const LEFT = 46, RIGHT = 14, TOP = 10, BOTTOM = 34;

export class Chart {
  /** `drop(name)` is called when the viewer removes a run from the chart. */
  constructor(drop) {
    this.drop = drop;
    this.canvas = $("chart");
    this.lines = [];
    this.at = null;
    this.canvas.addEventListener("pointermove", (event) => this.read(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.read(null));
    this.canvas.addEventListener("blur", () => this.read(null));
    this.canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      this.at = Math.max(0, Math.min(this.most, (this.at ?? this.most) + (step * this.most) / 50));
      this.draw();
    });
  }

  /** Lines: name, label, seed, slot, budget, clock, and rows that were evaluated. */
  set(lines) {
    this.lines = lines;
    this.draw();
  }

  read(x) {
    const before = this.at;
    this.at = x === null || !this.inner ? null : Math.max(0, Math.min(this.most, ((x - LEFT) / this.inner) * this.most));
    if (before !== this.at) this.draw();
  }

  draw() {
    const { pen, width, height } = sheet(this.canvas);
    const points = this.lines.flatMap((line) => line.rows);
    this.most = largest([...this.lines.map((line) => line.budget ?? 0), ...points.map((row) => row.time)], 1e-9);
    const top = Math.min(1, Math.ceil(10 * largest(points.map((row) => row.accuracy), 0.1) + 0.2) / 10);
    this.inner = width - LEFT - RIGHT;
    const x = (time) => LEFT + (time / this.most) * this.inner;
    const y = (accuracy) => height - BOTTOM - (accuracy / top) * (height - TOP - BOTTOM);
    this.axes(pen, x, y, width, height, top);
    for (const line of [...this.lines].reverse()) this.line(pen, line, x, y);
    if (this.at !== null) this.crosshair(pen, x, y, height);
    this.legend();
    const words = this.lines.map((line) => `${line.label} seed ${line.seed} ${percent(line.rows.at(-1)?.accuracy)}`);
    this.canvas.setAttribute("aria-label", `Accuracy against time: ${words.join("; ")}. Arrow keys move the time at which values are shown.`);
  }

  axes(pen, x, y, width, height, top) {
    pen.strokeStyle = colour("grid");
    pen.fillStyle = colour("soft");
    pen.lineWidth = 1;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const value of ticks(top, 5)) {
      pen.beginPath();
      pen.moveTo(LEFT, Math.round(y(value)) + 0.5);
      pen.lineTo(width - RIGHT, Math.round(y(value)) + 0.5);
      pen.stroke();
      pen.fillText(`${Math.round(100 * value)} %`, LEFT - 8, y(value));
    }
    pen.textBaseline = "top";
    for (const value of ticks(this.most, width < 420 ? 4 : 8)) {
      pen.textAlign = x(value) > width - RIGHT - 14 ? "right" : "center";
      pen.fillText(String(Number(value.toPrecision(6))), x(value), height - BOTTOM + 7);
    }
    pen.textAlign = "right";
    pen.fillText("seconds", width - RIGHT, height - 13);
    const budgets = new Set(this.lines.map((line) => line.budget));
    if (budgets.size !== 1 || budgets.has(null)) return;
    const end = Math.round(x([...budgets][0])) - 0.5;
    pen.strokeStyle = colour("late");
    pen.setLineDash([4, 4]);
    pen.beginPath();
    pen.moveTo(end, TOP);
    pen.lineTo(end, height - BOTTOM);
    pen.stroke();
    pen.setLineDash([]);
    pen.fillStyle = colour("late");
    pen.textAlign = "right";
    pen.fillText("budget", end - 5, TOP);
  }

  line(pen, line, x, y) {
    pen.strokeStyle = pen.fillStyle = series(line.slot);
    pen.lineWidth = line.main ? 2.6 : 1.7;
    pen.lineJoin = "round";
    pen.beginPath();
    line.rows.forEach((row, i) => pen[i ? "lineTo" : "moveTo"](x(row.time), y(row.accuracy)));
    pen.stroke();
    const last = line.rows.at(-1);
    if (!last) return;
    pen.beginPath();
    pen.arc(x(last.time), y(last.accuracy), line.main ? 4.5 : 3.2, 0, 2 * Math.PI);
    pen.fill();
  }

  crosshair(pen, x, y, height) {
    pen.strokeStyle = colour("soft");
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(Math.round(x(this.at)) + 0.5, TOP);
    pen.lineTo(Math.round(x(this.at)) + 0.5, height - BOTTOM);
    pen.stroke();
    for (const line of this.lines) {
      const row = this.before(line);
      if (!row) continue;
      pen.fillStyle = series(line.slot);
      pen.strokeStyle = colour("card");
      pen.lineWidth = 2;
      pen.beginPath();
      pen.arc(x(row.time), y(row.accuracy), 5, 0, 2 * Math.PI);
      pen.fill();
      pen.stroke();
    }
  }

  /** The last evaluation of a line before the selected time, or the last one if no time is selected. */
  before(line) {
    return this.at === null ? line.rows.at(-1) : line.rows.findLast((row) => row.time <= this.at);
  }

  legend() {
    const list = $("legend");
    const key = JSON.stringify(this.lines.map((line) => [line.name, line.slot]));
    if (list.dataset.key !== key) {
      list.dataset.key = key;
      list.replaceChildren(...this.lines.map((line) => this.entry(line)));
    }
    this.lines.forEach((line, i) => {
      const [swatch, , value] = list.children[i].children;
      swatch.style.background = series(line.slot);
      const row = this.before(line);
      value.textContent = row ? `${percent(row.accuracy)} at ${seconds(row.time)}` : "not evaluated";
    });
  }

  entry(line) {
    const item = make("li");
    const name = make("b", "", `${line.label} ${line.seed}`.trim());
    name.title = line.name;
    item.append(make("span", "swatch"), name, make("span", "soft"));
    if (this.lines.length > 1) {
      const remove = make("button", "", "×");
      remove.type = "button";
      remove.setAttribute("aria-label", `Remove ${line.label} seed ${line.seed} from the chart`);
      remove.addEventListener("click", () => this.drop(line.name));
      item.append(remove);
    }
    return item;
  }
}
