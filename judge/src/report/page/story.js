// The verdict in words: what is wrong, where, on which side, why, and what to run next.

/** Draws the verdict and its sentence. */
function header() {
  const model = [report.model.name, report.model.architecture, report.model.quantisation].filter(Boolean).join(", ");
  return element("header", { class: `verdict ${report.verdict}` },
    element("h1", {}, `${report.verdict.toUpperCase()}${model ? `: ${model}` : ""}`),
    report.error ? element("p", {}, report.error) : element("p", {}, report.reason ?? summary()));
}

/** Says the verdict in one sentence. */
function summary() {
  const bad = report.references.filter((reference) => reference.verdict !== "pass");
  if (!bad.length) {
    const all = report.references.reduce((sum, reference) => sum + reference.coverage.elements, 0);
    return `${count(all, "value")} compared with ${count(report.references.length, "dump")}: ${passing(report.references.flatMap((reference) => reference.results))}.`;
  }
  const reference = firstOfWorst(bad);
  const first = reference.first_divergence;
  const more = bad.length > 1 ? ` (${count(bad.length - 1, "other reference")} without a pass)` : "";
  if (reference.sentence) return `${reference.sentence}${more}`;
  if (!first) return `${reference.name}: ${reference.reason ?? "inconclusive"}${more}.`;
  return `${sidesOf(reference)} first differ at ${place(first)}, checkpoint ${first.checkpoint}${more}.`;
}

/** Says why a report passes, and counts waived failures and ties. */
function passing(rows) {
  const byRounding = report.references.some((reference) => reference.gate === "rounding");
  const { known, tie } = tally(rows);
  return (byRounding ? "rounding explains every difference" : "every difference is within its tolerance") +
    (known ? ` except ${count(known, "known failure")}` : "") +
    (tie ? `; ${count(tie, "choice")} of tokens ${tie === 1 ? "is a tie" : "are ties"}` : "");
}

/** Names both sides of a comparison. */
function sidesOf(reference) {
  return reference.role === "candidate"
    ? `The dump ${reference.name} (${reference.producer.name}) and xcheck`
    : `${report.model.format === "dump" ? reference.numerics : "xcheck"} and ${reference.name} (${reference.producer.name})`;
}

/** Names the side with values above their error bounds at the first divergence. */
function wrongSide(reference) {
  const exact = reference.first_divergence?.exact;
  if (!exact) return null;
  const isWrong = (role) => exact[role].over > 0 || Math.abs(exact[role].bias?.sigmas ?? 0) > 8;
  const named = (role) => `${role} (${role === reference.role ? reference.producer.name : `xcheck, numerics ${reference.numerics}`})`;
  const wrong = ["candidate", "reference"].filter(isWrong);
  if (wrong.length === 2) return "both: neither side is within the error bounds of the exact values";
  return wrong.length === 1 ? `${named(wrong[0])}; from the same inputs, every value of the ${other(wrong[0])} is within its error bound` : null;
}

/** Draws the findings of one reference. */
function story(reference) {
  const { coverage, first_divergence: first } = reference;
  const sitesOf = (verdict) => {
    const rows = reference.results.filter((row) => row.verdict === verdict);
    return rows.length ? `${grouped(rows.length)} of ${count(reference.results.length, "site")}: ${spans(rows)}` : null;
  };
  const next = reference.next ?? [];
  return element("section", {},
    element("h2", {}, reference.name),
    facts([
      ["verdict", [verdictOf(reference.verdict), reference.reason && !first ? `: ${reference.reason}` : ""]],
      ["first wrong", first && `${place(first)}, ${positions(first)} (checkpoint ${first.checkpoint})`],
      ["error", first && (first.reason ?? `max abs ${figure(first.max_abs)}`)],
      ["wrong side", wrongSide(reference)],
      ["cause", first && causes(reference, first)],
      ["affected", first && affected(firstRow(reference))],
      ["drift", first && driftOf(reference)],
      ["correct before", first && correctBefore(reference, first)],
      ["failing", sitesOf("fail")],
      ["waived", sitesOf("known")],
      ["ties", sitesOf("tie")],
      ["inconclusive", sitesOf("inconclusive")],
      ["compared", compared(coverage)],
      ["what to do", reference.remedy],
    ]),
    next.length ? [element("h3", {}, "Commands to run next"), next.map(command)] : "",
    more("Not compared", coverage.skipped),
    more("Notes", reference.notes));
}

