// The page of a gap: verdict, causes, differences by probability, position and sequence, worst tokens.

const gap = await held();

/** Draws points with a linear or logarithmic x axis; `points` are [x, y, title, isFar]. */
function scatter(points, label, isLogarithmic, bands = []) {
  const [width, height, left, bottom] = [640, 260, 60, 36];
  const place = (x) => (isLogarithmic ? Math.log10(Math.max(x, 1e-6)) : x);
  const xs = points.map(([x]) => place(x));
  const ys = points.map(([, y]) => y).concat(bands.map(([, y]) => y));
  const [low, high] = [smallestOf(xs), Math.max(largestOf(xs), smallestOf(xs) + 1e-9)];
  const most = Math.max(...ys.map(Math.abs), 1e-12);
  const least = smallestOf(ys) < 0 ? -most : 0;
  const x = (value) => left + 8 + ((place(value) - low) / (high - low)) * (width - left - 20);
  const y = (value) => 10 + ((most - value) / (most - least)) * (height - bottom - 20);
  const marks = [least, 0, most].map((value) => [
    drawn("line", { class: "axis", x1: left, x2: width, y1: y(value), y2: y(value) }),
    drawn("text", { x: left - 5, y: y(value) + 4, "text-anchor": "end" }, figure(value)),
  ]);
  const ends = [low, high].map((value, at) => drawn("text", { x: at ? width - 12 : left + 8, y: height - 18, "text-anchor": at ? "end" : "start" },
    isLogarithmic ? figure(10 ** value) : String(Math.round(value))));
  const dots = points.map(([at, value, title, isFar]) => drawn("circle", { class: isFar ? "over" : "local", cx: x(at), cy: y(value), r: isFar ? 3 : 1.5 },
    drawn("title", {}, title)));
  const limits = [1, -1].map((sign) => bands.length && least < 0 ? drawn("polyline", { class: "accumulated",
    points: bands.map(([at, value]) => `${x(at)},${y(sign * value)}`).join(" ") }) : "");
  return drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
    marks, ends, limits, dots, drawn("text", { x: (left + width) / 2, y: height - 3, "text-anchor": "middle" }, label));
}

/** Draws a figure with its caption. */
function part(caption, drawing) {
  return element("figure", { class: "part" }, element("figcaption", { class: "faint" }, caption), drawing);
}

const title = ([p, position, delta]) => `p ${p.toPrecision(3)}, position ${position}: Δ ${figure(delta)}`;
const isFar = ([, , delta, sigma]) => Math.abs(delta) > 4 * sigma;

/** Draws the differences by probability; lines at four times the largest rounding. */
function byProbability(points) {
  const bands = points.map(([p, , , sigma]) => [p, 4 * sigma]).sort(([a], [b]) => a - b);
  return part("Δ = log p(rollout) − log p(trainer) by probability. Lines: four times the largest rounding.",
    scatter(points.map((point) => [point[0], point[2], title(point), isFar(point)]), "probability", true, bands));
}

function byPosition(points) {
  return part("Δ by position in the sequence.",
    scatter(points.map((point) => [point[1], point[2], title(point), isFar(point)]), "position", false));
}

function bySequence(sequences) {
  return part("Scale of each sequence: root mean square difference of the log-odds.",
    scatter(sequences.map(([index, scale]) => [index, scale, `sequence ${index}: ${figure(scale)}`, gap.rounding_scale !== null && scale > gap.rounding_scale]), "sequence", false));
}

function findings() {
  return element("ul", {}, gap.findings.map((found) => element("li", {}, element("strong", {}, found.cause), `: ${found.text}`)));
}

function worstTokens() {
  const rows = gap.figure.worst.map((token) => [String(token.sequence), String(token.position), token.id === null ? NONE : String(token.id),
    token.text ?? NONE, digits(token.rollout), digits(token.trainer), figure(token.rollout - token.trainer)]);
  return tableOf(["sequence", "position", "id", "text", "rollout", "trainer", "Δ"], rows, [3]);
}

function training() {
  const effect = gap.training;
  return effect && facts([
    ["mean |Δ log p|", figure(effect.mean_abs)], ["KL k1", figure(effect.kl_k1)], ["KL k3", figure(effect.kl_k3)],
    ["KL k3 of rounding", figure(effect.kl_k3_rounding)], ["clipped", `${(100 * effect.clip_fraction).toFixed(3)} %`],
    ["effective sample size", `${(100 * effect.effective_sample_size).toFixed(2)} %`],
  ]);
}

const { points, sequences } = gap.figure;
document.getElementById("page").append(
  element("header", { class: `verdict ${gap.verdict}` }, element("h1", {}, gap.verdict.toUpperCase()), element("p", {}, gap.sentence), findings()),
  facts([["sequences", grouped(gap.sequences)], ["tokens", grouped(gap.values.compared)], ["scale", figure(gap.scale)], ["rounding", figure(gap.rounding_scale)]]),
  element("h2", {}, "Differences"),
  points.length ? attempt("the differences", () => element("div", {}, byProbability(points), byPosition(points), bySequence(sequences)))
    : element("p", { class: "faint" }, "No token was compared."),
  element("h2", {}, "Worst tokens"), attempt("the tokens", worstTokens),
  element("h2", {}, "Effect on training"), attempt("the effect", () => training() || element("p", { class: "faint" }, "No token was compared.")),
);
