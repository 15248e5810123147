// The heat map: taps by layers, one cell per site.

const GREY = "var(--none)";

/** Returns the color of an err/bound, or of a size without a known bound (null). */
function heat(bound_ratio) {
  if (bound_ratio === null) return "#9cc5e8";
  if (typeof bound_ratio === "string" || !(bound_ratio <= 1)) {
    const far = typeof bound_ratio === "string" ? 1 : Math.min(1, Math.log10(bound_ratio) / 6);
    return `hsl(${28 - 28 * far} 88% ${64 - 14 * far}%)`;
  }
  return `hsl(${135 - 70 * bound_ratio} ${48 + 25 * bound_ratio}% ${70 + 2 * bound_ratio}%)`;
}

/** Colors of the verdicts between pass and fail. */
const COLOURS = { inconclusive: "#c3aee6", known: "#e0b48a", tie: "#e6d68a" };

/** Returns the color of a site or checkpoint. */
function colourOf(row) {
  if (!row) return GREY;
  if (row.verdict === "fail") return heat(typeof row.bound_ratio === "number" ? Math.max(row.bound_ratio, 1.01) : "inf");
  return COLOURS[row.verdict] ?? (isIdentical(row) ? "#63b57c" : heat(row.bound_ratio ?? null));
}

const SIGNS = { fail: "×", inconclusive: "?", tie: "~", known: "k" };

/** Returns the sign of a site, for readers who cannot tell the colors apart. */
function signOf(row) {
  return !row ? "" : SIGNS[row.verdict] ?? (isIdentical(row) ? "=" : "");
}

/** Draws the legend of colors and signs. */
function key() {
  const entry = (colour, sign, text) =>
    element("span", {}, element("i", { colour }, sign), text);
  return element("div", { class: "key", "aria-hidden": "true" },
    entry("#63b57c", "=", "same bits"),
    entry(heat(0.1), "", "err/bound 0.1"),
    entry(heat(0.9), "", "0.9"),
    entry(heat(3), "×", "3"),
    entry(heat(1e5), "×", "1e5"),
    entry(COLOURS.tie, SIGNS.tie, "tie"),
    entry(COLOURS.known, SIGNS.known, "known failure"),
    entry(COLOURS.inconclusive, SIGNS.inconclusive, "inconclusive"),
    entry(GREY, "", "not compared"));
}

const START = "start";
const END = "end";

/** Returns the column of a row: its layer, or the column before or after all layers. */
function columnOf(row) {
  return row.layer ?? (row.tap === "embed" || row.tap === "tokens" ? START : END);
}

/** Returns the worse of two rows: by verdict, then by err/bound, then by error. */
function worse(one, two) {
  const size = (row) => (typeof row.bound_ratio === "string" ? Infinity : row.bound_ratio ?? -1);
  const error = (row) => judged(row)?.max_abs ?? 0;
  const difference = RANK[two.verdict] - RANK[one.verdict] || size(two) - size(one) || error(two) - error(one);
  return difference > 0 ? two : one;
}

/** True if a row is shown for a pass; null means all passes. */
const isInPass = (row, pass) => pass === null || row.pass === null || row.pass === pass;

/** Sorts the rows of a pass by tap and column; without a pass, keeps the worst row of all passes. */
function cells(rows, pass) {
  const taps = new Map();
  const columns = new Set();
  for (const row of rows) {
    if (!isInPass(row, pass)) continue;
    const column = columnOf(row);
    columns.add(column);
    const cells = taps.get(row.tap) ?? new Map();
    const known = cells.get(column);
    cells.set(column, known ? worse(known, row) : row);
    taps.set(row.tap, cells);
  }
  const layers = [...columns].filter((column) => typeof column === "number").sort((a, b) => a - b);
  const order = [...(columns.has(START) ? [START] : []), ...layers, ...(columns.has(END) ? [END] : [])];
  return { taps: inOrder(taps), columns: order };
}

/** Sorts taps by data flow: before the layers, in them, after them. */
function inOrder(taps) {
  const rank = ([, cells]) => (cells.has(START) ? 0 : cells.has(END) ? 2 : 1);
  return [...taps].sort((a, b) => rank(a) - rank(b));
}

/** Makes one control of a group reachable with Tab: the selected one, or the first. Arrow keys reach the others. */
function setTabStop(group) {
  (group.querySelector("[aria-current]") ?? group.querySelector("button:not([disabled])"))?.setAttribute("tabindex", 0);
}

/** Draws the map; `choose` is called with the row of a clicked cell. */
function heatMap(rows, pass, first, chosen, choose) {
  const { taps, columns } = cells(rows, pass);
  const isAt = (row, other) => other?.tap === row.tap && other.layer === row.layer && isInPass(other, pass);
  const cell = (row) => {
    if (!row) return element("td", {}, element("button", { type: "button", tabindex: -1, disabled: "", "aria-label": "not compared" }));
    return element("td", {}, element("button", {
      type: "button",
      class: isAt(row, first) ? "first" : null,
      colour: colourOf(row),
      tabindex: -1,
      "aria-current": isAt(row, chosen) ? "true" : null,
      "aria-label": siteLabel(row),
      title: siteLabel(row),
      onclick: () => choose(row),
    }, signOf(row)));
  };
  const body = taps.map(([tap, cells]) => element("tr", {}, element("th", { scope: "row" }, tap), columns.map((column) => cell(cells.get(column)))));
  const head = element("tr", {}, element("th", {}, "layer"),
    columns.map((column, index) => element("th", { scope: "col" }, columnName(column, index, columns.length))));
  const table = element("table", { class: "map", "aria-label": "verdicts by tap and layer", onkeydown: moveFocus },
    element("thead", {}, head), element("tbody", {}, body));
  setTabStop(table);
  return element("div", { class: "scroll" }, table);
}

/** Names a column; of more than 40 layers, names every fourth. */
function columnName(column, index, all) {
  return typeof column === "string" || all <= 40 || column % 4 === 0 ? String(column) : "";
}

/** Moves the focus to the next compared cell with the arrow keys. */
function moveFocus(event) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  const cell = event.target.closest("td");
  if (!step || !cell) return;
  event.preventDefault();
  const grid = [...event.currentTarget.tBodies[0].rows];
  let [row, column] = [grid.indexOf(cell.parentNode), cell.cellIndex];
  for (;;) {
    row += step[0];
    column += step[1];
    const next = grid[row]?.cells[column];
    if (!next) return;
    const control = next.querySelector("button, a");
    if (control && !control.disabled) return control.focus();
  }
}
