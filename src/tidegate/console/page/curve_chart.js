// Points that were measured and the curve that was fitted through them.

import { colours, pen, ticks } from "./axes.js";
import { h } from "./element.js";
import { figure } from "./figures.js";

const LEFT = 56, RIGHT = 10, TOP = 8, BOTTOM = 34;

export function curveChart({ title, points, curve, x, y, signal }) {
  const canvas = h("canvas", { class: "plot", role: "img", "aria-label": `${title}: ${points.length} points and the fitted curve, ${y} over ${x}` });
  const draw = () => { if (canvas.isConnected) drawCurve(canvas, points, curve, x, y); };
  const sizes = new ResizeObserver(draw);
  sizes.observe(canvas);
  signal.addEventListener("abort", () => sizes.disconnect());
  addEventListener("themechange", () => requestAnimationFrame(draw), { signal });
  return h("figure", { class: "chart" }, canvas);
}

function drawCurve(canvas, points, curve, xName, yName) {
  const { context, width, height } = pen(canvas);
  const ink = colours();
  const all = [...points, ...curve];
  const span = (place) => {
    const values = all.map((point) => point[place]);
    return [Math.min(0, ...values), Math.max(...values)];
  };
  const columns = ticks(...span(0), Math.max(2, Math.floor(width / 90)));
  const rows = ticks(...span(1));
  const xOf = (value) => LEFT + (value - columns[0]) / (columns.at(-1) - columns[0]) * (width - LEFT - RIGHT);
  const yOf = (value) => height - BOTTOM - (value - rows[0]) / (rows.at(-1) - rows[0]) * (height - TOP - BOTTOM);
  context.textBaseline = "middle";
  for (const value of rows) {
    const at = Math.round(yOf(value)) + 0.5;
    context.strokeStyle = ink.grid;
    context.beginPath(); context.moveTo(LEFT, at); context.lineTo(width - RIGHT, at); context.stroke();
    context.fillStyle = ink.soft;
    context.textAlign = "right";
    context.fillText(figure(value), LEFT - 5, at);
  }
  context.textAlign = "center";
  for (const value of columns) context.fillText(figure(value), xOf(value), height - BOTTOM + 10);
  context.fillText(xName, (LEFT + width) / 2, height - 7);
  context.save();
  context.translate(9, (height - BOTTOM) / 2);
  context.rotate(-Math.PI / 2);
  context.fillText(yName, 0, 0);
  context.restore();
  context.fillStyle = ink.blue;
  context.globalAlpha = 0.65;
  for (const [px, py] of points) { context.beginPath(); context.arc(xOf(px), yOf(py), 2.6, 0, 7); context.fill(); }
  context.globalAlpha = 1;
  context.strokeStyle = ink.amber;
  context.lineWidth = 2;
  context.beginPath();
  for (const [px, py] of curve) context.lineTo(xOf(px), yOf(py));
  context.stroke();
}
