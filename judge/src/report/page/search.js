// The search box: finds sites by parts of their names, such as "q_rope 3".

/** Sites listed below the search box, at most. */
const FOUND = 10;

/** Splits a query into lower-case words; "layer 3" and "L3" become "l3", "pass 1" becomes "p1". */
function wordsOf(query) {
  const short = query.toLowerCase().replace(/\b(l|p)(?:ayer|ass)?\s*(\d+)/g, " $1$2 ");
  return short.split(/[\s,]+/).filter(Boolean);
}

/** True if a site matches every word. Bare numbers are the layer and the pass, in this order. */
function matches(row, words) {
  const numbers = row.layer === null ? [row.pass] : [row.layer, row.pass];
  let at = 0;
  return words.every((word) => {
    if (/^\d+$/.test(word)) return numbers[at++] === Number(word);
    if (/^[lp]\d+$/.test(word)) return row[word[0] === "l" ? "layer" : "pass"] === Number(word.slice(1));
    return row.tap.includes(word);
  });
}

/** Returns the sites that match a query; those whose tap is named exactly come first. */
function search(rows, query) {
  const words = wordsOf(query);
  if (!words.length) return [];
  const found = rows.filter((row) => matches(row, words));
  const isExact = (row) => words.includes(row.tap);
  return [...found.filter(isExact), ...found.filter((row) => !isExact(row))];
}

/** Draws the search box; `choose` is called with the row of the chosen site. */
function searchBox(rows, choose) {
  const list = element("div", { class: "found", role: "group", "aria-label": "sites found" });
  const said = element("span", { class: "faint", role: "status" });
  const show = (query) => {
    const found = search(rows, query);
    const button = (row) => element("button", { type: "button", "aria-label": `show ${siteLabel(row)}`, onclick: () => choose(row) }, `${signOf(row)} ${place(row)}`.trim());
    list.replaceChildren(...found.slice(0, FOUND).map(button));
    said.textContent = !query.trim() ? "" : found.length > FOUND ? `${grouped(found.length)} sites, ${FOUND} are listed` : count(found.length, "site");
  };
  const input = element("input", { type: "search", "aria-label": "find a site", placeholder: "find a site: q_rope 3", autocomplete: "off", spellcheck: "false",
    oninput: ({ target }) => show(target.value),
    onkeydown: (event) => {
      const [first] = search(rows, input.value);
      if (event.key === "Enter" && first) choose(first);
      if (event.key === "ArrowDown" && first) list.firstChild.focus();
    } });
  return element("div", { class: "search" }, input, said, list);
}
