// The console in Chromium, by keyboard.
import { createRequire } from "node:module";
import { deepStrictEqual as equal, ok } from "node:assert";
import { join } from "node:path";

const { CONSOLE, GATEWAY, CHROMIUM, BROWSER, TOKEN, VIEWER, SCREENSHOTS } = process.env;
const { chromium } = createRequire(join(BROWSER, "package.json"))("playwright-core");
const PHONE = { width: 360, height: 740 };
const DESK = { width: 1200, height: 800 };

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
const done = (what) => console.log(`ok: ${what}`);

// A visitor whose browser may load nothing from elsewhere and has nothing to complain of.
const complaints = [];
async function visitor(options = {}) {
  const context = await browser.newContext({ viewport: DESK, reducedMotion: "reduce", ...options });
  context.setDefaultTimeout(30_000);
  const page = await context.newPage();
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("request", (request) => request.url().startsWith(CONSOLE) || request.url().startsWith("data:") || complaints.push(request.url()));
  return page;
}

// Nothing but the keyboard.
async function tabTo(page, matches) {
  for (let steps = 0; steps < 80; steps += 1) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(() => {
      const { tagName, name, id, innerText, outerHTML } = document.activeElement;
      return { tag: tagName, name, id, text: innerText?.trim(), html: outerHTML.slice(0, 80) };
    });
    if (matches(at)) return;
  }
  throw new Error("the keyboard does not reach it");
}
const field = (name) => (at) => at.name === name || at.id === name;
const named = (text) => (at) => at.text === text;
async function fill(page, name, text) {
  await tabTo(page, field(name));
  await page.keyboard.press("ControlOrMeta+A");
  await page.keyboard.type(text);
}
async function press(page, text) {
  await tabTo(page, named(text));
  await Promise.all([page.waitForNavigation(), page.keyboard.press("Enter")]);
}
async function login(page, token) {
  await page.goto(`${CONSOLE}/`);
  await page.keyboard.type(token);
  await Promise.all([page.waitForNavigation(), page.keyboard.press("Enter")]);
}
const say = (key, model, text) =>
  fetch(`${GATEWAY}/v1/chat/completions`, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
    body: JSON.stringify({ model, messages: [{ role: "user", content: text }] }),
  });
const shot = async (page, name) => SCREENSHOTS && page.screenshot({ path: join(SCREENSHOTS, `${name}.png`) });
const shows = (page, selector, text) =>
  page.waitForFunction(([selector, text]) => document.querySelector(selector)?.innerText.includes(text), [selector, text]);

const page = await visitor();
await login(page, TOKEN);
equal(await page.title(), "Projects · proxium");
const [cookie] = await page.context().cookies();
equal([cookie.httpOnly, cookie.sameSite], [true, "Strict"]);
equal(await page.evaluate(() => document.cookie), "");
done("a token logs in, by a cookie that no script sees");

await fill(page, "name", "R&D <search>");
await fill(page, "monthly_cap_usd", "a lot");
await press(page, "Make project");
ok((await page.locator(".fault").innerText()).includes("decimal"));
equal(await page.inputValue("#name"), "R&D <search>");
await fill(page, "monthly_cap_usd", "250");
await press(page, "Make project");
ok((await page.innerText("h1")).startsWith("R&D <search>"));
const project = page.url().match(/projects\/([^/]+)\/keys/)[1];
done("a project is made by keyboard; a fault is told at its field, markup is text");

const make = async (name, ceiling) => {
  await page.goto(`${CONSOLE}/console/projects/${project}/keys`);
  await fill(page, "name", name);
  if (ceiling) await fill(page, "ceilings.calls_per_hour", ceiling);
  await press(page, "Make key");
  return page.innerText("#secret");
};
const key = await make("ci");
ok(/^px_\w{43}$/.test(key));
await shot(page, "key");
await page.goto(`${CONSOLE}/console/projects/${project}/keys`);
ok(!(await page.content()).includes(key));
done("a key is made and shown once");

const overview = await visitor({ storageState: await page.context().storageState() });
await overview.goto(`${CONSOLE}/console/projects/${project}`);
ok((await overview.innerText("#live-recent")).includes("No call yet"));
equal((await say(key, "fast", "hello")).headers.get("x-proxium-model"), "m2");
equal((await say(key, "fast", "other")).headers.get("x-proxium-cache"), "miss");
// An answer may reach the client before it is stored.
let tries = 0;
do tries += 1;
while ((await say(key, "fast", "other")).headers.get("x-proxium-cache") !== "hit" && tries < 100);
const stopped = await make("stopped", "0");
equal((await say(stopped, "m1", "hello")).status, 429);
// The page was open all the while and nobody touched it.
await shows(overview, "#live-recent", "fast");
await shows(overview, "#hit-rate", `${(100 / (2 + tries)).toFixed(1)} %`);
await shows(overview, "#live-refusals", "calls_per_hour: 1");
await shows(overview, "#live-rows", "m2");
const drawn = await overview.evaluate(() => [...document.querySelectorAll("canvas")].map((canvas) => Chart.getChart(canvas).data.datasets.map((set) => [set.label, set.data.at(-1) > 0])));
equal(drawn.map((sets) => sets.filter(([, some]) => some).map(([name]) => name).sort()), [["m1", "m2"], ["from a provider", "from the cache"], ["calls_per_hour"]]);
done("an open page shows spend, hits and refusals as they come, in charts and in tables");

