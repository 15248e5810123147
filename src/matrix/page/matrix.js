// The page of a matrix: verdict, table of cells, what is to be done, what is known.

const matrix = JSON.parse(document.getElementById("report").textContent);

const STANDINGS = {
  pass: ["", "it passes"],
  known: ["×", "as bad as it is known to be"],
  inconclusive: ["?", "could not be judged"],
  "unexpected pass": ["!", "known to be bad, and it passes"],
  fail: ["×", "fails"],
  error: ["E", "no verdict"],
};

function cellColour(cell) {
  const headroom = typeof cell.headroom === "string" ? "inf" : cell.headroom;
  if (cell.standing === "pass") return headroom === 0 ? "#63b57c" : heat(headroom);
  if (cell.standing === "fail") return heat(typeof headroom === "number" ? Math.max(headroom, 1.01) : "inf");
  return { known: "#d8cfc0", inconclusive: "#c3aee6", "unexpected pass": "#ffd479", error: "#ff9aa2" }[cell.standing];
}

const valuesOf = (cell, axes) => axes.map((axis) => cell.values[axis]);
const keyOf = (values) => JSON.stringify(values);
const nameOf = (cell) => Object.values(cell.values).join(", ");
const classOf = (standing) => standing.split(" ")[0];

/** A link to the cell's report, or where it has none what became of it. */
function drawCell(cell) {
  const first = cell.first_divergence;
  const at = first ? `${first.tap}${first.layer === null ? "" : ` L${first.layer}`}` : "";
  const headroom = cell.headroom === null ? "" : ratio(cell.headroom);
  const label = [nameOf(cell), cell.standing, headroom && `headroom ${headroom}`, first && `first wrong at ${place(first)}`];
  const [sign] = STANDINGS[cell.standing];
  return element(cell.report ? "a" : "span", {
    class: "cell",
    colour: cellColour(cell),
    href: cell.report ? `${cell.report}/report.html` : null,
    title: label.filter(Boolean).join(", "),
    "aria-label": label.filter(Boolean).join(", "),
  }, [sign, cell.standing, headroom].filter(Boolean).join(" "), element("small", {}, at || "\u00a0"));
}

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
    element("p", { class: "faint" }, "The verdict of each cell, the worst headroom, and where it is first wrong; each leads to its report."),
    element("div", { class: "scroll" }, element("table", { class: "cells", "aria-label": "verdicts by cell", onkeydown: moveFocus },
      element("thead", {}, head), element("tbody", {}, distinct(matrix.rows).map(line)))),
    cellsKey());
}

function cellsKey() {
  const examples = { pass: 0.1, fail: 1e3 };
  return element("div", { class: "key", "aria-hidden": "true" }, Object.entries(STANDINGS).map(([standing, [sign, text]]) =>
    element("span", {}, element("i", { colour: cellColour({ standing, headroom: examples[standing] ?? null }) }, sign), text)));
}

function cellStory(cell) {
  const first = cell.first_divergence;
  return element("section", {},
    element("h3", {}, cell.report ? element("a", { href: `${cell.report}/report.html` }, nameOf(cell)) : nameOf(cell)),
    facts([
      ["verdict", element("span", { class: classOf(cell.standing) }, cell.standing)],
      ["why", cell.told],
      ["first wrong", first && place(first)],
      ["headroom", cell.headroom === null ? null : ratio(cell.headroom)],
      ["because", cell.because],
    ]),
    command(cell.shell));
}

function stories(title, standings) {
  const cells = matrix.cells.filter((cell) => standings.includes(cell.standing));
  return cells.length ? element("section", {}, element("h2", {}, `${title} (${cells.length})`), cells.map(cellStory)) : "";
}

function matrixHead() {
  return element("header", { class: `verdict ${matrix.verdict}` },
    element("h1", {}, `${matrix.verdict.toUpperCase()}: ${count(matrix.cells.length, "cell")}`),
    element("p", {}, matrix.tally));
}

function matrixMade() {
  const kept = matrix.cells.filter((cell) => !cell.was_run).length;
  return element("section", {}, element("h2", {}, "How it was made"),
    command(matrix.shell),
    facts([
      ["xcheck", [matrix.xcheck.version, matrix.xcheck.commit].filter(Boolean).join(", ")],
      ["run", `${count(matrix.cells.length - kept, "cell")}; of ${kept.toLocaleString("en")} the report was known`],
    ]));
}

document.getElementById("page").replaceChildren(...[
  matrixHead(),
  cellsTable(),
  architecturesOf(matrix.architectures),
  stories("What is to be done", ["error", "fail", "unexpected pass", "inconclusive"]),
  stories("Known", ["known"]),
  matrixMade(),
].filter(Boolean));
