// Opens report.html of real runs in a headless Chromium. The console stays empty, no request is sent or blocked, clicks,
// keys, search and links work, labels do not overlap, the page opens within a second and fits a width of 360 px.
//
//   npm install --prefix /tmp/page puppeteer-core
//   NODE_PATH=/tmp/page/node_modules node tests/page/check.mjs [--xcheck target/release/xcheck] [--shots docs/images]
//
// XCHECK_REQUIRE_ALL=1 makes what is skipped a failure. CHROMIUM names the browser's binary. --shots also writes the screenshots of the docs.

import { execFileSync, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { deflateSync, inflateSync } from "node:zlib";
import assert from "node:assert/strict";
import { situations } from "./situations.mjs";

const option = (name, otherwise) => {
  const at = process.argv.indexOf(name);
  return at < 0 ? otherwise : process.argv[at + 1];
};
const xcheck = resolve(option("--xcheck", "target/release/xcheck"));
const shots = option("--shots", null);

const require = createRequire(join(process.env.NODE_PATH ?? process.cwd(), "from.js"));
const chromium = process.env.CHROMIUM ?? ["/usr/lib/chromium/chromium", "/usr/bin/chromium", "/usr/bin/google-chrome"].find(existsSync);
let puppeteer;
try {
  puppeteer = require(require.resolve("puppeteer-core", { paths: [process.env.NODE_PATH ?? ".", "."] }));
} catch {
  puppeteer = null;
}
if (!chromium || !puppeteer) {
  console.log(`SKIPPED: ${chromium ? "puppeteer-core is not installed (see the head of this file)" : "there is no Chromium; CHROMIUM names one"}`);
  process.exit(Number(process.env.XCHECK_REQUIRE_ALL ?? 0));
}

const folder = mkdtempSync(join(tmpdir(), "xcheck-page-"));
const browser = await puppeteer.launch({ executablePath: chromium, headless: true, args: ["--no-sandbox"] });
let failed = 0;

for (const situation of situations()) {
  if (situation.lacking) {
    console.log(`SKIPPED ${situation.name}: ${situation.lacking}`);
    failed += Number(process.env.XCHECK_REQUIRE_ALL ?? 0);
    continue;
  }
  const directory = join(folder, situation.name);
  const run = spawnSync(xcheck, [...situation.command, "--report", directory], { encoding: "utf8" });
  try {
    assert.equal(run.status, situation.status, `exit code of ${situation.name}: ${run.stderr}`);
    if (situation.alter) alter(join(directory, "report.html"), situation.alter);
    await look(join(directory, "report.html"), situation);
    console.log(`ok ${situation.name} (${Math.round(statSync(join(directory, "report.html")).size / 1000)} kB)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED ${situation.name}: ${error.message}`);
  }
}
await browser.close();
process.exit(failed ? 1 : 0);

/** Changes the report that a page holds. */
function alter(file, change) {
  const [before, after] = ['<script type="text/plain" id="report">', "</script>"];
  const page = readFileSync(file, "utf8");
  const from = page.indexOf(before) + before.length;
  const to = page.indexOf(after, from);
  const report = JSON.parse(inflateSync(Buffer.from(page.slice(from, to), "base64")));
  change(report);
  writeFileSync(file, page.slice(0, from) + deflateSync(JSON.stringify(report)).toString("base64") + page.slice(to));
}

async function look(file, situation) {
  const page = await browser.newPage();
  const said = [];
  page.on("console", (message) => said.push(message.text()));
  page.on("pageerror", (error) => said.push(error.message));
  page.on("request", (request) => request.url().startsWith("file://") || said.push(`asked for ${request.url()}`));
  await page.setViewport({ width: 1100, height: 800 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "dark" }]);
  const start = Date.now();
  await page.goto(`file://${file}`);
  await page.waitForSelector("h1");
  assert.ok(Date.now() - start < 1000, `it takes ${Date.now() - start} ms to open`);
  await answers(page, situation);
  if (!situation.isError) {
    await clicks(page);
    await passes(page);
    await keys(page);
    await diagram(page);
    await finds(page);
    await links(page);
  }
  await widths(page);
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: "light" }]);
  if (shots && !situation.isError && !situation.alter) await shoot(page, file, situation.name);
  await page.pdf({ path: join(folder, `${situation.name}.pdf`) });
  assert.deepEqual(said, [], "the console");
  await page.close();
}

