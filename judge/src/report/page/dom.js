// Elements. Text is always set as text, since names come from files.

/** Creates an HTML element. */
function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Creates an SVG element. */
function drawn(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

/** Sets attributes and listeners ("onclick"), and appends children. */
function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "colour") made.style.setProperty(made.namespaceURI.endsWith("svg") ? "fill" : "background", value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined && child !== "") made.append(child);
  return made;
}

/** Returns the result of `draw`, or a note if it throws: one broken part must not hide the verdict. */
function attempt(name, draw) {
  try {
    return draw();
  } catch (error) {
    return element("p", { class: "faint" }, `${name} could not be drawn (${error.message}); report.json has the figures.`);
  }
}

/** Draws a list of labels and facts, without the empty ones. */
function facts(pairs) {
  const told = pairs.filter(([, fact]) => fact !== null && fact !== undefined && fact !== "");
  return element("dl", { class: "facts" }, told.map(([name, fact]) => [element("dt", {}, term(name)), element("dd", {}, fact)]));
}

/** Draws a table; the columns in `words` are aligned left. */
function tableOf(head, rows, words = []) {
  const cell = (name) => (text, at) => element(name, words.includes(at) ? { class: "words" } : {}, name === "th" ? term(text) : text);
  return element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, head.map(cell("th")))),
    element("tbody", {}, rows.map((row) => element("tr", {}, row.map(cell("td")))))));
}

/** Draws a command and a button that copies it. */
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

/** Copies a text. A page opened from a disk may lack the clipboard: then selects the text. */
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

/** Reads the data of the page, which is deflated JSON in base64. */
async function held() {
  if (typeof DecompressionStream === "undefined") throw new Error("the browser cannot decompress it; use one from 2023 or later");
  const data = Uint8Array.from(atob(document.getElementById("report").textContent), (byte) => byte.charCodeAt(0));
  return new Response(new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}
