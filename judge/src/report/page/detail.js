// One place: what was found there, where in it, and which values.

function detail(row, reference) {
  const sides = row.exact ? ["candidate", "reference"].map((role) => [role, row.exact[role]]) : [];
  return element("section", { id: "detail", "aria-live": "polite", tabindex: -1 },
    element("h3", {}, place(row), " ", element("span", { class: row.verdict }, row.verdict)),
    element("p", {}, sentence(row)),
    facts([
      ["checkpoint", row.checkpoint],
      ["of", positions(row)],
      ["starts from", row.since.map((start) => start.tap + ((start.layer ?? row.layer) === row.layer ? "" : ` of layer ${start.layer}`)).join(", ") || "the tokens"],
      ["judged by", judgedBy(row)],
      ["known to fail", row.known && `${row.known.reason} (${row.known.link}, until ${row.known.expires})`],
      ["headroom", row.headroom === null ? null : ratio(row.headroom)],
      ["rounds otherwise", row.exact?.found.join("; ")],
      ["systematic", sides.map(([role, side]) => bias(role, side)).filter(Boolean).join("; ")],
    ]),
    figures(row),
    spreads(row, sides, reference),
    worst(row, sides));
}

function sentence(row) {
  if (row.reason) return capital(row.reason) + ".";
  if (isIdentical(row)) return `All ${count(judged(row).elements, "value")} are the same bits on both sides.`;
  return `${capital(VERDICTS[row.verdict])}.`;
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function judgedBy(row) {
  if (isChoice(row)) return "which token it is; another is a tie where rounding may part their logits";
  if (row.judged.gate === "tolerance" || row.tolerance.asked) return `a tolerance of ${figure(row.tolerance.max_abs)} (${row.tolerance.source})`;
  if (row.exact) return `each value against what the stage comes to exactly (${count(row.exact.evaluated, "value")} evaluated)`;
  if (row.rounding) return `how far rounding moved the values here: ${figure(row.rounding.max_abs)}`;
  return isIdentical(row) ? "the bits" : "rounding";
}

function bias(role, side) {
  if (!side.bias || Math.abs(side.bias.sigmas) <= 8) return "";
  const of = { tensor: "all values", axis: `index ${side.bias.index} of axis ${side.bias.axis}`, channel: `channel ${side.bias.index}` }[side.bias.of];
  return `the ${role}'s ${of} share an error of ${figure(side.bias.error)}${side.bias.kind === "scale" ? " of their size" : ""}`;
}

function figures(row) {
  if (isChoice(row)) return ""; // tokens have no distance
  const errors = [["introduced here", row.introduced], ["in total", row.total]].filter(([, found]) => found);
  if (!errors.length) return "";
  const line = ([name, found]) => [name, figure(found.max_abs), figure(found.mean_abs), figure(found.rel_l2), cosineOf(found.cosine),
    `${found.identical.toLocaleString("en")} of ${found.elements.toLocaleString("en")}`];
  return tableOf(["error", "largest", "mean", "relative", "cosine", "same bits"], errors.map(line));
}

/** The unit of a spread: 1 where errors are headroom; else what is allowed, by the largest error and its headroom. */
function unitOf(row) {
  const largest = judged(row)?.max_abs;
  const isKnown = typeof row.headroom === "number" && row.headroom > 0 && typeof largest === "number";
  return isKnown ? largest / row.headroom : row.judged.gate === "tolerance" && row.tolerance.max_abs > 0 ? row.tolerance.max_abs : null;
}

function spreads(row, sides, reference) {
  const own = sides.filter(([, side]) => side.spread);
  if (row.spread) {
    const unit = unitOf(row);
    return element("div", { class: "pair" }, spreadMap(row.spread, row.tap, unit, "largest errors"), histogramOf(row.spread, null, unit, ""));
  }
  if (!own.length) return "";
  // What is looked at is the side that is wrong, or the dump's; the other is the honest one, where it is.
  const wrong = own.find(([, side]) => side.beyond > 0) ?? own.find(([role]) => role === reference.role) ?? own[0];
  const rest = own.find((side) => side !== wrong);
  return element("div", { class: "pair" },
    own.map(([role, side]) => spreadMap(side.spread, row.tap, 1, `the ${role}'s largest errors`)),
    histogramOf(wrong[1].spread, rest?.[1].spread ?? null, 1, `the ${wrong[0]}'s errors` + (rest ? `; the line is the ${rest[0]}'s` : "")));
}

function histogramOf(spread, honest, unit, name) {
  const sampled = spread.step > 1;
  const more = [
    spread.zero && `${sampled ? "about " : ""}${spread.zero.toLocaleString("en")} without an error`,
    spread.nonfinite && `${spread.nonfinite.toLocaleString("en")} NaN or infinite`,
    sampled && `one value in ${spread.step} was counted`,
  ];
  const caption = [name || "errors by size", ...more.filter(Boolean)].join("; ");
  return element("figure", { class: "part" }, element("figcaption", { class: "faint" }, caption), histogram(spread, honest, unit));
}

function interval({ exact, radius }) {
  const isKnown = typeof exact === "number" && typeof radius === "number";
  return isKnown ? `${digits(exact - radius)} … ${digits(exact + radius)}` : NONE;
}

/** The worst values of the side that is furthest off, with all that rounding may make of the exact one. */
function worst(row, sides) {
  const shown = sides.filter(([, side]) => side.worst && side.headroom !== 0);
  if (!shown.length) {
    const found = judged(row);
    if (!found?.worst_index || isIdentical(row)) return "";
    return tableOf(["worst value at", "candidate", "reference"], [[`[${found.worst_index.join(", ")}]`, digits(found.candidate), digits(found.reference)]]);
  }
  const line = (role) => (off) => [role, `[${off.index.join(", ")}]`, digits(off.value), digits(off.exact), `± ${figure(off.radius)}`,
    interval(off), ratio(off.headroom)];
  const rows = shown.flatMap(([role, side]) => [side.worst, ...(side.next ?? [])].map(line(role)));
  return element("div", {}, element("h3", {}, "Worst values"),
    tableOf(["whose", "at", "value", "exactly", "radius", "rounding may make", "headroom"], rows));
}
