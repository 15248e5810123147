// The page: verdict, matrix of references, map, growth, details, how it was made.

const report = JSON.parse(document.getElementById("report").textContent);

// What is null is left out of a page.
const NULLS = Object.fromEntries(["layer", "pass", "position", "reason", "introduced", "total", "headroom", "exact", "spread", "rounding", "known"].map((name) => [name, null]));
for (const reference of report.references) {
  reference.results = reference.results.map((row) => ({ ...NULLS, ...row }));
  if (reference.first_divergence) reference.first_divergence = { ...NULLS, ...reference.first_divergence };
}

const state = { reference: firstOfWorst(report.references), pass: null, row: null };

function firstRow(reference) {
  const { first_divergence: first } = reference;
  return first ? reference.results.find((row) => place(row) === place(first)) ?? null : null;
}

function select(reference) {
  state.reference = reference;
  state.row = firstRow(reference) ?? reference.results.find((row) => row.verdict === "inconclusive") ?? null;
  state.pass = state.row?.pass ?? null;
  draw();
}

function header() {
  const model = [report.model.name, report.model.architecture, report.model.quantisation].filter(Boolean).join(", ");
  return element("header", { class: `verdict ${report.verdict}` },
    element("h1", {}, `${report.verdict.toUpperCase()}${model ? `: ${model}` : ""}`),
    report.error ? element("p", {}, report.error) : element("p", {}, report.reason ?? summary()));
}

/** The verdict in one sentence. */
function summary() {
  const bad = report.references.filter((reference) => reference.verdict !== "pass");
  if (!bad.length) {
    const all = report.references.reduce((sum, reference) => sum + reference.coverage.elements, 0);
    return `${count(all, "value")} compared with ${count(report.references.length, "dump")}: ${passing(report.references.flatMap((reference) => reference.results))}.`;
  }
  const reference = firstOfWorst(bad);
  const first = reference.first_divergence;
  const more = bad.length > 1 ? ` (and ${count(bad.length - 1, "other reference")} is not passed either)` : "";
  if (reference.sentence) return `${reference.sentence}${more}`;
  if (!first) return `${reference.name}: ${reference.reason ?? "could not be judged"}${more}.`;
  return `${sidesOf(reference)} part at ${place(first)}, checkpoint ${first.checkpoint}${more}.`;
}

/** What makes it a pass: what is let pass all the same is counted. */
function passing(rows) {
  const by = report.references.some((reference) => reference.gate === "rounding");
  const { known, tie } = tally(rows);
  return (by ? "rounding explains every difference" : "every difference is within its tolerance") +
    (known ? ` but ${count(known, "known failure")}` : "") +
    (tie ? `; ${count(tie, "choice")} of tokens ${tie === 1 ? "is a tie" : "are ties"}` : "");
}

function sidesOf(reference) {
  return reference.role === "candidate"
    ? `The dump ${reference.name} (${reference.producer.name}) and xcheck`
    : `${report.model.format === "dump" ? reference.numerics : "xcheck"} and ${reference.name} (${reference.producer.name})`;
}

/** Whose values are not what the stage comes to. */
function beyondRounding(reference) {
  const exact = reference.first_divergence?.exact;
  if (!exact) return null;
  const isWrong = (role) => exact[role].beyond > 0 || Math.abs(exact[role].bias?.sigmas ?? 0) > 8;
  const named = (role) => `${capital(role)} (${role === reference.role ? reference.producer.name : `xcheck, numerics ${reference.numerics}`})`;
  const wrong = ["candidate", "reference"].filter(isWrong);
  if (wrong.length === 2) return "Both: neither has what the stage comes to from its inputs.";
  return wrong.length === 1 ? `${named(wrong[0])}. The ${other(wrong[0])}'s values are what the stage comes to from the same inputs.` : null;
}

function story(reference) {
  const first = reference.first_divergence;
  const { coverage } = reference;
  const failing = reference.results.filter((row) => row.verdict === "fail");
  const since = first && failing.length > 1
    ? `${count(failing.length, "place")} of ${reference.results.length}: ${spans(failing)}`
    : null;
  const told = (verdict) => {
    const rows = reference.results.filter((row) => row.verdict === verdict);
    return rows.length ? `${count(rows.length, "place")} of ${reference.results.length}: ${spans(rows)}` : null;
  };
  const rows = facts([
    ["verdict", element("span", { class: reference.verdict }, reference.verdict, reference.reason && !first ? `: ${reference.reason}` : "")],
    ["first wrong", first && `${place(first)}, ${positions(first)} (checkpoint ${first.checkpoint})`],
    ["how bad", first && (first.reason ?? `largest error ${figure(first.max_abs)}`)],
    ["beyond rounding", beyondRounding(reference)],
    ["cause", first && causes(reference, first)],
    ["inside of it", first && within(firstRow(reference))],
    ["drift", first && drifting(reference)],
    ["before it", first && before(reference, first)],
    ["in all", since],
    ["known to fail", told("known")],
    ["ties", told("tie")],
    ["compared", `${coverage.taps_compared.toLocaleString("en")} of ${count(coverage.taps_expected, "tap")}, ${count(coverage.elements, "value")}, of which ${coverage.elements_identical.toLocaleString("en")} are the same bits`],
    ["what helps", reference.remedy],
  ]);
  const next = reference.next ?? [];
  return element("section", {},
    element("h2", {}, reference.name),
    rows,
    next.length ? [element("h3", {}, "To look closer"), next.map(command)] : "",
    more("Left out", coverage.skipped),
    more("Notes", reference.notes));
}

