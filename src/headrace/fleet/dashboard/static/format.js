// Numbers and times as people read them. What is not known is a dash.

export const DASH = "–";
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** 0.00123 s → "1.2 ms". */
export function seconds(value) {
  if (!known(value)) return DASH;
  if (value === 0) return "0";
  if (value < 0.001) return `${digits(value * 1e6)} µs`;
  if (value < 1) return `${digits(value * 1e3)} ms`;
  if (value < 120) return `${digits(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${digits(value / 3600)} h`;
  return `${Math.round(value / 86400)} d`;
}

/** 12345 → "12.3k". */
export function count(value) {
  if (!known(value)) return DASH;
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= size) return digits(value / (unit === "k" ? 1e3 : size)) + unit;
  }
  return Number.isInteger(value) ? value.toLocaleString("en") : digits(value);
}

export function percent(value) {
  if (!known(value)) return DASH;
  return `${value > 0 && value < 0.01 ? "<1" : Math.round(value * 100)}%`;
}

/** Money in whatever currency the fleet's file has: no sign. */
export function money(value) {
  if (!known(value)) return DASH;
  if (value === 0) return "0";
  if (Math.abs(value) >= 100) return value.toLocaleString("en", { maximumFractionDigits: 0 });
  if (Math.abs(value) >= 1) return value.toFixed(2);
  return Number(value.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
}

export function clockTime(wall) {
  return new Date(wall * 1000).toLocaleTimeString("en-GB");
}

/** How long ago, in words that stay for a while. */
export function ago(span) {
  if (!known(span) || span < 1) return "now";
  return `${seconds(Math.floor(span))} ago`;
}

function digits(value) {
  const size = Math.abs(value);
  if (size >= 100) return Math.round(value).toLocaleString("en");
  if (size >= 10) return String(Number(value.toFixed(1)));
  return String(Number(value.toFixed(size >= 1 ? 2 : 3)));
}
