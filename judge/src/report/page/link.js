// Links to a selection: #dump, #dump/p1 for a pass, #dump/q_rope/L3/p1 for a site.

/** Returns the parts of a selection's link. */
function linkParts({ reference, pass, row }) {
  const site = row ?? { tap: null, layer: null, pass };
  return [reference.name, site.tap, site.layer === null ? null : `L${site.layer}`, site.pass === null ? null : `p${site.pass}`].filter((part) => part !== null);
}

/** Puts the selection into the address. Some viewers of CI artifacts forbid this; the page works without it. */
function setLink(selection) {
  try {
    history.replaceState(null, "", `#${linkParts(selection).map(encodeURIComponent).join("/")}`);
  } catch {
    return;
  }
}

/** Returns the selection that the address names, or null if it names none of this report. */
function linkedSelection(references) {
  if (!location.hash) return null;
  const wanted = decoded(location.hash.slice(1));
  const isWanted = (selection) => linkParts(selection).join("/") === wanted;
  for (const reference of references) {
    const initial = selectionOf(reference);
    if (wanted === reference.name) return initial;
    const passes = passesOf(reference.results).map(({ pass }) => ({ reference, pass, row: null }));
    const sites = reference.results.map((row) => ({ reference, pass: row.pass, row }));
    const found = [...sites, ...passes].find(isWanted);
    if (found) return found;
  }
  return null;
}

/** Decodes a part of an address; returns it unchanged if it is malformed. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
