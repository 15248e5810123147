"use strict";
// Numbers and sites as text, in the same form as in the other report formats.

const NONE = "–";

/** Formats an error with two digits: later digits change with every compiler. */
function figure(error) {
  if (error === null || error === undefined) return NONE;
  if (typeof error === "string") return error;
  return error === 0 ? "0" : error.toExponential(1);
}

/** Formats an error divided by its error bound. */
function ratio(bound_ratio) {
  if (typeof bound_ratio !== "number") return figure(bound_ratio);
  if (bound_ratio === 0) return "0";
  if (bound_ratio < 0.01) return "<0.01";
  return bound_ratio < 10 ? bound_ratio.toFixed(2) : figure(bound_ratio);
}

/** Formats a value with enough digits to tell two f32 apart. */
function digits(value) {
  if (typeof value !== "number") return String(value ?? NONE);
  const size = Math.abs(value);
  return value === 0 || (size >= 1e-4 && size < 1e7) ? String(Number(value.toPrecision(9))) : value.toExponential(8);
}

/** Formats a whole number with thousands separators. */
function grouped(number) {
  return number.toLocaleString("en");
}

/** Formats a count with its noun: "1 pass", "2 passes". */
function count(number, noun) {
  return `${grouped(number)} ${noun}${number === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;
}

/** Names a site: "q_rope, layer 0, pass 1". */
function place(row) {
  const layer = row.layer === null ? "" : `, layer ${row.layer}`;
  const pass = row.pass === null ? "" : `, pass ${row.pass}`;
  return `${row.tap}${layer}${pass}`;
}

/** True if both are the same site. */
const isSameSite = (one, two) => Boolean(one && two) && place(one) === place(two);

/** Names the token positions of a site. */
function positions(row) {
  if (row.position === null) return "the whole run";
  const last = row.position + row.tokens - 1;
  return row.tokens === 1 ? `position ${row.position}` : `positions ${row.position} to ${last}`;
}

/** Names a site with its verdict, for tooltips and screen readers. */
function siteLabel(row) {
  const measured = isIdentical(row) ? ", same bits" : row.bound_ratio === null ? "" : `, err/bound ${ratio(row.bound_ratio)}`;
  return `${place(row)}: ${row.verdict}${measured}`;
}

/** Verdicts from best to worst. */
const RANK = { pass: 0, tie: 1, known: 2, inconclusive: 3, fail: 4 };

/** True if nothing is wrong with a row and it needs no waiver. */
const isRight = (row) => RANK[row.verdict] <= RANK.tie;

/** Returns the first reference with the worst verdict. */
function firstOfWorst(references) {
  return references.reduce((worst, one) => (worst && RANK[worst.verdict] >= RANK[one.verdict] ? worst : one), null);
}

/** Counts rows by verdict. */
function tally(rows) {
  const tally = Object.fromEntries(Object.keys(RANK).map((verdict) => [verdict, 0]));
  for (const row of rows) tally[row.verdict] += 1;
  return tally;
}

/** Returns the largest number; skips everything that cannot be compared, such as NaN. */
function largestOf(numbers) {
  return numbers.reduce((largest, number) => (number > largest ? number : largest), -Infinity);
}

/** Returns the smallest number; skips everything that cannot be compared, such as NaN. */
function smallestOf(numbers) {
  return numbers.reduce((smallest, number) => (number < smallest ? number : smallest), Infinity);
}

const other = (role) => (role === "candidate" ? "reference" : "candidate");

/** Returns the names of a tap's axes, outermost first. */
function axes(tap) {
  if (tap === "attn_scores" || tap === "attn_weights") return ["head", "position", "key"];
  if (/^[qkv](_norm|_rope|_cache)?$/.test(tap)) return ["position", "head", "head_dim"];
  if (/^expert_(gate|up|act|out)$/.test(tap)) return ["position", "expert", "channel"];
  if (tap === "last_logits" || tap === "probs") return ["vocabulary"];
  if (tap === "token_logprobs") return ["position"];
  return ["position", { logits: "vocabulary", top_logprobs: "rank" }[tap] ?? "channel"];
}

/** Returns the error that the verdict is based on. */
function judged(row) {
  return row.judged?.accumulated ? row.accumulated : row.local ?? row.accumulated;
}

/** True for taps that hold token ids, whose distance means nothing. */
const isChoice = (row) => row.tap === "argmax" || row.tap === "generated";

/** True if every value of a row has the same bits on both sides. */
function isIdentical(row) {
  const found = judged(row);
  return found !== null && found !== undefined && found.elements > 0 && found.identical === found.elements;
}
