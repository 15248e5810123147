// The pass chooser: all passes, each pass that is not right, and a menu of the others.

/** Passes shown as buttons, at most. */
const LISTED = 8;

/** Returns each pass with its worst row, in order. */
function passesOf(rows) {
  const worst = new Map();
  for (const row of rows.filter((row) => row.pass !== null)) {
    const known = worst.get(row.pass);
    worst.set(row.pass, known ? worse(known, row) : row);
  }
  return [...worst].sort(([one], [two]) => one - two).map(([pass, row]) => ({ pass, row }));
}

/** Draws the chooser; `choose` is called with a pass, or with null for all. */
function passChooser(rows, chosen, choose) {
  const passes = passesOf(rows);
  if (passes.length < 2) return "";
  const listed = passes.filter(({ row }) => !isRight(row)).slice(0, LISTED);
  const others = passes.filter((pass) => !listed.includes(pass));
  const button = (pass, text) => element("button", { type: "button", "aria-pressed": String(pass === chosen), onclick: () => choose(pass) }, text);
  return element("div", { class: "choice", role: "group", "aria-label": "passes" }, element("span", { class: "faint" }, term("passes")),
    button(null, "all"),
    listed.map(({ pass, row }) => button(pass, `${SIGNS[row.verdict]} ${passName(rows, pass)}`)),
    others.length ? passMenu(rows, others, listed.length, chosen, choose) : "");
}

/** Draws the menu of passes without a button: "8 passes, all right". */
function passMenu(rows, passes, listed, chosen, choose) {
  const wrong = passes.filter(({ row }) => !isRight(row)).length;
  const summary = `${listed ? `${grouped(passes.length)} more` : count(passes.length, "pass")}, ${wrong ? `${grouped(wrong)} not right` : "all right"}`;
  const option = ({ pass, row }) => element("option", { value: pass, selected: pass === chosen ? "" : null }, `${SIGNS[row.verdict] ?? ""} ${passName(rows, pass)}`.trim());
  return element("select", { "aria-label": "other passes", onchange: ({ target }) => choose(target.value === "" ? null : Number(target.value)),
    class: passes.some(({ pass }) => pass === chosen) ? "chosen" : null }, element("option", { value: "" }, summary), passes.map(option));
}

/** Names a pass with its positions: "0 (positions 0 to 11)". */
function passName(rows, pass) {
  const ofPass = rows.filter((row) => row.pass === pass);
  const row = ofPass.find((row) => row.tokens > 1) ?? ofPass[0];
  return row && row.position !== null ? `${pass} (${positions(row)})` : String(pass);
}