/** The page has the answers; every drawing has a position, every control a name, every label its own room. */
async function answers(page, situation) {
  const text = await page.evaluate(() => [document.body.innerText, ...[...document.querySelectorAll("option")].map((option) => option.textContent)].join("\n"));
  for (const answer of situation.answers) assert.ok(text.includes(answer), `the page says "${answer}"`);
  assert.ok(!/NaN %|NaN …/.test(text), "the page says NaN");
  const lost = await page.evaluate(() => [...document.querySelectorAll("svg *")].filter((one) => [...one.attributes].some(({ value }) => /NaN|Infinity/.test(value))).length);
  assert.equal(lost, 0, "everything that is drawn has a place");
  const overlaps = await page.evaluate(() => [...document.querySelectorAll("svg")].flatMap((svg) => {
    const boxes = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
    const meet = (one, two) => one.left < two.right && two.left < one.right && one.top + 2 < two.bottom && two.top + 2 < one.bottom;
    return boxes.flatMap(([name, box], at) => boxes.slice(at + 1).filter(([, next]) => meet(box, next)).map(([next]) => `${name} and ${next}`));
  }));
  assert.deepEqual(overlaps, [], "labels overlap");
  const unexplained = await page.evaluate(() => ["err/bound", "max abs"].filter((name) => ![...document.querySelectorAll("th")].some((th) => th.textContent === name && th.querySelector("abbr")?.title)));
  if (!situation.isError) assert.deepEqual(unexplained, [], "column heads have a meaning");
  const nameless = await page.evaluate(() => [...document.querySelectorAll("button, select, input, svg[role=img]")].filter((one) => !one.textContent && !one.getAttribute("aria-label")).length);
  assert.equal(nameless, 0, "every control has a name");
}

/** A click on a cell shows its site; a command is copied. */
async function clicks(page) {
  const cells = "[aria-label='verdicts by tap and layer'] button:not([disabled])";
  const label = await page.$$eval(cells, (all) => all.at(-2).getAttribute("aria-label"));
  await page.$$eval(cells, (all) => all.at(-2).click());
  const shown = await page.$eval("#detail h3", (title) => title.textContent);
  assert.equal(label.split(":")[0], shown.split(" ").slice(0, -1).join(" "), "the cell that was clicked is shown");
  await page.$eval(".command button", (button) => button.click());
  await page.waitForFunction(() => document.querySelector(".command button").textContent !== "copy", { timeout: 2000 });
}

/** Every pass has a button or an option; choosing one selects it. */
async function passes(page) {
  const chooser = "[role=group][aria-label=passes]";
  const buttons = await page.$$(`${chooser} button`);
  if (!buttons.length) return;
  await page.$$eval(`${chooser} button`, (all) => all.at(-1).click());
  const pressed = await page.$$eval(`${chooser} button`, (all) => all.map((one) => one.getAttribute("aria-pressed")));
  assert.deepEqual(pressed, [...pressed.slice(1).map(() => "false"), "true"], "the last button is pressed");
  const menu = await page.$(`${chooser} select`);
  if (menu) {
    const value = await menu.evaluate((select) => select.options[1].value);
    await page.select(`${chooser} select`, value);
    assert.equal(await page.$eval(`${chooser} select`, (select) => select.value), value, "the pass of the menu is selected");
  }
  await page.$$eval(`${chooser} button`, (all) => all[0].click());
}

