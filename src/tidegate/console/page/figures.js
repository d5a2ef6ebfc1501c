// Figures as people read them: three digits, a unit, local time. Unknown is a dash, never a zero.

export const UNKNOWN = "–";
const THIN = " ";

function digits(value) {
  const size = Math.abs(value);
  if (size >= 100 || size === 0) return value.toFixed(0);
  if (size >= 10) return String(Number(value.toFixed(1)));
  return String(Number(value.toPrecision(size >= 1 ? 3 : 2)));
}

/** 12 345 as it is; from 100 000 on in thousands and millions. */
export function count(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (Math.abs(value) >= 1e9) return digits(value / 1e9) + THIN + "G";
  if (Math.abs(value) >= 1e6) return digits(value / 1e6) + THIN + "M";
  if (Math.abs(value) >= 1e5) return digits(value / 1e3) + THIN + "k";
  if (!Number.isInteger(value)) return figure(value);
  return String(value).replace(/\B(?=(\d{3})+(?!\d))/g, THIN);
}

/** Any figure in three digits or so. */
export function figure(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (!Number.isFinite(value)) return String(value);
  if (value !== 0 && Math.abs(value) < 1e-4) return value.toExponential(1);
  if (Math.abs(value) >= 1000) return count(Math.round(value));
  return digits(value);
}

export function rate(per_s) {
  return per_s === null || per_s === undefined ? UNKNOWN : figure(per_s) + "/s";
}

export function part(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const percent = value * 100;
  return (percent > 99 && percent < 100 ? percent.toFixed(2) : digits(percent)) + THIN + "%";
}

/** In the unit that suits it, or another that it stands beside. */
export function duration(seconds, beside = seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  const size = Math.abs(beside);
  if (seconds === 0) return "0 s";
  if (size < 1e-3) return digits(seconds * 1e6) + THIN + "µs";
  if (size < 1) return digits(seconds * 1e3) + THIN + "ms";
  if (size < 120) return digits(seconds) + THIN + "s";
  if (size < 7200) return digits(seconds / 60) + THIN + "min";
  if (size < 172800) return digits(seconds / 3600) + THIN + "h";
  return digits(seconds / 86400) + THIN + "days";
}

export function bytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (Math.abs(value) >= 1024 && power < units.length - 1) { value /= 1024; power += 1; }
  return digits(value) + THIN + units[power];
}

/** A value in the unit of an agreement's metric. */
export function inUnit(value, unit) {
  if (value === null || value === undefined) return UNKNOWN;
  if (unit === "s" || unit === "seconds") return duration(value);
  if (unit === "bytes" || unit === "B") return bytes(value);
  if (unit === "fraction" || unit === "%") return part(value);
  if (unit.includes("/s") || unit.includes("per_s") || unit.includes("per second")) return rate(value);
  return unit ? figure(value) + THIN + unit : figure(value);
}

/** A measured figure by its name: names carry units. */
export function named(name, value) {
  if (/_per_s$|_rate$/.test(name)) return rate(value);
  if (/_s$|_s_p\d+$/.test(name)) return duration(value);
  if (/_bytes$/.test(name)) return bytes(value);
  return figure(value);
}

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const WHOLE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** Local time; with its day when that is not today. */
export function moment(at) {
  if (at === null || at === undefined) return UNKNOWN;
  const when = new Date(at * 1000);
  const clock = CLOCK.format(when);
  return when.toDateString() === new Date().toDateString() ? clock : DAY.format(when) + ", " + clock;
}

export function wholeMoment(at) {
  return at === null || at === undefined ? UNKNOWN : WHOLE.format(new Date(at * 1000));
}

export function plural(number, one, many = one + "s") {
  return count(number) + " " + (number === 1 ? one : many);
}
