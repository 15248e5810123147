// The glossary: one table of terms for column heads, labels, and the list at the end of the page.

/** Meanings of the terms that the page uses. */
const TERMS = {
  "tap": "a named intermediate value, such as q_rope",
  "site": "a tap at one layer, pass and position range",
  "worst site": "the site with the largest error among those with the line's verdict",
  "first wrong": "the first failing site in the order of computation",
  "checkpoint": "a group of operations, 0 to 12, in the order of computation",
  "passes": "runs of the model: pass 0 reads the prompt, each later pass reads one new token",
  "reference": "the trusted side",
  "candidate": "the side under test",
  "wrong side": "the side with values above their error bounds or with a bias",
  "inputs": "the recorded values that the operation was started from",
  "local error": "error made by one operation, given the dump's own inputs",
  "accumulated error": "error of a whole run that starts from the token ids",
  "max abs": "largest absolute error of a value",
  "mean abs": "mean absolute error",
  "relative error": "L2 norm of the errors divided by the L2 norm of the values",
  "cosine": "cosine similarity of both sides; 1-3e-14 is 3e-14 below 1",
  "same bits": "values with exactly the same bits on both sides",
  "exact value": "result of the operation in f64, computed from the dump's own inputs and the weights",
  "error bound": "largest error that rounding can cause at a value",
  "err/bound": "error divided by its error bound; above 1, rounding cannot explain it",
  "over": "number of values above their error bound",
  "spec tol": "absolute tolerance of the specification",
  "noise floor": "measured effect of rounding over several operations",
  "bias": "a systematic error shared by many values",
  "cause": "the named fault that reproduces the divergence",
  "drift": "from this position on, the distributions stay apart",
  "KL": "Kullback-Leibler divergence of the candidate's distribution from the reference's",
  "argmax": "the token with the largest logit",
  "margin": "probability of the most likely token minus that of the second",
  "verdict": "pass, tie, known, inconclusive or fail",
  "numerics": "rounding profile that xcheck's engine computed with",
};

/** Meanings of the verdicts, from best to worst. */
const VERDICTS = {
  pass: "every error is within its bound: the error bound, or the tolerance if one decides",
  tie: "the tokens differ, but rounding can swap their logits",
  known: "a known failure, waived by the baseline",
  inconclusive: "cannot be decided from the data",
  fail: "an error is above its bound: the error bound, or the tolerance if one decides",
};

/** Returns the label, with its meaning as a tooltip if it is a term of the glossary. */
function term(label) {
  const meaning = TERMS[label] ?? TERMS[`${label} error`] ?? TERMS[`${label} value`];
  return meaning ? element("abbr", { title: meaning }, label) : label;
}

/** Returns a verdict in its color, with its meaning as a tooltip. */
function verdictOf(verdict) {
  return element("span", { class: verdict, title: VERDICTS[verdict] }, verdict);
}

/** Draws the whole glossary, for readers without a mouse and for print. */
function glossary() {
  const verdicts = Object.entries(VERDICTS).map(([verdict, meaning]) => [`verdict ${verdict}`, meaning]);
  const entry = ([name, meaning]) => [element("dt", {}, name), element("dd", {}, meaning)];
  return element("section", { id: "glossary" }, element("details", {}, element("summary", {}, "Glossary"),
    element("dl", { class: "facts" }, [...Object.entries(TERMS), ...verdicts].map(entry))));
}
