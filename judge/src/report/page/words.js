"use strict";
// How numbers and places are put into words, as in the other formats.

const NONE = "–";

/** An error: two digits, because the next ones change with every compiler. */
function figure(error) {
  if (error === null || error === undefined) return NONE;
  if (typeof error === "string") return error;
  return error === 0 ? "0" : error.toExponential(1);
}

/** An error in units of what rounding may come to. */
function ratio(headroom) {
  if (typeof headroom !== "number") return figure(headroom);
  if (headroom === 0) return "0";
  if (headroom < 0.01) return "<0.01";
  return headroom < 10 ? headroom.toFixed(2) : figure(headroom);
}

/** A value with the digits that tell it from its neighbours. */
function digits(value) {
  if (typeof value !== "number") return String(value ?? NONE);
  const size = Math.abs(value);
  return value === 0 || (size >= 1e-4 && size < 1e7) ? String(Number(value.toPrecision(9))) : value.toExponential(8);
}

function place(row) {
  const layer = row.layer === null ? "" : `, layer ${row.layer}`;
  const pass = row.pass === null ? "" : `, pass ${row.pass}`;
  return `${row.tap}${layer}${pass}`;
}

function positions(row) {
  if (row.position === null) return "the whole run";
  const last = row.position + row.tokens - 1;
  return row.tokens === 1 ? `position ${row.position}` : `positions ${row.position} to ${last}`;
}

function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

const VERDICTS = {
  pass: "rounding explains it",
  tie: "another token, but the two logits are closer than rounding moves them",
  known: "it is known to fail",
  inconclusive: "could not be judged",
  fail: "rounding does not explain it",
};

/** From best to worst. */
const RANK = { pass: 0, tie: 1, known: 2, inconclusive: 3, fail: 4 };

/** The first of the worst verdict. */
function firstOfWorst(references) {
  return references.reduce((worst, one) => (worst && RANK[worst.verdict] >= RANK[one.verdict] ? worst : one), null);
}

/** How many rows there are of each verdict. */
function tally(rows) {
  const tally = Object.fromEntries(Object.keys(RANK).map((verdict) => [verdict, 0]));
  for (const row of rows) tally[row.verdict] += 1;
  return tally;
}

/** The largest of any number of numbers; those that are none do not count. */
function largestOf(numbers) {
  return numbers.reduce((largest, number) => (number > largest ? number : largest), -Infinity);
}

function smallestOf(numbers) {
  return numbers.reduce((smallest, number) => (number < smallest ? number : smallest), Infinity);
}

const other = (role) => (role === "candidate" ? "reference" : "candidate");

/** The axes of a tap's map: those of its two outermost axes. */
function axes(tap) {
  if (tap === "attn_scores" || tap === "attn_weights") return ["head", "position"];
  if (tap === "k_cache" || tap === "v_cache") return ["position", "head"];
  if (/^[qkv](_norm|_rope)?$/.test(tap)) return ["position", "head"];
  if (tap === "last_logits" || tap === "probs") return ["", "vocabulary"];
  if (tap === "token_logprobs") return ["", "position"];
  return ["position", { logits: "vocabulary", top_logprobs: "rank" }[tap] ?? "channel"];
}

/** "0.42": the judged error of a row in units of what is allowed, or null where nothing measures it. */
function headroomOf(row) {
  return row.headroom ?? null;
}

/** What the verdict rests on. */
function judged(row) {
  return row.judged.in_total ? row.total : row.introduced ?? row.total;
}

const isChoice = (row) => row.tap === "argmax" || row.tap === "generated";

function isIdentical(row) {
  const found = judged(row);
  return found !== null && found !== undefined && found.elements > 0 && found.identical === found.elements;
}