function causes(reference, first) {
  if (!reference.findings.length) return "none of the known causes explains the values";
  const told = (finding) => (place({ ...NULLS, ...finding }) === place(first) ? "" : `${place({ ...NULLS, ...finding })}: `) + finding.what;
  if (reference.findings.length === 1) return told(reference.findings[0]);
  return element("ul", {}, reference.findings.map((finding) => element("li", {}, told(finding))));
}

/** "positions 1 to 11, every head": the parts of a place in which values are beyond rounding. */
function within(row) {
  const sides = Object.values(row?.exact ?? {}).filter((side) => side?.spread && side.beyond > 0);
  if (!sides.length) return null;
  const { spread } = sides[0];
  const parts = [0, 1].map((axis) => {
    const name = axes(row.tap)[axis];
    const wrong = [...Array(spread.cells[axis]).keys()].filter((cell) => isWrong(spread, axis, cell));
    if (!name || spread.lengths[axis] === 1) return null;
    if (wrong.length === spread.cells[axis]) return `every ${name}`;
    return `${name}${wrong.length > 1 ? "s" : ""} ${runs(wrong).map(([from, to]) => range(spread, axis, from, to)).join(", ")}`;
  });
  return parts.filter(Boolean).join("; ");
}

/** From which position on distributions stay apart. */
function drifting(reference) {
  const row = reference.results.find((row) => typeof row.drift === "number");
  return row ? `errors stay from position ${row.drift} on (${row.tap})` : null;
}

function isWrong(spread, axis, cell) {
  const [rows, columns] = spread.cells;
  const cells = axis === 0 ? [...Array(columns).keys()].map((column) => cell * columns + column) : [...Array(rows).keys()].map((row) => row * columns + cell);
  return cells.some((at) => {
    const exponent = exponentOf(spread.largest[at]);
    return exponent !== null && !(exponent < 0);
  });
}

/** Numbers that follow each other, as first and last. */
function runs(numbers) {
  const all = [];
  for (const number of numbers) {
    if (all.length && all.at(-1)[1] === number - 1) all.at(-1)[1] = number;
    else all.push([number, number]);
  }
  return all;
}

/** How much was right when it came to the first divergence. */
function before(reference, first) {
  const rows = reference.results.slice(0, reference.results.findIndex((row) => place(row) === place(first)));
  if (!rows.length) return "nothing: it is the first place that was compared";
  const right = rows.filter((row) => RANK[row.verdict] <= RANK.tie);
  const same = right.filter(isIdentical).length;
  const { known, inconclusive } = tally(rows);
  return `${count(right.length, "place")} ${right.length === 1 ? "is" : "are"} right` +
    (same ? `, ${same.toLocaleString("en")} of them the same bits` : "") +
    (known ? `; ${count(known, "place")} known to fail` : "") +
    (inconclusive ? `; ${count(inconclusive, "place")} could not be judged` : "");
}

/** "q, k in layers 0 to 3; rope …": the taps that fail, with their layers. */
function spans(rows) {
  const layers = new Map();
  for (const row of rows) {
    const known = layers.get(row.tap) ?? new Set();
    layers.set(row.tap, known.add(row.layer));
  }
  const told = [...layers].slice(0, 8).map(([tap, of]) => {
    const numbers = [...of].filter((layer) => layer !== null).sort((a, b) => a - b);
    if (!numbers.length) return tap;
    const isRun = numbers.length > 1 && numbers.at(-1) - numbers[0] === numbers.length - 1;
    const listed = numbers.length > 6 ? `${numbers.slice(0, 5).join(", ")} … ${numbers.at(-1)}` : numbers.join(", ");
    return `${tap} in layer${numbers.length > 1 ? "s" : ""} ${isRun ? `${numbers[0]} to ${numbers.at(-1)}` : listed}`;
  });
  return told.join("; ") + (layers.size > 8 ? "; …" : "");
}

function more(title, items) {
  if (!items.length) return "";
  const list = element("ul", {}, items.map((item) => element("li", {}, item)));
  return element("details", items.length <= 3 ? { open: "" } : {}, element("summary", {}, `${title} (${items.length})`), list);
}

