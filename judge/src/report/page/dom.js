// Elements: text is always set as text, since names come from files.

function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "onclick" || key === "onkeydown") made.addEventListener(key.slice(2), value);
    else if (key === "colour") made.style.setProperty(made.namespaceURI.endsWith("svg") ? "fill" : "background", value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined && child !== "") made.append(child);
  return made;
}

/** What `draw` makes; where it fails, that: what one part cannot show must not take the verdict with it. */
function attempt(name, draw) {
  try {
    return draw();
  } catch (error) {
    return element("p", { class: "faint" }, `${name} could not be drawn (${error.message}); report.json has the figures.`);
  }
}

/** A list of facts; those that are empty are left out. */
function facts(pairs) {
  const told = pairs.filter(([, fact]) => fact !== null && fact !== undefined && fact !== "");
  return element("dl", { class: "facts" }, told.map(([name, fact]) => [element("dt", {}, name), element("dd", {}, fact)]));
}

function tableOf(head, rows, words = []) {
  const cell = (name) => (text, at) => element(name, words.includes(at) ? { class: "words" } : {}, text);
  return element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, head.map(cell("th")))),
    element("tbody", {}, rows.map((row) => element("tr", {}, row.map(cell("td")))))));
}

/** A command, and a button that copies it. */
function command(text) {
  const button = element("button", { type: "button", "aria-label": `copy the command ${text}` }, "copy");
  button.addEventListener("click", () => {
    copied(text).then((done) => {
      button.textContent = done ? "copied" : "press Ctrl+C";
      setTimeout(() => (button.textContent = "copy"), 2000);
    });
  });
  return element("div", { class: "command" }, element("code", {}, text), button);
}

/** Files opened from disk may not have the clipboard: then the text is selected. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const shown = [...document.querySelectorAll("code")].find((code) => code.textContent === text);
    if (shown) getSelection().selectAllChildren(shown);
    return Boolean(shown) && document.execCommand("copy");
  }
}

/** Buttons of which one is pressed. */
function choice(name, options, chosen, choose) {
  const buttons = options.map(([value, text]) =>
    element("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, text));
  return element("div", { class: "choice", role: "group", "aria-label": name }, element("span", { class: "faint" }, name), buttons);
}