/** Counts the compared sites and values. */
function compared({ taps_compared, taps_expected, elements, elements_identical }) {
  return `${grouped(taps_compared)} of ${count(taps_expected, "site")}; ${count(elements, "value")}, ${grouped(elements_identical)} with the same bits`;
}

/** Lists the causes; those of another site than the first with their site. */
function causes(reference, first) {
  if (!reference.findings.length) return "no known cause reproduces the values";
  const named = (finding) => (isSameSite({ ...NULLS, ...finding }, first) ? "" : `${place({ ...NULLS, ...finding })}: `) + finding.what;
  if (reference.findings.length === 1) return named(reference.findings[0]);
  return element("ul", {}, reference.findings.map((finding) => element("li", {}, named(finding))));
}

/** Names the parts of a site with values above their bounds: "positions 1–11; every head". */
function affected(row) {
  const side = Object.values(row?.exact ?? {}).find((side) => side?.spread && side.over > 0);
  if (!side) return null;
  const { spread } = side;
  const parts = [0, 1].map((axis) => {
    const name = mapAxes(spread, row.tap)[axis];
    const wrong = [...Array(spread.cells[axis]).keys()].filter((cell) => isOver(spread, axis, cell));
    if (!name || spread.lengths[axis] === 1) return null;
    if (wrong.length === spread.cells[axis]) return `every ${name}`;
    return `${name}${wrong.length > 1 ? "s" : ""} ${runs(wrong).map(([from, to]) => range(spread, axis, from, to)).join(", ")}`;
  });
  return parts.filter(Boolean).join("; ");
}

/** True if a row or column of a spread has an error above its bound. */
function isOver(spread, axis, cell) {
  const [rows, columns] = spread.cells;
  const cells = axis === 0 ? [...Array(columns).keys()].map((column) => cell * columns + column) : [...Array(rows).keys()].map((row) => row * columns + cell);
  return cells.some((at) => {
    const exponent = exponentOf(spread.largest[at]);
    return exponent !== null && !(exponent < 0);
  });
}

/** Joins consecutive numbers to pairs of first and last. */
function runs(numbers) {
  const all = [];
  for (const number of numbers) {
    if (all.length && all.at(-1)[1] === number - 1) all.at(-1)[1] = number;
    else all.push([number, number]);
  }
  return all;
}

/** Names the position where drift begins. */
function driftOf(reference) {
  const row = reference.results.find((row) => typeof row.drift === "number");
  return row ? `begins at position ${row.drift} (${row.tap})` : null;
}

/** Counts the correct sites before the first divergence. */
function correctBefore(reference, first) {
  const rows = reference.results.slice(0, reference.results.findIndex((row) => isSameSite(row, first)));
  if (!rows.length) return "none: it is the first site that was compared";
  const right = rows.filter(isRight);
  const same = right.filter(isIdentical).length;
  const { known, inconclusive } = tally(rows);
  return [count(right.length, "site"), same && `${grouped(same)} with the same bits`, known && `${grouped(known)} waived`, inconclusive && `${grouped(inconclusive)} inconclusive`]
    .filter(Boolean).join(", ");
}

/** Lists taps with their layers: "q, k in layers 0 to 3; v in layer 1". */
function spans(rows) {
  const taps = new Map();
  for (const { tap, layer } of rows) taps.set(tap, (taps.get(tap) ?? new Set()).add(layer));
  const byLayers = new Map();
  for (const [tap, layers] of taps) {
    const named = layersNamed([...layers].filter((layer) => layer !== null).sort((a, b) => a - b));
    byLayers.set(named, [...(byLayers.get(named) ?? []), tap]);
  }
  const listed = [...byLayers].slice(0, 8).map(([layers, taps]) => taps.join(", ") + layers);
  return listed.join("; ") + (byLayers.size > 8 ? "; …" : "");
}

/** Names sorted layers: " in layers 0 to 3", or nothing outside of layers. */
function layersNamed(layers) {
  if (!layers.length) return "";
  const parts = runs(layers).map(([from, to]) => (from === to ? String(from) : `${from} to ${to}`));
  const listed = parts.length > 6 ? `${parts.slice(0, 5).join(", ")} … ${parts.at(-1)}` : parts.join(", ");
  return ` in layer${layers.length > 1 ? "s" : ""} ${listed}`;
}

/** Draws a list that is closed if it is long. */
function more(title, items) {
  if (!items.length) return "";
  const list = element("ul", {}, items.map((item) => element("li", {}, item)));
  return element("details", items.length <= 3 ? { open: "" } : {}, element("summary", {}, `${title} (${items.length})`), list);
}
