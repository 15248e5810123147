// Tokens: the prompt, both continuations, the most likely tokens, and the divergence of the distributions.

/** Returns the texts of the tokens by id. */
function textsOf(reference) {
  return new Map((reference.tokens?.texts ?? []).map(({ token, text }) => [token, text]));
}

/** Returns a token's text, with visible whitespace. */
function spoken(texts, token) {
  if (typeof token !== "number" || token < 0) return "(none)";
  const text = texts.get(token);
  return text === undefined || text === "" ? `#${token}` : text.replaceAll("\n", "↵").replaceAll("\t", "→").replaceAll(" ", "\u00a0");
}

/** Returns for each pass the token that both sides chose, and the most likely tokens. */
function steps(reference) {
  const ends = new Map();
  for (const row of reference.results) {
    const key = `${row.tap} ${row.pass}`;
    if (!ends.has(key)) ends.set(key, row);
  }
  const of = (tap, pass) => ends.get(`${tap} ${pass}`);
  const passes = [...new Set(reference.results.map((row) => row.pass).filter((pass) => pass !== null))].sort((a, b) => a - b);
  return passes.map((pass) => {
    const [choice, logits] = [of("argmax", pass), of("last_logits", pass)];
    const found = logits && (logits.accumulated ?? logits.local);
    const end = logits ?? choice;
    return { pass, position: end ? end.position : null, choice, chosen: choice && (choice.accumulated ?? choice.local), tops: found?.tops };
  }).filter((step) => step.choice || step.tops);
}

/** Draws the prompt, both continuations and the most likely tokens. */
function spokenOf(reference) {
  const texts = textsOf(reference);
  const prompt = reference.tokens?.prompt ?? [];
  const all = steps(reference);
  if (!prompt.length && !all.length) return "";
  const SHOWN = 200;
  const chip = (token, kind, title) => element("span", { class: kind, title }, spoken(texts, token));
  const line = (side) => all.filter((step) => step.chosen).map((step) => {
    const [own, others] = [step.chosen[side], step.chosen[other(side)]];
    return chip(own, own === others ? null : step.choice.verdict === "tie" ? "tie-chip" : "other", `position ${step.position}, token ${own}`);
  });
  const cut = prompt.length > SHOWN ? [element("span", { class: "faint" }, `… ${prompt.length - SHOWN} earlier tokens …`)] : [];
  const read = prompt.slice(-SHOWN).map((token, at) => chip(token, null, `position ${Math.max(0, prompt.length - SHOWN) + at}, token ${token}`));
  const isSame = all.every((step) => !step.chosen || step.chosen.candidate === step.chosen.reference);
  const chosen = isSame
    ? [element("h3", {}, "Both continue"), element("p", { class: "tokens" }, line("candidate"))]
    : ["candidate", "reference"].map((side) => [element("h3", {}, `The ${side} continues`), element("p", { class: "tokens" }, line(side))]);
  return element("section", {}, element("h2", {}, "Tokens"),
    prompt.length ? [element("h3", {}, "Prompt"), element("p", { class: "tokens" }, cut, read)] : "",
    all.some((step) => step.chosen) ? chosen : "",
    leading(all, texts));
}

/** Draws a table of passes: KL divergence, margins, and the most likely tokens of both sides. */
function leading(all, texts) {
  const known = all.filter((step) => step.tops);
  if (!known.length) return "";
  const side = (tops) => tops.map(({ token, probability }) => `${spoken(texts, token)} ${percent(probability)}`).join("  ");
  const margin = (tops) => (tops.slice(0, 2).filter(({ probability }) => typeof probability === "number").length === 2 ? percent(tops[0].probability - tops[1].probability) : NONE);
  const row = (step) => [String(step.position ?? NONE), step.choice ? verdictOf(step.choice.verdict) : NONE, figure(step.tops.kl),
    margin(step.tops.candidate), margin(step.tops.reference), side(step.tops.candidate), side(step.tops.reference)];
  return element("details", { open: known.length <= 8 ? "" : null }, element("summary", {}, "Most likely tokens after each pass"),
    tableOf(["position", "argmax", "KL", "margin (candidate)", "margin (reference)", "most likely (candidate)", "most likely (reference)"], known.map(row), [5, 6]));
}

/** Formats a probability. */
function percent(part) {
  return typeof part === "number" ? `${(100 * part).toFixed(part < 0.001 ? 3 : 1)} %` : String(part);
}