/** A click on an operation selects its worst site; the first wrong operation is marked. */
async function diagram(page) {
  const operations = "[aria-label='operations in data-flow order'] button";
  const label = await page.$$eval(operations, (all) => {
    all.at(-1).click();
    return all.at(-1).getAttribute("aria-label");
  });
  const shown = await page.$eval("#detail h3", (title) => title.textContent.split(" ").slice(0, -1).join(" "));
  assert.ok(label.includes(`worst site ${shown}:`), `${label} shows ${shown}`);
  const stops = await page.$$eval("[aria-label='operations in data-flow order'], [aria-label='verdicts by tap and layer']", (groups) => groups.map((group) => group.querySelectorAll("[tabindex='0']").length));
  assert.deepEqual(stops, [1, 1], "Tab reaches one control of the diagram and one of the map");
  if ((await page.$$(operations)).length > 1) {
    await page.$$eval(operations, (all) => all[0].focus());
    await page.keyboard.press("ArrowRight");
    assert.ok(await page.$$eval(operations, (all) => all[1] === document.activeElement), "the arrow moves to the next operation");
  }
  const isFail = await page.$eval("header", (header) => header.classList.contains("fail"));
  if (isFail) assert.equal((await page.$$(`${operations}.first`)).length, 1, "one operation is marked as first wrong");
}

/** The search box lists matching sites; Enter selects the first. */
async function finds(page) {
  const site = await page.$$eval("[aria-label='verdicts by tap and layer'] button:not([disabled])", (all) => all[0].getAttribute("aria-label").split(":")[0]);
  const [tap, ...numbers] = site.split(", ").map((part) => part.split(" ").at(-1));
  await page.focus("[type=search]");
  await page.keyboard.type([tap, ...numbers].join(" "));
  const listed = await page.$$eval("[aria-label='sites found'] button", (all) => all.map((one) => one.textContent));
  assert.ok(listed[0]?.endsWith(site), `the search finds ${site}, not ${listed}`);
  await page.keyboard.press("Enter");
  assert.equal(await page.$eval("#detail h3", (title) => title.textContent.split(" ").slice(0, -1).join(" ")), site, "Enter selects the first site");
  assert.equal(await page.evaluate(() => document.activeElement.type), "search", "the focus stays in the search box");
}

/** A selection is in the address; a link selects it again; an unknown link changes nothing. */
async function links(page) {
  const shown = () => page.$eval("#detail h3", (title) => title.textContent);
  const [hash, wanted] = [await page.evaluate(() => location.hash), await shown()];
  assert.match(hash, /^#[^/]+\/[a-z_]+/, "the address names the site");
  await page.$$eval("[aria-label='operations in data-flow order'] button", (all) => all.at(-1).click());
  await page.evaluate((hash) => (location.hash = hash), hash);
  await page.waitForFunction((wanted) => document.querySelector("#detail h3").textContent === wanted, { timeout: 2000 }, wanted);
  await page.evaluate(() => (location.hash = "#nothing/of/this%"));
  await page.evaluate(() => new Promise((done) => setTimeout(done, 20)));
  assert.equal(await shown(), wanted, "an unknown link changes nothing");
}

/** Arrow keys move through the map, Enter chooses. */
async function keys(page) {
  const map = "[aria-label='verdicts by tap and layer']";
  await page.$$eval(`${map} button:not([disabled])`, (all) => all[0].focus());
  const focused = () => page.evaluate(() => document.activeElement.getAttribute("aria-label"));
  const before = await focused();
  const rows = await page.$$eval(`${map} tbody tr`, (all) => all.length);
  if (rows < 2) return;
  for (const key of ["ArrowRight", "ArrowDown", "ArrowRight"]) await page.keyboard.press(key);
  const after = await focused();
  if (after === before) return;
  await page.keyboard.press("Enter");
  assert.equal(await focused(), after, "the focus stays where it was");
  assert.equal(await page.$eval("#detail h3", (title) => title.textContent.split(" ").slice(0, -1).join(" ")), after.split(":")[0]);
}

async function widths(page) {
  for (const width of [360, 768, 1600]) {
    await page.setViewport({ width, height: 800 });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    assert.ok(wide <= 0, `at ${width} px the page is ${wide} px too wide`);
  }
}

/** Takes the screenshot of the page as it opens. */
async function shoot(page, file, name) {
  mkdirSync(shots, { recursive: true });
  await page.setViewport({ width: 1000, height: 800 });
  await page.goto(`file://${file}`);
  await page.waitForSelector("h1");
  await page.screenshot({ path: join(shots, `${name}.png`), fullPage: true });
}
