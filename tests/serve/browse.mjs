// One visit to the site in a real browser; prints what was seen as JSON. Usage: node browse.mjs CHROMIUM ENTRANCE PID [SHOTS]
import { chromium } from "playwright-core";
import { lowContrast } from "./contrast.mjs";

const [executablePath, entrance, pid, shots] = process.argv.slice(2);
const base = new URL("/", entrance).href;
const seen = { console: [], elsewhere: [], widths: {}, contrast: {}, maps: {} };
const browser = await chromium.launch({ executablePath, timeout: 180000, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });

const visitor = async (options) => {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.setDefaultTimeout(180000);
  page.on("console", (message) => seen.console.push(`${page.url()}: ${message.text()}`));
  page.on("pageerror", (error) => seen.console.push(`${page.url()}: ${error}`));
  page.on("request", (request) => { if (!request.url().startsWith(base) && !request.url().startsWith("data:")) seen.elsewhere.push(request.url()); });
  await page.goto(entrance);
  await page.waitForSelector("main h1");
  return page;
};
const at = (path) => new URL(path, base).href;
const text = (page, selector) => page.locator(selector).first().innerText();
const texts = (page, selector) => page.locator(selector).allInnerTexts();

const page = await visitor({ viewport: { width: 1200, height: 900 } });
seen.address = page.url();

// a run that another process is at work on, and that waits until it was seen: the list shows how it goes on, its page
// ends with what it wrote
const real = page.locator(".runs tbody tr", { has: page.locator('input[value="real"]') });
while (!(await real.count()) || !(await real.locator("progress").count())) { await page.waitForTimeout(200); await page.goto(base); }
seen.realRounds = [await real.locator(".rounds").innerText()];
process.kill(Number(pid), "SIGCONT");
await page.waitForFunction((before) => [...document.querySelectorAll(".runs .rounds")].every((one) => one.innerText !== before), seen.realRounds[0]);
seen.realRounds.push(await real.locator(".rounds").innerText());
await page.goto(at("/run?run=real"));
await page.waitForFunction(() => document.querySelector(".status")?.innerText === "finished");
seen.realAfter = await page.$$eval(".figures div", (all) => Object.fromEntries(all.map((one) => [one.querySelector("dt").innerText, one.querySelector("dd").innerText])));
await page.goto(base);
seen.runs = await page.$$eval(".runs tbody tr", (rows) => rows.map((row) => [...row.cells].map((cell) => cell.innerText.trim())));

await page.getByLabel("Search").fill("prox");
await page.waitForFunction(() => document.querySelectorAll(".runs tbody tr").length === 1);
seen.filtered = await texts(page, ".runs tbody .title a");
seen.filteredAddress = page.url();
await page.getByLabel("Search").fill("");
await page.waitForFunction(() => document.querySelectorAll(".runs tbody tr").length > 1);

// by keyboard alone: from the search field to the first two boxes, then to the button
await page.getByLabel("Search").focus();
const chosen = [];
for (let presses = 0; presses < 60; presses += 1) {
  await page.keyboard.press("Tab");
  const here = await page.evaluate(() => { const e = document.activeElement; return { type: e.type, value: e.value, words: e.innerText }; });
  if (here.type === "checkbox" && chosen.length < 2) { await page.keyboard.press("Space"); chosen.push(here.value); }
  if (here.words === "Compare selected runs") break;
}
seen.chosen = chosen;
seen.counted = await text(page, "#chosen-count");
await Promise.all([page.waitForURL("**/compare?*"), page.keyboard.press("Enter")]);
seen.comparison = await page.$$eval(".results tbody tr", (rows) => rows.map((row) => [...row.cells].map((cell) => cell.innerText.trim())));
seen.charts = await page.$$eval("figure.chart", (figures) => figures.map((figure) => figure.id));
await page.locator("#chart-by-rounds .plot").focus();
await page.keyboard.press("End");
seen.read = await text(page, "#chart-by-rounds .tip");