/** Draws the divergence of the distributions by position, if it was measured. */
function agreement(rows) {
  const points = rows.filter((row) => ["token_logprobs", "top_logprobs", "logits"].includes(row.tap)).flatMap((row) => {
    const found = (row.accumulated ?? row.local)?.agreement;
    return (found?.rows ?? []).map((at, index) => ({
      tap: row.tap, position: row.position + at, kl: found.kl[index], delta: found.max_delta[index], over: found.over?.[index], top: found.top?.[index],
    }));
  });
  const tap = ["logits", "top_logprobs", "token_logprobs"].find((name) => points.some((point) => point.tap === name));
  const shown = points.filter((point) => point.tap === tap).sort((a, b) => a.position - b.position);
  if (shown.length < 2) return "";
  const drift = rows.find((row) => row.tap === tap && row.drift !== undefined)?.drift;
  const largest = largestOf(shown.map((point) => (typeof point.kl === "number" ? point.kl : 0)));
  const others = shown.filter((point) => point.top === false).length;
  const caption = `KL(reference‖candidate) of ${tap} at each position, at most ${figure(largest)}` +
    (others ? `; the most likely token differs at ${count(others, "position")}` : "") +
    (typeof drift === "number" ? `. Drift begins at position ${drift}.` : ".") +
    (shown.length > DOTS ? " Of neighbouring positions, the one with the largest divergence is drawn." : "");
  return element("section", {}, element("h2", {}, "Divergence by position"),
    element("figure", { class: "part" }, element("figcaption", { class: "faint" }, caption), divergences(shown, drift)));
}

/** Largest number of points that can be told apart. */
const DOTS = 2000;

/** Returns all points, or the worst point at each place if there are too many. */
function drawnOf(points, placeOf, badness) {
  if (points.length <= DOTS) return points;
  const worst = new Map();
  for (const point of points) {
    const [place, [kind, size]] = [placeOf(point), badness(point)];
    const known = worst.get(place);
    if (!known || kind > known.kind || (kind === known.kind && size > known.size)) worst.set(place, { kind, size, point });
  }
  return [...worst.values()].map(({ point }) => point);
}

/** Draws a dot for each position, and the start of the drift. */
function divergences(points, drift) {
  const [width, height, left, bottom] = [640, 200, 54, 34];
  const FLOOR = 1e-16;
  const size = (point) => Math.max(FLOOR, typeof point.kl === "number" ? point.kl : 1);
  const sizes = points.map(size);
  const [low, high] = [Math.floor(Math.log10(smallestOf(sizes))), Math.ceil(Math.log10(largestOf(sizes)) + 0.01)];
  const [first, last] = [points[0].position, points.at(-1).position];
  const x = (position) => left + 6 + ((position - first) / Math.max(1, last - first)) * (width - left - 16);
  const y = (value) => 10 + ((high - Math.log10(value)) / (high - low)) * (height - bottom - 10);
  const marks = [];
  for (let power = low; power <= high; power += Math.max(1, Math.ceil((high - low) / 5))) {
    marks.push(drawn("line", { class: "axis", x1: left, x2: width, y1: y(10 ** power), y2: y(10 ** power) }),
      drawn("text", { x: left - 5, y: y(10 ** power) + 4, "text-anchor": "end" }, `1e${power}`));
  }
  const isOff = (point) => point.over || point.top === false;
  const shown = drawnOf(points, (point) => Math.round(2 * x(point.position)), (point) => [isOff(point) ? 1 : 0, size(point)]);
  const radius = points.length > 200 ? 1.5 : 2.5;
  const dots = shown.map((point) => drawn("circle", { class: isOff(point) ? "over" : "accumulated", cx: x(point.position), cy: y(size(point)), r: radius },
    drawn("title", {}, `position ${point.position}: KL ${figure(point.kl)}, largest difference of log p ${figure(point.delta)}${point.over ? ", above the error bound" : ""}`)));
  const start = typeof drift === "number"
    ? [drawn("line", { class: "limit", x1: x(drift), x2: x(drift), y1: 4, y2: height - bottom }), drawn("text", { x: x(drift) + 4, y: 14 }, `from ${drift} on`)]
    : [];
  const ends = [[first, "start"], [last, "end"]].map(([position, anchor]) => drawn("text", { x: x(position), y: height - 18, "text-anchor": anchor }, String(position)));
  return drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "divergence by position" },
    marks, dots, start, ends, drawn("text", { x: (left + width) / 2, y: height - 3, "text-anchor": "middle" }, "position"));
}
