// Where errors are inside of one place, and of what size.

const LETTERS = ".ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-!";
const LEAST = -40;

/** The power of two of a cell's largest error; null for none, NaN for what is no number. */
function exponentOf(letter) {
  const at = LETTERS.indexOf(letter);
  return at <= 0 ? null : letter === "!" ? NaN : at - 1 + LEAST;
}

/** In units of what is allowed, a little below the middle of its power of two. */
function sizeOf(exponent, unit) {
  return Number.isNaN(exponent) ? "nan" : (2 ** exponent * Math.SQRT2) / unit;
}

/** The indices that cells of a map stand for, along an axis. */
function range(spread, axis, cell, last = cell) {
  const [length, cells] = [spread.lengths[axis], spread.cells[axis]];
  const [from, to] = [Math.ceil((cell * length) / cells), Math.ceil(((last + 1) * length) / cells) - 1];
  return from === to ? String(from) : `${from}–${to}`;
}

function spreadMap(spread, tap, unit, name) {
  const [rows, columns] = spread.cells;
  const [down, across] = axes(tap);
  const [wide, high] = [Math.max(7, Math.min(22, 380 / columns)), 14];
  const [left, top] = [46, 16];
  const squares = [...spread.largest].map((letter, at) => {
    const [row, column] = [Math.floor(at / columns), at % columns];
    const exponent = exponentOf(letter);
    const size = exponent === null ? null : sizeOf(exponent, unit ?? 1);
    const said = exponent === null ? "none" : unit === null ? `about ${figure(size)}` : `about ${ratio(size)} of what is allowed`;
    const where = [down && `${down} ${range(spread, 0, row)}`, across && `${across} ${range(spread, 1, column)}`].filter(Boolean).join(", ");
    return drawn("rect", {
      x: left + column * wide, y: top + row * high, width: wide - 1, height: high - 1,
      colour: size === null ? GREY : unit === null ? heat(null) : heat(size),
    }, drawn("title", {}, `${where}: ${said}`));
  });
  const label = (text, x, y, anchor) => drawn("text", { x, y, "text-anchor": anchor }, text);
  const every = Math.max(1, Math.ceil(rows / 8));
  const marks = [...Array(rows).keys()].filter((row) => row % every === 0)
    .map((row) => (down ? label(range(spread, 0, row), left - 4, top + row * high + 11, "end") : ""));
  const ends = columns > 1 ? [label(range(spread, 1, 0), left, 11, "start"), label(range(spread, 1, columns - 1), left + columns * wide - 1, 11, "end")] : [];
  const [width, height] = [left + columns * wide + 2, top + rows * high + 18];
  const caption = [down, across].filter(Boolean).join(" (down) × ") + (across ? " (across)" : "");
  return element("figure", { class: "part" }, element("figcaption", { class: "faint" }, `${name}: ${caption}`),
    drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `largest errors, ${caption}` }, squares, marks, ends));
}

/** Bars of how many errors there are of each size; the honest side's as a line behind. */
function histogram(spread, honest, unit) {
  const [width, height, left, bottom] = [420, 150, 40, 30];
  const shift = Math.log2(unit ?? 1);
  const ends = [spread, honest].filter(Boolean).flatMap((one) => [one.least, one.least + one.counts.length]);
  const [low, high] = [Math.min(...ends, Math.floor(shift) - 2), Math.max(...ends, Math.ceil(shift) + 2)];
  const x = (exponent) => left + ((exponent - low) / (high - low)) * (width - left - 6);
  const total = (one) => one.counts.reduce((sum, count) => sum + count, 0) || 1;
  const share = (one) => one.counts.map((count) => count / total(one));
  const most = Math.max(...[spread, honest].filter(Boolean).flatMap(share), 1e-9);
  const y = (part) => 10 + (1 - part / most) * (height - bottom - 10);
  const bars = share(spread).map((part, at) => {
    const from = x(spread.least + at);
    return drawn("rect", { class: "candidate", x: from, y: y(part), width: Math.max(1, x(spread.least + at + 1) - from - 1), height: height - bottom - y(part) },
      drawn("title", {}, `${spread.step > 1 ? "about " : ""}${count(spread.counts[at], "value")} of about ${figure(sizeOf(spread.least + at, unit ?? 1))}`));
  });
  const line = honest
    ? drawn("polyline", { class: "honest", points: share(honest).map((part, at) => `${x(honest.least + at + 0.5)},${y(part)}`).join(" ") })
    : "";
  const ticks = [];
  const step = Math.max(1, Math.ceil((high - low) / 6));
  for (let exponent = low; exponent <= high; exponent += step) {
    ticks.push(drawn("text", { x: x(exponent), y: height - 14, "text-anchor": "middle" }, figure(2 ** exponent / (unit ?? 1))));
  }
  const allowed = unit === null ? [] : [
    drawn("line", { class: "allowed", x1: x(shift), x2: x(shift), y1: 4, y2: height - bottom }),
    drawn("text", { x: x(shift) + 3, y: 12 }, "allowed"),
  ];
  const floor = drawn("line", { class: "axis", x1: left, x2: width, y1: height - bottom, y2: height - bottom });
  const below = drawn("text", { x: (left + width) / 2, y: height - 1, "text-anchor": "middle" },
    unit === null ? "error" : "error in units of what is allowed");
  return drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "how many errors there are of each size" },
    bars, line, floor, ticks, allowed, below);
}
