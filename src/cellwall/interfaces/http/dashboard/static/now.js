// The page Now: tiles, the chart and the list follow the stream of cellwall.js.
"use strict";
(() => {
  const rates = document.getElementById("rates"), feed = document.getElementById("feed");
  const runs = JSON.parse(rates.dataset.runs), refusals = JSON.parse(rates.dataset.refusals);
  const MAX_ROWS = 60;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const times = runs.map((_, index) => Date.now() / 1000 - (runs.length - 1 - index));
  let chart = null;
  function draw() {
    rates.replaceChildren();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    chart = new uPlot({
      width: rates.clientWidth, height: 150, legend: { show: false }, cursor: { show: false },
      scales: { y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } },
      axes: [{ ...axis, space: 80, size: 28, values: (_, ticks) => ticks.map((at) => new Date(at * 1000).toISOString().slice(11, 19)) }, { ...axis, size: 40 }],
      series: [{}, { stroke: colour("--accent"), width: 1.5, points: { show: false } }, { stroke: colour("--deny"), width: 1.5, dash: [4, 3], points: { show: false } }],
    }, [times, runs, refusals], rates);
    rates.firstElementChild.setAttribute("role", "img");
    rates.firstElementChild.setAttribute("aria-label", "Runs and refusals per second over the last five minutes");
  }
  draw();
  let pending = 0;
  addEventListener("resize", () => { cancelAnimationFrame(pending); pending = requestAnimationFrame(draw); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  // Rendered and escaped by the server. The link that has the focus keeps it.
  function replace(panel, text) {
    const focused = panel.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    panel.innerHTML = text;
    if (focused) panel.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }
  document.addEventListener("cellwall:message", ({ detail }) => {
    for (const [name, text] of Object.entries(detail.tiles)) {
      const value = document.getElementById(`tile-${name}`);
      if (value && value.textContent !== text) value.textContent = text;
    }
    times.push(Date.now() / 1000); runs.push(detail.runs); refusals.push(detail.refusals);
    for (const each of [times, runs, refusals]) each.shift();
    if (!document.hidden) chart.setData([times, runs, refusals]);
    for (const [name, text] of Object.entries(detail.panels || {})) replace(document.getElementById(name), text);
    if (!detail.feed) return;
    document.getElementById("feed-empty")?.remove();
    // Rendered and escaped by the server, as the rows of the page are.
    feed.insertAdjacentHTML("afterbegin", detail.feed);
    while (feed.childElementCount > MAX_ROWS) feed.lastElementChild.remove();
    document.getElementById("sampled").textContent = detail.more ? `${detail.more} more in this second` : "";
  });
})();