await page.goto(at("/run?run=quick"));
seen.figures = await page.$$eval(".figures div", (all) => Object.fromEntries(all.map((one) => [one.querySelector("dt").innerText, one.querySelector("dd").innerText])));
await page.getByRole("link", { name: "Who learns what" }).click();
await page.locator("td.cell").nth(1).hover();
await page.waitForFunction(() => document.querySelector(".ways").innerText.includes("seen by"));
seen.hovered = [await text(page, ".chosen"), await text(page, ".ways")];
await page.locator(".cells").focus();
await page.keyboard.press("ArrowLeft");
await page.waitForFunction((before) => document.querySelector(".ways").innerText !== before, seen.hovered[1]);
seen.moved = [await text(page, ".chosen"), await text(page, ".ways")];
await page.getByLabel("Participant").fill("client-3");
await page.waitForFunction(() => (document.querySelector("#live h2") || {}).innerText?.startsWith("client-3"));
seen.searched = await text(page, "#live");

// every topology: the cell in the middle by pointer, the one beside it by key, a client by name
for (const run of ["groups", "tree", "clusters"]) {
  await page.goto(at(`/sight?run=${run}`));
  await page.waitForSelector("figure.map, figure.tabled");
  const told = await page.evaluate(async (id) => (await fetch(`/api/sight?run=${id}`)).json(), run);
  const [down, across] = [told.subjects.length, told.observers.length];
  const box = await page.locator(".map .cells svg").boundingBox();
  const [x, y] = [Math.floor(across / 2), Math.floor(down / 2)];
  await page.mouse.move(box.x + ((x + 0.5) * box.width) / across, box.y + ((y + 0.5) * box.height) / down);
  const words = { told, x, y, hovered: await text(page, ".chosen") };
  await page.waitForFunction(() => document.querySelector(".ways").innerText.includes("seen by"));
  words.ways = await text(page, ".ways");
  await page.locator(".map .cells").focus();
  await page.keyboard.press("ArrowUp");
  words.above = await text(page, ".chosen");
  await page.getByLabel("Participant").fill("client-3");
  await page.waitForFunction(() => (document.querySelector("#live h2") || {}).innerText?.startsWith("client-3"));
  words.searched = await text(page, "#live");
  await page.waitForSelector(".map .mark");
  seen.maps[run] = words;
}

await page.goto(at("/run?run=quick"));
await page.getByRole("link", { name: "Ledger" }).click();
seen.ledger = await texts(page, ".timeline tbody tr td:first-child");
await page.getByRole("link", { name: "Later" }).click();
await page.waitForURL("**start=100*");
seen.later = await texts(page, ".timeline tbody tr td:first-child");
await page.locator(".strip a").nth(30).click();
await page.waitForURL("**round=*");
seen.barRound = await text(page, ".timeline tbody tr td:nth-child(2)");
await page.getByLabel("Search").fill("clipped updates");
await page.getByLabel("From round").fill("");
await page.waitForFunction(() => /hold/.test(document.querySelector("#live").innerText));
seen.found = await text(page, "#live .hint");

await page.goto(at("/calculator?scheme=balanced&noise=2&steps=1000&uses=100&epochs=1&delta=1e-5"));
const numbers = () => page.$$eval(".epsilons div", (all) => Object.fromEntries(all.map((one) => [one.querySelector("dt").innerText, one.querySelector("b").innerText])));
seen.calculator = await numbers();
const before = await text(page, ".epsilons b");
await page.locator('input[data-for="noise"]').focus();
for (let i = 0; i < 12; i += 1) await page.keyboard.press("ArrowRight");
await page.waitForFunction((old) => document.querySelector(".epsilons b").innerText !== old, before);
await page.waitForFunction(() => !document.querySelector("#live.busy") && location.search.includes(`noise=${document.querySelector("input[name=noise]").value}`));
await page.waitForFunction(() => document.querySelector("#curve figure.chart"));
seen.turned = { noise: await page.locator("input[name=noise]").inputValue(), numbers: await numbers(), address: page.url() };
await page.locator("input[name=noise]").fill("-3");
await page.waitForSelector("#live .warn");
seen.mistake = await text(page, "#live .warn");
await page.locator("select[name=scheme]").selectOption("split");
await page.waitForURL("**scheme=split*");
seen.knobs = await page.$$eval(".knob input[type=number]", (all) => all.map((one) => one.name));