const summary = overview.locator("#live-recent tr", { hasText: "m2" }).locator("summary");
equal((await summary.innerText()).trim(), "2");
await summary.focus();
await overview.keyboard.press("Enter");
ok((await overview.locator("#live-recent details[open]").innerText()).includes("m1: "));
done("a call tells its attempts");

for (let call = 0; call < 6; call += 1) equal((await say(key, "m3", `broken ${call}`)).status < 500, false);
await shows(overview, "#live-breakers", "third");
ok((await overview.innerText("#live-breakers")).includes("open"));
await page.goto(`${CONSOLE}/console`);
await shows(page, "#live-projects", "third");
done("an open breaker is shown");

await page.goto(`${CONSOLE}/console/projects/${project}/settings`);
await fill(page, "cached_answer_charge", "1.5");
await press(page, "Save");
ok((await page.locator("strong.fault").innerText()).includes("from 0 to 1"));
await fill(page, "cached_answer_charge", "0.25");
await fill(page, "cache.ttl_s", "120");
await press(page, "Save");
ok((await page.locator(".done").innerText()).startsWith("Saved"));
equal([await page.inputValue("#cached_answer_charge"), await page.inputValue('[name="cache.ttl_s"]')], ["0.25", "120"]);
await shot(page, "settings");
await tabTo(page, named("Forget stored answers…"));
await page.keyboard.press("Enter");
await press(page, "Forget all");
ok((await page.locator(".done").innerText()).includes("forgotten"));
// Envoy's workers hear of it within two seconds.
let cache;
const until = Date.now() + 10_000;
do cache = (await say(key, "fast", "other")).headers.get("x-proxium-cache");
while (cache !== "miss" && Date.now() < until);
equal(cache, "miss");
done("settings are changed, refused whole when one is wrong, and answers forgotten");

await page.goto(`${CONSOLE}/console/projects/${project}/keys`);
await page.locator("tr", { hasText: "stopped" }).locator("summary").focus();
await page.keyboard.press("Enter");
await press(page, "Revoke stopped");
ok((await page.locator("tr", { hasText: "stopped" }).innerText()).includes("revoked"));
for (let status = 0; status !== 401; ) ({ status } = await say(stopped, "m1", "hello"));
done("a key is revoked, everywhere");

const wall = await visitor();
await login(wall, VIEWER);
for (const path of ["", `/projects/${project}`, `/projects/${project}/keys`, `/projects/${project}/settings`, "/tokens", "/audit"]) {
  const answer = await wall.goto(`${CONSOLE}/console${path}`);
  equal(answer.status(), 200);
  equal(await wall.locator("main button:not(.quiet)").count(), 0, path);
}
const forged = await wall.evaluate(async (path) => {
  const csrf = document.querySelector('[name="csrf"]').value;
  const answer = await fetch(path, { method: "POST", body: new URLSearchParams({ csrf, name: "mine" }) });
  return answer.status;
}, "/console/projects");
equal(forged, 403);
complaints.splice(0, complaints.length, ...complaints.filter((text) => !text.includes("403")));
done("a viewer sees everything and changes nothing");

for (const path of ["", `/projects/${project}`, `/projects/${project}/keys`, `/projects/${project}/settings`, "/tokens", "/audit"]) {
  await page.setViewportSize(PHONE);
  equal((await page.goto(`${CONSOLE}/console${path}`)).status(), 200, path);
  equal(await page.evaluate(() => document.documentElement.scrollWidth), PHONE.width, path);
}
await page.goto(`${CONSOLE}/console/projects/${project}`);
await shot(page, "phone");
await page.setViewportSize(DESK);
done("every page fits a phone");

await page.setViewportSize({ width: 1200, height: 1420 });
await page.goto(`${CONSOLE}/console/projects/${project}?days=7`);
await shot(page, "overview");
await page.setViewportSize(DESK);
await page.goto(`${CONSOLE}/console/projects/${project}`);
const plain = await visitor({ javaScriptEnabled: false, storageState: await page.context().storageState() });
await plain.goto(`${CONSOLE}/console/projects/${project}`);
ok((await plain.innerText("#live-rows")).includes("m2"));
done("without scripts the tables say it all");

await page.goto(`${CONSOLE}/console/tokens`);
await fill(page, "name", "night shift");
await press(page, "Make token");
const night = await visitor();
await login(night, await page.innerText("#secret"));
equal(await night.title(), "Projects · proxium");
await page.locator("tr", { hasText: "night shift" }).locator("summary").focus();
await page.keyboard.press("Enter");
await press(page, "Revoke night shift");
await night.goto(`${CONSOLE}/console`);
equal(new URL(night.url()).pathname, "/console/login");
await page.goto(`${CONSOLE}/console/audit`);
ok((await page.innerText("main")).includes("revoke token"));
await shot(page, "audit");
done("a token is made, shown once, and its sessions end with it");

await press(page, "Log out");
equal(new URL(page.url()).pathname, "/console/login");
await shows(overview, "#stale", "Not live since");
await overview.goto(`${CONSOLE}/console`);
equal(new URL(overview.url()).pathname, "/console/login");
done("a session ends for every page of it, and an open one says that it is no longer live");

// Statuses that this script asked for are told in the browser's own console.
equal(complaints.filter((text) => !/status of (400|401)/.test(text)), []);
done("nothing was loaded from elsewhere, and the browser complains of nothing");
await browser.close();
