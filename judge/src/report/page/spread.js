// Errors inside one site: where they are, and how many there are of each size.

const LETTERS = ".ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+-!";
const LEAST = -40;

/** Returns the power of two of a letter: null for no error, NaN for NaN or infinity. */
function exponentOf(letter) {
  const at = LETTERS.indexOf(letter);
  return at <= 0 ? null : letter === "!" ? NaN : at - 1 + LEAST;
}

/** Returns a typical size for a power of two, divided by the unit. */
function sizeOf(exponent, unit) {
  return Number.isNaN(exponent) ? "nan" : (2 ** exponent * Math.SQRT2) / unit;
}

/** Returns the first index in a cell, along an axis. */
function firstIn(spread, axis, cell) {
  return Math.ceil((cell * spread.lengths[axis]) / spread.cells[axis]);
}

/** Names the indices in the cells from `cell` to `last`, along an axis. */
function range(spread, axis, cell, last = cell) {
  const [from, to] = [firstIn(spread, axis, cell), firstIn(spread, axis, last + 1) - 1];
  return from === to ? String(from) : `${from}–${to}`;
}

/** Returns the names of the axes of a map, by default the two outermost; a single axis is the second. */
function mapAxes(spread, tap) {
  const names = axes(tap);
  return names.length === 1 ? ["", names[0]] : (spread.axes ?? [0, 1]).map((axis) => names[axis]);
}

/** Says which indices share a cell: the map has two axes of at most 24 cells each, or 64 for an innermost axis. */
function aggregation(spread, tap) {
  const shared = [0, 1].map((axis) => [Math.ceil(spread.lengths[axis] / spread.cells[axis]), mapAxes(spread, tap)[axis]])
    .filter(([indices]) => indices > 1).map(([indices, axis]) => `${indices} ${axis} indices`);
  const folded = axes(tap).filter((axis) => !mapAxes(spread, tap).includes(axis)).map((axis) => `all ${axis} indices`);
  return shared.length + folded.length ? `. Each cell is the largest of ${[...shared, ...folded].join(" × ")}` : "";
}

/** Returns the cells of an axis that get a label, so that labels of width `room` do not overlap. */
function labelled(cells, size, room) {
  const every = Math.max(1, Math.ceil(room / size));
  return [...Array(cells).keys()].filter((cell) => cell % every === 0);
}

/** Draws the largest error of each cell of the map. */
function spreadMap(spread, tap, unit, name) {
  const [rows, columns] = spread.cells;
  const [down, across] = mapAxes(spread, tap);
  const [wide, high] = [Math.max(7, Math.min(22, 380 / columns)), 14];
  const widest = (axis) => 7 * String(spread.lengths[axis]).length;
  const [left, top] = [widest(0) + 8, 16];
  const squares = [...spread.largest].map((letter, at) => {
    const [row, column] = [Math.floor(at / columns), at % columns];
    const exponent = exponentOf(letter);
    const size = exponent === null ? null : sizeOf(exponent, unit?.size ?? 1);
    const error = size === null ? "no error" : unit ? `${unit.name} about ${ratio(size)}` : `error about ${figure(size)}`;
    const site = [down && `${down} ${range(spread, 0, row)}`, across && `${across} ${range(spread, 1, column)}`].filter(Boolean).join(", ");
    return drawn("rect", {
      x: left + column * wide, y: top + row * high, width: wide - 1, height: high - 1,
      colour: size === null ? GREY : heat(unit ? size : null),
    }, drawn("title", {}, `${site}: ${error}`));
  });
  const label = (text, x, y, anchor) => drawn("text", { x, y, "text-anchor": anchor }, String(text));
  const marks = [
    down && labelled(rows, high, 14).map((row) => label(firstIn(spread, 0, row), left - 4, top + row * high + 11, "end")),
    labelled(columns, wide, widest(1) + 8).map((column) => label(firstIn(spread, 1, column), left + (column + 0.5) * wide, 11, "middle")),
  ];
  const [width, height] = [left + columns * wide + widest(1), top + rows * high + 4];
  const caption = `${name}: ${[down && `${down} (down)`, across && `${across} (across)`].filter(Boolean).join(" × ")}`;
  return element("figure", { class: "part" }, element("figcaption", { class: "faint" }, caption, aggregation(spread, tap)),
    drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": caption }, squares, marks));
}

/** Draws the number of errors of each size as bars, and the other side's as a line. */
function histogram(spread, correct, unit) {
  const [width, height, left, bottom] = [420, 150, 40, 30];
  const shift = Math.log2(unit?.size ?? 1);
  const ends = [spread, correct].filter(Boolean).flatMap((one) => [one.least, one.least + one.counts.length]);
  const [low, high] = [Math.min(...ends, Math.floor(shift) - 2), Math.max(...ends, Math.ceil(shift) + 2)];
  const x = (exponent) => left + ((exponent - low) / (high - low)) * (width - left - 6);
  const total = (one) => one.counts.reduce((sum, count) => sum + count, 0) || 1;
  const share = (one) => one.counts.map((count) => count / total(one));
  const most = Math.max(...[spread, correct].filter(Boolean).flatMap(share), 1e-9);
  const y = (part) => 10 + (1 - part / most) * (height - bottom - 10);
  const bars = share(spread).map((part, at) => {
    const from = x(spread.least + at);
    return drawn("rect", { class: "candidate", x: from, y: y(part), width: Math.max(1, x(spread.least + at + 1) - from - 1), height: height - bottom - y(part) },
      drawn("title", {}, `${spread.step > 1 ? "about " : ""}${count(spread.counts[at], "value")} of about ${figure(sizeOf(spread.least + at, unit?.size ?? 1))}`));
  });
  const line = correct
    ? drawn("polyline", { class: "correct", points: share(correct).map((part, at) => `${x(correct.least + at + 0.5)},${y(part)}`).join(" ") })
    : "";
  const ticks = [];
  const step = Math.max(1, Math.ceil((high - low) / 6));
  for (let exponent = low; exponent <= high; exponent += step) {
    ticks.push(drawn("text", { x: x(exponent), y: height - 14, "text-anchor": "middle" }, figure(2 ** exponent / (unit?.size ?? 1))));
  }
  const limit = unit === null ? [] : [
    drawn("line", { class: "limit", x1: x(shift), x2: x(shift), y1: 4, y2: height - bottom }),
    drawn("text", { x: x(shift) + 3, y: 12 }, "1"),
  ];
  const floor = drawn("line", { class: "axis", x1: left, x2: width, y1: height - bottom, y2: height - bottom });
  const below = drawn("text", { x: (left + width) / 2, y: height - 1, "text-anchor": "middle" },
    unit?.name ?? "error");
  return drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "number of errors of each size" },
    bars, line, floor, ticks, limit, below);
}
