// What every drawing needs: a canvas as sharp as the screen, colours of the theme, ticks at round figures.

const INK_NAMES = ["ink", "soft", "axis", "grid", "panel", "blue", "amber", "teal", "brick", "violet", "grey"];
let inks = null;

/** The colours as the theme has them now: a canvas knows no CSS variables. */
export function colours() {
  if (inks) return inks;
  const probe = document.createElement("span");
  document.body.append(probe);
  inks = {};
  for (const name of INK_NAMES) {
    probe.style.color = `var(--${name})`;
    inks[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return inks;
}

addEventListener("themechange", () => { inks = null; });

/** Numbers at round steps from 0 or below up to at least `highest`. */
export function ticks(lowest, highest, wanted = 4) {
  const width = Math.max(highest - lowest, 1e-12);
  const rough = width / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  const found = [];
  for (let at = Math.floor(lowest / step); found.length === 0 || found.at(-1) < highest - step * 1e-6; at += 1) found.push(at * step);
  return found;
}

const TIME_STEPS_S = [5, 10, 15, 30, 60, 120, 300, 600, 1800];

/** Moments at round times, as many as there is room for. */
export function timeTicks(since, until, room_px) {
  const least = (until - since) * 70 / Math.max(room_px, 70);
  const step = TIME_STEPS_S.find((each) => each >= least) ?? 3600;
  const found = [];
  for (let at = Math.ceil(since / step) * step; at <= until; at += step) found.push(at);
  return found;
}

/** Fit a canvas to its box and give a pen that draws in CSS pixels, on nothing. */
export function pen(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const sharpness = devicePixelRatio || 1;
  const wide = Math.round(width * sharpness);
  const high = Math.round(height * sharpness);
  if (canvas.width !== wide || canvas.height !== high) { canvas.width = wide; canvas.height = high; }
  const context = canvas.getContext("2d");
  context.setTransform(sharpness, 0, 0, sharpness, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "11px system-ui, sans-serif";
  context.lineJoin = "round";
  return { context, width, height };
}
