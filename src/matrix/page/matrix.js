// The page of a matrix: verdict, table of cells, cells that need work, known failures.

const matrix = await held();

const STANDINGS = {
  pass: ["", "passes"],
  known: ["×", "known failure"],
  inconclusive: ["?", "inconclusive"],
  "unexpected pass": ["!", "known failure that now passes"],
  fail: ["×", "fails"],
  error: ["E", "no verdict"],
};

/** Returns the color of a cell. */
function cellColour(cell) {
  const bound_ratio = typeof cell.bound_ratio === "string" ? "inf" : cell.bound_ratio;
  if (cell.standing === "pass") return bound_ratio === 0 ? "#63b57c" : heat(bound_ratio);
  if (cell.standing === "fail") return heat(typeof bound_ratio === "number" ? Math.max(bound_ratio, 1.01) : "inf");
  return { known: "#d8cfc0", inconclusive: "#c3aee6", "unexpected pass": "#ffd479", error: "#ff9aa2" }[cell.standing];
}

const valuesOf = (cell, axes) => axes.map((axis) => cell.values[axis]);
const keyOf = (values) => JSON.stringify(values);
const nameOf = (cell) => Object.values(cell.values).join(", ");
const classOf = (standing) => standing.split(" ")[0];

/** Draws a cell as a link to its report, if it has one. */
function drawCell(cell) {
  const first = cell.first_divergence;
  const at = first ? `${first.tap}${first.layer === null ? "" : ` L${first.layer}`}` : "";
  const bound_ratio = cell.bound_ratio === null ? "" : ratio(cell.bound_ratio);
  const label = [nameOf(cell), cell.standing, bound_ratio && `err/bound ${bound_ratio}`, first && `first wrong at ${place(first)}`];
  const [sign] = STANDINGS[cell.standing];
  return element(cell.report ? "a" : "span", {
    class: "cell",
    colour: cellColour(cell),
    href: cell.report ? `${cell.report}/report.html` : null,
    title: label.filter(Boolean).join(", "),
    "aria-label": label.filter(Boolean).join(", "),
  }, [sign, cell.standing, bound_ratio].filter(Boolean).join(" "), element("small", {}, at || "\u00a0"));
}

/** Draws the table of cells. */
function cellsTable() {
  const distinct = (axes) => [...new Map(matrix.cells.map((cell) => [keyOf(valuesOf(cell, axes)), valuesOf(cell, axes)])).values()];
  const cells = new Map(matrix.cells.map((cell) => [keyOf([valuesOf(cell, matrix.rows), valuesOf(cell, matrix.columns)]), cell]));
  const heads = distinct(matrix.columns);
  const head = element("tr", {},
    element("th", {}, matrix.rows.join(", ")),
    heads.map((values) => element("th", { scope: "col" }, values.join(", "))));
  const line = (values) => element("tr", {},
    element("th", { scope: "row" }, values.join(", ")),
    heads.map((column) => {
      const cell = cells.get(keyOf([values, column]));
      return element("td", {}, cell ? drawCell(cell) : "");
    }));
  return element("section", {},
    element("p", { class: "faint" }, "Verdict, largest err/bound and first wrong site of each cell. Click a cell to open its report."),
    element("div", { class: "scroll" }, element("table", { class: "cells", "aria-label": "verdicts by cell", onkeydown: moveFocus },
      element("thead", {}, head), element("tbody", {}, distinct(matrix.rows).map(line)))),
    cellsKey());
}

/** Draws the legend of the cells. */
function cellsKey() {
  const examples = { pass: 0.1, fail: 1e3 };
  return element("div", { class: "key", "aria-hidden": "true" }, Object.entries(STANDINGS).map(([standing, [sign, text]]) =>
    element("span", {}, element("i", { colour: cellColour({ standing, bound_ratio: examples[standing] ?? null }) }, sign), text)));
}

/** Draws the findings of one cell. */
function cellStory(cell) {
  const first = cell.first_divergence;
  return element("section", {},
    element("h3", {}, cell.report ? element("a", { href: `${cell.report}/report.html` }, nameOf(cell)) : nameOf(cell)),
    facts([
      ["verdict", element("span", { class: classOf(cell.standing) }, cell.standing)],
      ["reason", cell.told],
      ["first wrong", first && place(first)],
      ["err/bound", cell.bound_ratio === null ? null : ratio(cell.bound_ratio)],
      ["cause", cell.because],
    ]),
    command(cell.shell));
}

/** Draws the findings of all cells with one of these results. */
function stories(title, standings) {
  const cells = matrix.cells.filter((cell) => standings.includes(cell.standing));
  return cells.length ? element("section", {}, element("h2", {}, `${title} (${cells.length})`), cells.map(cellStory)) : "";
}

/** Draws the verdict of the matrix. */
function matrixHead() {
  return element("header", { class: `verdict ${matrix.verdict}` },
    element("h1", {}, `${matrix.verdict.toUpperCase()}: ${count(matrix.cells.length, "cell")}`),
    element("p", {}, matrix.tally));
}

/** Draws how the matrix was made. */
function matrixMade() {
  const kept = matrix.cells.filter((cell) => !cell.was_run).length;
  return element("section", {}, element("h2", {}, "How this matrix was made"),
    command(matrix.shell),
    facts([
      ["xcheck", [matrix.xcheck.version, matrix.xcheck.commit].filter(Boolean).join(", ")],
      ["run", `${count(matrix.cells.length - kept, "cell")}; ${grouped(kept)} more kept from the earlier run`],
    ]));
}

document.getElementById("page").replaceChildren(...[
  matrixHead(),
  cellsTable(),
  architecturesOf(matrix.architectures),
  stories("To fix", ["error", "fail", "unexpected pass", "inconclusive"]),
  stories("Known failures", ["known"]),
  matrixMade(),
  glossary(),
].filter(Boolean));