await page.goto(at("/groups?structure=ring&workers=40&groups=8&period=5&epochs=31&noise=3&rate=0.7&delta=1e-5"));
seen.groups = [await numbers()];
await page.locator('input[data-for="noise"]').focus();
for (let i = 0; i < 12; i += 1) await page.keyboard.press("ArrowRight");
await page.waitForFunction((old) => document.querySelector(".epsilons b").innerText !== old, seen.groups[0]["worst worker"]);
await page.waitForFunction(() => !document.querySelector("#live.busy") && location.search.includes(`noise=${document.querySelector("input[name=noise]").value}`));
seen.groups.push({ noise: await page.locator("input[name=noise]").inputValue(), numbers: await numbers() });
await page.locator(".map .cells").focus();
await page.keyboard.press("ArrowRight");
await page.keyboard.press("ArrowDown");
seen.groups.push(await text(page, ".chosen"));
await page.getByRole("link", { name: "Tree" }).click();
seen.tree = await texts(page, ".matrix td");

await page.goto(at("/run?run=live"));
seen.liveBefore = await text(page, ".status");
await page.waitForFunction(() => document.querySelector(".status").innerText === "finished");
seen.liveAfter = await page.$$eval(".figures div", (all) => Object.fromEntries(all.map((one) => [one.querySelector("dt").innerText, one.querySelector("dd").innerText])));

const PAGES = ["/", "/?q=nobody", "/run?run=quick", "/run?run=tree", "/sight?run=sample&q=client-1", "/sight?run=groups&q=client-1", "/ledger?run=quick", "/ledger?run=tree", "/compare", "/compare?run=quick&run=sample", "/compare?run=tree&run=a-name-that-goes-on-and-on-because-someone-wanted-to-remember-everything", "/calculator", "/calculator?noise=x", "/groups", "/groups?threat=out-of-group&structure=clusters", "/tree", "/nowhere"];
const [phone, desk] = [{ width: 375, height: 780 }, { width: 1200, height: 900 }];
const KINDS = { phone: { viewport: phone }, light: { viewport: desk }, dark: { viewport: desk, colorScheme: "dark" }, "dark phone": { viewport: phone, colorScheme: "dark" } };
for (const [kind, options] of Object.entries(KINDS)) {
  // The header too: Chromium forgets session cookies if its network process restarts during these many pages.
  const Authorization = `Bearer ${new URL(entrance).searchParams.get("token")}`;
  const visiting = await visitor({ ...options, extraHTTPHeaders: { Authorization } });
  for (const path of PAGES) {
    await visiting.goto(at(path));
    seen.widths[`${kind} ${path}`] = await visiting.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
    const low = await visiting.evaluate(lowContrast);
    if (low.length) seen.contrast[`${kind} ${path}`] = low;
    if (shots) await visiting.screenshot({ path: `${shots}/${kind}-${path.replace(/\W+/g, "_")}.png`, fullPage: true });
  }
  seen[kind] = await visiting.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await visiting.context().close();
}

const plain = await browser.newContext({ javaScriptEnabled: false });
const quiet = await plain.newPage();
await quiet.goto(entrance);
await quiet.waitForSelector("main h1", { timeout: 180000 });
await quiet.goto(at("/?q=prox"));
seen.withoutScript = [await quiet.locator(".runs tbody tr").count()];
await quiet.goto(at("/calculator?scheme=gaussian&noise=2&steps=10&delta=1e-5"));
seen.withoutScript.push(await quiet.locator(".epsilons b").first().innerText());

const stranger = await (await browser.newContext()).newPage();
seen.stranger = [(await stranger.goto(at("/run?run=quick"))).status(), await stranger.locator("body").innerText()];
await browser.close();
console.log(JSON.stringify(seen));