/** Several references: each with the worst of every checkpoint. */
function matrix() {
  if (report.references.length < 2) return "";
  const names = report.references.flatMap((reference) => reference.checkpoints.map((row) => row.checkpoint));
  const columns = [...new Set(names)];
  const line = (reference) => {
    const rows = new Map(reference.checkpoints.map((row) => [row.checkpoint, row]));
    const cell = (name) => {
      const row = rows.get(name);
      const isCompared = row && row.worst;
      const said = `${reference.name}, ${name}: ${isCompared ? `${row.verdict}, headroom ${ratio(row.headroom)}` : "not compared"}`;
      const colour = colourOf(isCompared ? { ...row, headroom: row.headroom ?? (row.verdict === "pass" ? 0 : null) } : null);
      return element("td", {}, element("button", { type: "button", colour, title: said, "aria-label": said, onclick: () => select(reference),
        "aria-current": reference === state.reference ? "true" : null }, isCompared ? (SIGNS[row.verdict] ?? "") + (row.headroom ? ` ${ratio(row.headroom)}` : "") : ""));
    };
    return element("tr", {}, element("th", { scope: "row" }, reference.name, " ", element("span", { class: reference.verdict }, reference.verdict)), columns.map(cell));
  };
  const head = element("tr", {}, element("th", {}, ""), columns.map((name) => element("th", { scope: "col" }, name)));
  return element("section", {}, element("h2", {}, "References"),
    element("p", { class: "faint" }, "The worst headroom of each checkpoint; choose one to see it below."),
    element("div", { class: "scroll" }, element("table", { class: "map wide", onkeydown: moveFocus },
      element("thead", {}, head), element("tbody", {}, report.references.map(line)))));
}

function where(reference) {
  const passes = [...new Set(reference.results.map((row) => row.pass).filter((pass) => pass !== null))].sort((a, b) => a - b);
  const options = [[null, "the worst of all"], ...passes.map((pass) => [pass, passName(reference, pass)])];
  const choosePass = (pass) => {
    state.pass = pass;
    draw();
  };
  return element("section", {},
    element("h2", {}, "Where"),
    passes.length > 1 ? choice("pass", options, state.pass, choosePass) : "",
    attempt("The map", () => heatMap(reference.results, state.pass, firstRow(reference), state.row, (row) => {
      state.row = row;
      draw();
      document.getElementById("detail")?.scrollIntoView({ block: "nearest" });
    })),
    key(),
    state.row ? attempt("The place", () => detail(state.row, reference)) : element("p", { class: "faint" }, "Choose a cell to see what was found there."),
    element("h2", {}, "How it grows"),
    attempt("The growth", () => growth(reference.results, state.pass)),
    attempt("The distributions", () => agreement(reference.results)),
    attempt("The tokens", () => spokenOf(reference)));
}

function passName(reference, pass) {
  const row = reference.results.find((row) => row.pass === pass && row.tokens > 1) ?? reference.results.find((row) => row.pass === pass);
  return row && row.position !== null ? `${pass} (${positions(row)})` : String(pass);
}

function made(reference) {
  const settings = reference ? Object.entries(reference.producer.settings).map(([name, value]) => `${name} ${value}`).join(", ") : "";
  return element("section", {}, element("h2", {}, "How it was made"),
    command(report.shell ?? ["xcheck", ...report.command].join(" ")),
    facts([
      ["xcheck", [report.xcheck.version, report.xcheck.commit].filter(Boolean).join(", ")],
      ["model", reference && [reference.model.name, reference.model.architecture, reference.model.format, reference.model.quantisation].filter(Boolean).join(", ")],
      ["weights", reference?.model.sha256 && `SHA-256 ${reference.model.sha256}`],
      ["dump", reference && `${reference.name}, by ${reference.producer.name} ${reference.producer.version}`],
      ["its settings", settings],
      ["numerics", reference?.numerics],
      ["errors", reference && { both: "introduced by each stage, and in total", total: "in total", introduced: "introduced by each stage", layers: "introduced by each layer" }[reference.mode]],
      ["decided by", reference && { rounding: "what rounding can do to each stage", tolerance: "the table of tolerances" }[reference.gate]],
    ]));
}

/** Where the reader was, by the label of what had the focus: drawing anew would lose it. */
function draw() {
  const focused = document.activeElement?.getAttribute("aria-label");
  const { reference } = state;
  const parts = [
    header(),
    attempt("The table of architectures", () => architecturesOf(report.architectures)),
    attempt("The table of references", matrix),
    reference && [attempt("What was found", () => story(reference)),
      attempt("The table of checkpoints", () => element("section", {}, element("h2", {}, "Checkpoints"), checkpointTable(reference.checkpoints))),
      attempt("Where it is", () => where(reference))],
    attempt("How it was made", () => made(reference)),
  ];
  document.getElementById("page").replaceChildren(...parts.flat().filter(Boolean));
  if (focused) [...document.querySelectorAll("button")].find((button) => button.getAttribute("aria-label") === focused)?.focus({ preventScroll: true });
}

if (state.reference) select(state.reference);
else draw();
