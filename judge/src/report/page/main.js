// The page: its state, its sections, and drawing them.

const report = await held();

/** Fields that html.rs leaves out of the page if they are null. */
const NULLS = Object.fromEntries(["layer", "pass", "position", "reason", "local", "accumulated", "bound_ratio", "exact", "spread", "noise_floor", "known"].map((name) => [name, null]));
for (const reference of report.references) {
  reference.results = reference.results.map((row) => ({ ...NULLS, ...row }));
  if (reference.first_divergence) reference.first_divergence = { ...NULLS, ...reference.first_divergence };
}

/** The selection: a reference (one entry of the report), a pass or null for all, and a row or null. */
const state = { reference: null, pass: null, row: null };

/** Returns the row of the first divergence. */
function firstRow(reference) {
  return reference.results.find((row) => isSameSite(row, reference.first_divergence)) ?? null;
}

/** Returns the selection that a reference is opened with. */
function selectionOf(reference) {
  const row = firstRow(reference) ?? reference.results.find((row) => row.verdict === "inconclusive") ?? null;
  return { reference, pass: row?.pass ?? null, row };
}

/** Selects and draws. */
function show(selection) {
  Object.assign(state, selection);
  draw();
}

/** Selects what the reader chose: also sets the address. */
function choose(selection) {
  show(selection);
  setLink(state);
}

/** Selects a site, in the map of its pass unless that of all passes is shown. */
function chooseRow(row) {
  choose({ row, pass: isInPass(row, state.pass) ? state.pass : row.pass });
  document.getElementById("detail")?.scrollIntoView({ block: "nearest" });
}

/** Selects a pass, and the same tap and layer in it. */
function choosePass(pass) {
  const { row, reference } = state;
  const sameThere = row && !isInPass(row, pass) ? reference.results.find((one) => one.tap === row.tap && one.layer === row.layer && one.pass === pass) ?? null : row;
  choose({ pass, row: sameThere });
}

/** Draws a table of several references: the worst site of every checkpoint. */
function matrix() {
  if (report.references.length < 2) return "";
  const columns = [...new Set(report.references.flatMap((reference) => reference.checkpoints.map((row) => row.checkpoint)))];
  const line = (reference) => {
    const rows = new Map(reference.checkpoints.map((row) => [row.checkpoint, row]));
    return element("tr", {}, element("th", { scope: "row" }, reference.name, " ", verdictOf(reference.verdict)),
      columns.map((name) => matrixCell(reference, name, rows.get(name))));
  };
  const head = element("tr", {}, element("th", {}, ""), columns.map((name) => element("th", { scope: "col" }, name)));
  return element("section", {}, element("h2", {}, "References"),
    element("p", { class: "faint" }, "Largest err/bound of each checkpoint. Click a cell to show its reference below."),
    element("div", { class: "scroll" }, element("table", { class: "map wide", onkeydown: moveFocus },
      element("thead", {}, head), element("tbody", {}, report.references.map(line)))));
}

/** Draws one checkpoint of one reference. */
function matrixCell(reference, name, row) {
  const isCompared = row?.worst;
  const label = `${reference.name}, ${name}: ${isCompared ? `${row.verdict}, err/bound ${ratio(row.bound_ratio)}` : "not compared"}`;
  const colour = colourOf(isCompared ? { ...row, bound_ratio: row.bound_ratio ?? (row.verdict === "pass" ? 0 : null) } : null);
  return element("td", {}, element("button", { type: "button", colour, title: label, "aria-label": label, onclick: () => choose(selectionOf(reference)),
    "aria-current": reference === state.reference ? "true" : null }, isCompared ? (SIGNS[row.verdict] ?? "") + (row.bound_ratio ? ` ${ratio(row.bound_ratio)}` : "") : ""));
}

/** Draws the sites of a reference: pass chooser, search, block diagram, map, and the selected site. */
function sites({ reference, pass, row }) {
  const { results } = reference;
  return element("section", {},
    element("h2", {}, "Sites"),
    element("div", { class: "controls" }, passChooser(results, pass, choosePass), searchBox(results, chooseRow)),
    element("div", { class: "overview" },
      attempt("The block diagram", () => blockDiagram(results, pass, firstRow(reference), row, chooseRow)),
      attempt("The map", () => heatMap(results, pass, firstRow(reference), row, chooseRow))),
    key(),
    row ? attempt("The site", () => detail(row, reference)) : element("p", { class: "faint" }, "Select a cell of the map for details."));
}

/** Draws how the report was made. */
function made(reference) {
  const settings = reference ? Object.entries(reference.producer.settings).map(([name, value]) => `${name} ${value}`).join(", ") : "";
  return element("section", {}, element("h2", {}, "How this report was made"),
    command(report.shell ?? ["xcheck", ...report.command].join(" ")),
    facts([
      ["xcheck", [report.xcheck.version, report.xcheck.commit].filter(Boolean).join(", ")],
      ["model", reference && [reference.model.name, reference.model.architecture, reference.model.format, reference.model.quantisation].filter(Boolean).join(", ")],
      ["weights", reference?.model.sha256 && `SHA-256 ${reference.model.sha256}`],
      ["dump", reference && `${reference.name}, by ${reference.producer.name} ${reference.producer.version}`],
      ["settings of the dump", settings],
      ["numerics", reference?.numerics],
      ["errors measured", reference && { both: "local and accumulated", accumulated: "accumulated", local: "local", layers: "local to each layer" }[reference.mode]],
      ["decided by", reference && { rounding: "error bounds of rounding", tolerance: "the tolerances" }[reference.gate]],
    ]));
}

/** Draws the page. The focus stays on the control with the same label. */
function draw() {
  const focused = document.activeElement?.getAttribute("aria-label");
  const { reference } = state;
  const parts = [
    header(),
    attempt("The table of architectures", () => architecturesOf(report.architectures)),
    attempt("The table of references", matrix),
    reference && [
      attempt("The findings", () => story(reference)),
      attempt("The sites", () => sites(state)),
      attempt("The table of checkpoints", () => element("section", {}, element("h2", {}, "Checkpoints"), checkpointTable(reference.checkpoints))),
      element("section", {}, element("h2", {}, "Errors by layer"), attempt("The errors by layer", () => growth(reference.results, state.pass))),
      attempt("The distributions", () => agreement(reference.results)),
      attempt("The tokens", () => spokenOf(reference)),
    ],
    attempt("How it was made", () => made(reference)),
    glossary(),
  ];
  document.getElementById("page").replaceChildren(...parts.flat().filter(Boolean));
  if (focused) [...document.querySelectorAll("button, select, input")].find((control) => control.getAttribute("aria-label") === focused)?.focus({ preventScroll: true });
}

addEventListener("hashchange", () => {
  const linked = linkedSelection(report.references);
  if (linked) show(linked);
});

const worstReference = firstOfWorst(report.references);
show(linkedSelection(report.references) ?? (worstReference ? selectionOf(worstReference) : {}));
