// Helpers for all modules of the page: elements, formatted numbers, colours, canvases.

export const $ = (id) => document.getElementById(id);

/** Create an element with a class and text; text from records is only inserted here, as text content. */
export function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== "") element.textContent = text;
  return element;
}

export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const percent = (x, digits = 1) => (x === null || x === undefined ? "–" : `${(100 * x).toFixed(digits)} %`);

export function seconds(x) {
  if (x === null || x === undefined) return "–";
  const size = Math.abs(x);
  if (size >= 7200) return `${(x / 3600).toFixed(1)} h`;
  if (size >= 600) return `${(x / 60).toFixed(1)} min`;
  return `${size >= 100 ? x.toFixed(0) : size >= 10 ? x.toFixed(1) : size >= 1 || size === 0 ? x.toFixed(2) : x.toPrecision(3)} s`;
}

/** The largest value, at least `least`; Math.max fails for very many arguments. */
export const largest = (values, least) => values.reduce((a, b) => (b > a ? b : a), least);

export const still = matchMedia("(prefers-reduced-motion: reduce)");

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
export const series = (slot) => colour(`s${slot}`);

// From the last layer, where devices begin, to the first; these hues differ from those of runs.
const RAMP = [[150, 164, 246], [126, 112, 228], [142, 66, 198], [178, 42, 150]];

export function layerColour(l, layers) {
  const x = layers > 1 ? ((layers - 1 - l) / (layers - 1)) * (RAMP.length - 1) : 0;
  const i = Math.min(RAMP.length - 2, Math.floor(x));
  const mix = RAMP[i].map((c, k) => Math.round(c + (x - i) * (RAMP[i + 1][k] - c)));
  return `rgb(${mix.join(" ")})`;
}

/** Clear a canvas and return its pen; lengths are CSS pixels, at the resolution of the screen. */
export function sheet(canvas, height) {
  const width = canvas.clientWidth, scale = devicePixelRatio || 1;
  const tall = height ?? canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(tall * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(tall * scale);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, tall);
  pen.font = "12px system-ui, sans-serif";
  return { pen, width, height: tall };
}

/** Round numbers that divide the range from 0 to `most` into about `count` steps. */
export function ticks(most, count) {
  if (!(most > 0)) return [0];
  const rough = most / count, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * size).find((s) => s >= rough);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
}
