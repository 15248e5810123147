// How errors grow over the layers.

/** The values at the ends of layers, by layer; of several passes the one that is chosen, or the first that has them. */
function ends(rows, pass) {
  const outs = rows.filter((row) => row.tap === "block_out");
  const wanted = pass ?? outs[0]?.pass;
  return outs.filter((row) => row.pass === wanted).sort((a, b) => a.layer - b.layer);
}

/** What a logarithmic axis has a place for: neither none, nor "inf", nor "nan". */
const isSize = (error) => typeof error === "number" && error > 0;

function growth(rows, pass) {
  const outs = ends(rows, pass);
  const series = ["total", "introduced"].map((name) => [name, outs.map((row) => [row.layer, row[name]?.rel_l2, row])]);
  const floor = outs.map((row) => [row.layer, row.rounding_of_total?.rel_l2]).filter(([, moved]) => isSize(moved));
  const known = series.map(([name, points]) => [name, points.filter(([, error]) => isSize(error))]);
  const errors = [...known.flatMap(([, points]) => points.map(([, error]) => error)), ...floor.map(([, moved]) => moved)];
  if (!errors.length || outs.length < 2) {
    return element("p", { class: "faint" }, outs.length > 1 ? "The ends of the layers are the same bits on both sides." : "Fewer than two layers' ends were compared.");
  }
  const [width, height, left, bottom] = [640, 240, 54, 34];
  const [low, high] = [Math.floor(Math.log10(smallestOf(errors))), Math.ceil(Math.log10(largestOf(errors)) + 0.01)];
  const layers = outs.map((row) => row.layer);
  const span = Math.max(1, layers.at(-1) - layers[0]);
  const x = (layer) => left + 8 + ((layer - layers[0]) / span) * (width - left - 20);
  const y = (error) => 10 + ((high - Math.log10(error)) / (high - low)) * (height - bottom - 10);
  const lines = known.map(([name, points]) => [
    drawn("polyline", { class: name, points: points.map(([layer, error]) => `${x(layer)},${y(error)}`).join(" ") }),
    points.map(([layer, error, row]) => drawn("circle", { class: row.verdict === "fail" ? "beyond" : name, cx: x(layer), cy: y(error), r: 3 },
      drawn("title", {}, `layer ${layer}: ${name} ${figure(error)}${row.verdict === "fail" ? ", fails" : ""}`))),
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
  const caption = "Error at the end of each layer, relative to the values' size. Line: in total; dashed: introduced since the nearest values that the dump holds" +
    (band ? "; grey: what rounding may come to." : ".");
  return element("figure", { class: "part" }, element("figcaption", { class: "faint" }, caption),
    drawn("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "errors by layer" },
      marks, band, lines, names, drawn("text", { x: (left + width) / 2, y: height - 3, "text-anchor": "middle" }, "layer")));
}
