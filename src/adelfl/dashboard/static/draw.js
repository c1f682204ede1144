// Small things that everything on the page needs: elements, numbers in words, colours, canvases.

export const $ = (id) => document.getElementById(id);

/** An element with a class and text; text from a record only ever comes in here. */
export function make(tag, className = "", text = "") {
  const found = document.createElement(tag);
  if (className) found.className = className;
  if (text !== "") found.textContent = text;
  return found;
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

/** The largest of any number of values; Math.max takes only so many at once. */
export const largest = (values, least) => values.reduce((a, b) => (b > a ? b : a), least);

export const still = matchMedia("(prefers-reduced-motion: reduce)");

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
export const series = (slot) => colour(`s${slot}`);

// From the last layer, which every device reaches first, to the first. Other hues than those of runs.
const RAMP = [[150, 164, 246], [126, 112, 228], [142, 66, 198], [178, 42, 150]];

export function layerColour(l, layers) {
  const x = layers > 1 ? ((layers - 1 - l) / (layers - 1)) * (RAMP.length - 1) : 0;
  const i = Math.min(RAMP.length - 2, Math.floor(x));
  const mix = RAMP[i].map((c, k) => Math.round(c + (x - i) * (RAMP[i + 1][k] - c)));
  return `rgb(${mix.join(" ")})`;
}

/** A canvas in CSS pixels, sharp on every screen. */
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

/** Round numbers that divide a range into about so many steps. */
export function ticks(most, count) {
  if (!(most > 0)) return [0];
  const rough = most / count, size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * size).find((s) => s >= rough);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
}
