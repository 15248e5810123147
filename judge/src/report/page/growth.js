// Errors by layer.

/** Returns the rows of block_out by layer, of the chosen pass or of the first. */
function ends(rows, pass) {
  const outs = rows.filter((row) => row.tap === "block_out");
  const wanted = pass ?? outs[0]?.pass;
  return outs.filter((row) => row.pass === wanted).sort((a, b) => a.layer - b.layer);
}

/** True for an error that a logarithmic axis can show: not 0, "inf" or "nan". */
const isSize = (error) => typeof error === "number" && error > 0;

/** Draws the accumulated and the local error of each layer's output. */
function growth(rows, pass) {
  const outs = ends(rows, pass);
  const series = [["accumulated", "accumulated"], ["local", "local"]].map(([name, field]) => [name, outs.map((row) => [row.layer, row[field]?.rel_l2, row])]);
  const floor = outs.map((row) => [row.layer, row.accumulated_noise_floor?.rel_l2]).filter(([, moved]) => isSize(moved));
  const known = series.map(([name, points]) => [name, points.filter(([, error]) => isSize(error))]);
  const errors = [...known.flatMap(([, points]) => points.map(([, error]) => error)), ...floor.map(([, moved]) => moved)];
  if (!errors.length || outs.length < 2) {
    return element("p", { class: "faint" }, outs.length > 1 ? "Every block_out has the same bits on both sides." : "Fewer than two layers have a block_out.");
  }
  const [width, height, left, bottom] = [640, 240, 54, 34];
  const [low, high] = [Math.floor(Math.log10(smallestOf(errors))), Math.ceil(Math.log10(largestOf(errors)) + 0.01)];
  const layers = outs.map((row) => row.layer);
  const span = Math.max(1, layers.at(-1) - layers[0]);
  const x = (layer) => left + 8 + ((layer - layers[0]) / span) * (width - left - 20);
  const y = (error) => 10 + ((high - Math.log10(error)) / (high - low)) * (height - bottom - 10);
  const lines = known.map(([name, points]) => [
    drawn("polyline", { class: name, points: points.map(([layer, error]) => `${x(layer)},${y(error)}`).join(" ") }),
    points.map(([layer, error, row]) => drawn("circle", { class: row.verdict === "fail" ? "over" : name, cx: x(layer), cy: y(error), r: 3 },
      drawn("title", {}, `layer ${layer}: ${name} error ${figure(error)}${row.verdict === "fail" ? ", fails" : ""}`))),
  ]);
  const band = floor.length > 1
    ? drawn("polygon", { class: "band", points: [...floor.map(([layer, moved]) => `${x(layer)},${y(Math.min(10 ** high, 4 * moved))}`),
        ...floor.toReversed().map(([layer]) => `${x(layer)},${height - bottom}`)].join(" ") })
    : "";
  const marks = [];
  for (let power = low; power <= high; power += Math.max(1, Math.ceil((high - low) / 6))) {
    marks.push(drawn("line", { class: "axis", x1: left, x2: width, y1: y(10 ** power), y2: y(10 ** power) }),
      drawn("text", { x: left - 5, y: y(10 ** power) + 4, "text-anchor": "end" }, `1e${power}`));
  }
  const every = Math.max(1, Math.ceil(layers.length / 12));
  const names = layers.filter((_, at) => at % every === 0).map((layer) => drawn("text", { x: x(layer), y: height - 18, "text-anchor": "middle" }, String(layer)));
  const caption = "Relative error of each layer's block_out. Line: accumulated error; dashed: local error since the nearest recorded values" +
    (band ? "; grey: noise floor." : ".");
  return element("figure", { class: "part" }, element("figcaption", { class: "faint" }, caption),
    drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "errors by layer" },
      marks, band, lines, names, drawn("text", { x: (left + width) / 2, y: height - 3, "text-anchor": "middle" }, "layer")));
}
