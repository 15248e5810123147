// The table of checkpoints, of one dump or of all dumps of an architecture.

/** Formats a cosine: near 1 as "1-3e-8"; "1" means no measurable difference. */
function cosineOf(cosine) {
  if (typeof cosine !== "number") return figure(cosine);
  const gap = 1 - cosine;
  if (gap <= 0) return "1";
  return gap < 0.01 ? `1-${gap.toExponential(0)}` : cosine.toFixed(3);
}

/** Draws one line per compared checkpoint; each figure is the worst of all its sites. */
function checkpointTable(rows) {
  const compared = rows.filter((row) => row.worst);
  const line = (row) => {
    const isOfTokens = isChoice(row.worst) || row.worst.tap === "tokens";
    const errors = row.local ?? row.accumulated;
    return [row.checkpoint, place({ layer: null, pass: null, ...row.worst }), figure(errors?.max_abs),
      isOfTokens ? NONE : figure(errors?.mean_abs), isOfTokens ? NONE : cosineOf(errors?.cosine),
      row.bound_ratio === undefined || row.bound_ratio === null ? NONE : ratio(row.bound_ratio), row.over ?? NONE,
      figure(row.accumulated?.max_abs), figure(row.tolerance), verdictOf(row.verdict)];
  };
  return tableOf(["checkpoint", "worst site", "max abs", "mean abs", "cosine", "err/bound", "over", "accumulated", "spec tol", "verdict"],
    compared.map(line), [0, 1]);
}

/** Draws one table of checkpoints per architecture, for a report of several models. */
function architecturesOf(list) {
  if (!list?.length) return "";
  const section = (summary) => [
    element("h3", {}, `${summary.architecture}: ${count(summary.dumps, "dump")} of ${summary.models.join(", ")}`),
    checkpointTable(summary.checkpoints),
  ];
  return element("section", {}, element("h2", {}, "By architecture"), list.flatMap(section));
}
