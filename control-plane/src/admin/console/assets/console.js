// Draws the charts, and fetches the page anew every few seconds: what has `data-live` is replaced by what came, charts get its data.
// Without this script the page is complete, but for the drawings.
"use strict";

const EVERY_MS = 5000;
const COLOURS = ["#3b7dd8", "#e0853d", "#4fa36a", "#b35bb0", "#c9514b", "#5aa7b5", "#a3903b", "#7a6fd1", "#8a8f98"];
const charts = new Map();

function datasets(told) {
  return told.series.map((series, at) => ({ label: series.name, data: series.values, backgroundColor: COLOURS[at % COLOURS.length] }));
}

function draw(figure) {
  const told = JSON.parse(figure.dataset.chart);
  const chart = charts.get(figure.id);
  if (chart) {
    chart.data = { labels: told.days, datasets: datasets(told) };
    chart.update("none");
    return;
  }
  const style = getComputedStyle(document.body);
  Chart.defaults.color = style.color;
  charts.set(figure.id, new Chart(figure.querySelector("canvas"), {
    type: "bar",
    data: { labels: told.days, datasets: datasets(told) },
    options: {
      animation: false, maintainAspectRatio: false, interaction: { mode: "index", intersect: false },
      scales: { x: { stacked: true }, y: { stacked: true, beginAtZero: true, title: { display: true, text: told.unit }, ticks: told.unit === "USD" ? {} : { precision: 0 } } },
      plugins: { legend: { position: "bottom", labels: { boxWidth: 12 } } },
    },
  }));
}

// What somebody opened stays open, and what holds the focus is left alone.
function replace(old, fresh) {
  if (old.contains(document.activeElement)) return;
  for (const opened of old.querySelectorAll("details[open][id]")) {
    fresh.querySelector(`#${CSS.escape(opened.id)}`)?.setAttribute("open", "");
  }
  old.replaceChildren(...fresh.childNodes);
}

async function refresh() {
  if (document.visibilityState !== "visible") return;
  const answer = await fetch(location.href, { redirect: "manual" }); // to the login: not ok either
  if (!answer.ok) throw new Error(answer.statusText);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const old of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(old.id);
    if (fresh) replace(old, fresh);
  }
  for (const figure of document.querySelectorAll("[data-chart]")) {
    const fresh = page.getElementById(figure.id);
    if (fresh) {
      figure.dataset.chart = fresh.dataset.chart;
      draw(figure);
    }
  }
}

// Old numbers must not pass for new ones. A control plane that is away is asked again the next time.
function tell(isStale) {
  const stale = document.getElementById("stale");
  if (stale.hidden === !isStale) return;
  stale.hidden = !isStale;
  stale.textContent = isStale ? `Not live since ${new Date().toISOString().slice(11, 19)} UTC: the control plane does not answer, or you are logged out.` : "";
}

document.querySelectorAll("[data-chart]").forEach(draw);
if (document.querySelector("[data-live]")) {
  setInterval(() => refresh().then(() => tell(false), () => tell(true)), EVERY_MS);
}
