// One site: its verdict, its errors, where in the values they are, and the worst values.

/** Draws everything about one site. */
function detail(row, reference) {
  const sides = row.exact ? ["candidate", "reference"].map((role) => [role, row.exact[role]]) : [];
  return element("section", { id: "detail", "aria-live": "polite", tabindex: -1 },
    element("h3", {}, place(row), " ", verdictOf(row.verdict)),
    element("p", {}, sentence(row)),
    facts([
      ["checkpoint", row.checkpoint],
      ["positions", positions(row)],
      ["inputs", row.since.map((start) => start.tap + ((start.layer ?? row.layer) === row.layer ? "" : ` of layer ${start.layer}`)).join(", ") || (row.tap.includes(".") ? "the recorded modules before it" : "the tokens")],
      ["judged by", judgedBy(row)],
      ["waived", row.known && `${row.known.reason} (${row.known.link}, until ${row.known.expires})`],
      ["err/bound", row.bound_ratio === null ? null : ratio(row.bound_ratio)],
      ["rounding found", row.exact?.found.join("; ")],
      ["bias", sides.map(([role, side]) => bias(role, side)).filter(Boolean).join("; ")],
    ]),
    figures(row),
    spreads(row, sides, reference),
    worst(row, sides));
}

/** Says in one sentence what the verdict rests on. */
function sentence(row) {
  if (row.reason) return capital(row.reason) + ".";
  if (isIdentical(row)) return `All ${count(judged(row).elements, "value")} have the same bits on both sides.`;
  if (row.verdict === "pass") return isByTolerance(row) ? "Every error is within the tolerance." : "Rounding explains every difference.";
  return `${capital(VERDICTS[row.verdict])}.`;
}

/** Starts a text with a capital letter. */
function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Names the criterion of a row. */
function judgedBy(row) {
  if (isChoice(row)) return "token ids; a different token is a tie if rounding can swap the two logits";
  if (isByTolerance(row)) return `an absolute tolerance of ${figure(row.tolerance.max_abs)} (${row.tolerance.source})`;
  if (row.exact) return `the error bound of each value (${count(row.exact.evaluated, "exact value")} computed)`;
  if (row.noise_floor) return `the noise floor: rounding changes values by up to ${figure(row.noise_floor.max_abs)}`;
  return isIdentical(row) ? "identical bits" : "rounding";
}

/** True if a tolerance decides, and not rounding. */
const isByTolerance = (row) => row.judged.gate === "tolerance" || row.tolerance.asked;

/** Describes a significant bias of a side. */
function bias(role, side) {
  if (!side.bias || Math.abs(side.bias.sigmas) <= 8) return "";
  const { of, axis, index, kind, error } = side.bias;
  const shared = { tensor: "all values", axis: `index ${index} of axis ${axis}`, channel: `channel ${index}` }[of];
  return `${role}: ${kind === "scale" ? "relative error" : "error"} of ${figure(error)} shared by ${shared}`;
}

/** Draws the table of local and accumulated errors. */
function figures(row) {
  if (isChoice(row)) return ""; // token ids have no distance
  const errors = [["local error", row.local], ["accumulated error", row.accumulated]].filter(([, found]) => found);
  if (!errors.length) return "";
  const line = ([name, found]) => [term(name), figure(found.max_abs), figure(found.mean_abs), figure(found.rel_l2), cosineOf(found.cosine),
    `${grouped(found.identical)} of ${grouped(found.elements)}`];
  return tableOf(["", "max abs", "mean abs", "relative", "cosine", "same bits"], errors.map(line));
}

const BOUND = { size: 1, name: "err/bound" };

/** Returns the unit in which errors of a row are shown: the bound or tolerance, or null if unknown. */
function unitOf(row) {
  const largest = judged(row)?.max_abs;
  if (typeof row.bound_ratio === "number" && row.bound_ratio > 0 && typeof largest === "number") return { ...BOUND, size: largest / row.bound_ratio };
  return isByTolerance(row) && row.tolerance.max_abs > 0 ? { size: row.tolerance.max_abs, name: "error / tolerance" } : null;
}

/** Draws where the errors are inside a site, and their sizes. */
function spreads(row, sides, reference) {
  const own = sides.filter(([, side]) => side.spread);
  if (row.spread) {
    const unit = unitOf(row);
    return element("div", { class: "pair" }, spreadMap(row.spread, row.tap, unit, `Largest ${unit?.name ?? "error"}`), histogramOf(row.spread, null, unit, ""));
  }
  if (!own.length) return "";
  // The bars show the wrong side, or the dump's side if none is wrong. The line shows the other side.
  const wrong = own.find(([, side]) => side.over > 0) ?? own.find(([role]) => role === reference.role) ?? own[0];
  const rest = own.find((side) => side !== wrong);
  return element("div", { class: "pair" },
    own.map(([role, side]) => spreadMap(side.spread, row.tap, BOUND, `Largest err/bound of the ${role}`)),
    histogramOf(wrong[1].spread, rest?.[1].spread ?? null, BOUND, `Errors of the ${wrong[0]} by size` + (rest ? `; line: errors of the ${rest[0]}` : "")));
}

/** Draws a histogram of errors with its caption. */
function histogramOf(spread, correct, unit, name) {
  const sampled = spread.step > 1;
  const more = [
    spread.zero && `${sampled ? "about " : ""}${grouped(spread.zero)} without an error`,
    spread.nonfinite && `${grouped(spread.nonfinite)} NaN or infinite`,
    sampled && `one value in ${spread.step} was counted`,
  ];
  const caption = [name || "Errors by size", ...more.filter(Boolean)].join("; ");
  return element("figure", { class: "part" }, element("figcaption", { class: "faint" }, caption), histogram(spread, correct, unit));
}

/** Draws the worst values with their exact values and error bounds. */
function worst(row, sides) {
  const index = (at) => `[${at.join(", ")}]`;
  const axisNames = `index [${axes(row.tap).join(", ")}]`;
  const shown = sides.filter(([, side]) => side.worst && side.bound_ratio !== 0).map(([role, side]) => [role, [side.worst, ...(side.next ?? [])]]);
  if (!shown.length) {
    const found = judged(row);
    if (!found?.worst_index || isIdentical(row)) return "";
    return element("div", {}, element("h3", {}, "Worst value"),
      tableOf([axisNames, "candidate", "reference"], [[index(found.worst_index), digits(found.candidate), digits(found.reference)]]));
  }
  const error = ({ value, exact }) => (typeof value === "number" && typeof exact === "number" ? figure(Math.abs(value - exact)) : NONE);
  const line = (role) => (off) => [role, index(off.index), digits(off.value), digits(off.exact), error(off), figure(off.radius), ratio(off.bound_ratio)];
  return element("div", {}, element("h3", {}, "Worst values"),
    tableOf(["side", axisNames, "value", "exact value", "error", "error bound", "err/bound"],
      shown.flatMap(([role, values]) => values.map(line(role)))),
    shown.map(([role, values]) => sharedIndex(row.tap, role, values)));
}

/** Says if all worst values share an index that the maps do not show, such as one head_dim. */
function sharedIndex(tap, role, values) {
  const [first] = values;
  const shared = axes(tap).map((name, axis) => [name, axis]).slice(2)
    .filter(([, axis]) => values.length > 2 && values.every(({ index }) => index[axis] === first.index[axis]));
  return shared.map(([name, axis]) => element("p", {}, `All ${values.length} worst values of the ${role} are at ${name} ${first.index[axis]}.`));
}
