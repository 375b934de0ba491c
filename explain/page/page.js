"use strict";
// The page is complete without this script. The script turns the sections into tabs, replaces the timeline by one
// that can be zoomed, and shows what is in memory at the moment under the pointer.
(function () {
  const film = JSON.parse(document.getElementById("film").textContent);
  const kinds = Array.from(document.querySelectorAll("#timeline .keys span"), (s) => s.textContent);
  const $ = (id) => document.getElementById(id);
  document.body.classList.add("scripted");

  // --- text
  function time(ns) {
    const s = ns / 1e9, a = Math.abs(s);
    if (a === 0) return "0";
    if (a >= 1) return +s.toPrecision(4) + " s";
    if (a >= 1e-3) return +(s * 1e3).toPrecision(4) + " ms";
    return +(s * 1e6).toPrecision(4) + " us";
  }
  function bytes(n) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let u = 0;
    while (Math.abs(n) >= 1024 && u < 4) { n /= 1024; u++; }
    return (u ? n.toFixed(2) : n) + " " + units[u];
  }
  function round(n) { return bytes(n).replace(/(\.\d*?)0+ /, "$1 ").replace(". ", " "); }
  function escape(s) { return String(s).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" }[c])); }

  // --- tips: whatever is titled or has data-tip
  const tip = $("tip");
  function showTip(text, x, y) {
    if (!text) { tip.hidden = true; return; }
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 8)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18) + "px";
  }
  for (const t of document.querySelectorAll("svg title")) {
    t.parentNode.setAttribute("data-tip", t.textContent);
    t.remove();
  }
  document.addEventListener("pointermove", (e) => {
    const of = e.target.closest && e.target.closest("[data-tip]");
    if (of) showTip(of.getAttribute("data-tip"), e.clientX, e.clientY);
    else if (!e.target.closest || !e.target.closest("#memory-view")) showTip("");
  });
  document.addEventListener("focusin", (e) => {
    const of = e.target.closest && e.target.closest("circle[data-tip]");
    if (!of) return;
    const box = of.getBoundingClientRect();
    showTip(of.getAttribute("data-tip"), box.right, box.bottom);
  });

  // --- tabs
  const tabs = Array.from(document.querySelectorAll("#tabs a"));
  function show(id, focus) {
    const at = tabs.findIndex((a) => a.hash === "#" + id);
    const tab = tabs[Math.max(at, 0)];
    for (const a of tabs) {
      const on = a === tab;
      a.setAttribute("aria-selected", on);
      a.tabIndex = on ? 0 : -1;
      document.querySelector(a.hash).classList.toggle("shown", on);
    }
    if (focus) tab.focus();
    if (tab.hash === "#timeline") drawTimeline();
    if (tab.hash === "#memory") drawMemory();
  }
  for (const a of tabs) {
    a.addEventListener("click", (e) => { e.preventDefault(); history.replaceState(null, "", a.hash); show(a.hash.slice(1)); });
    a.addEventListener("keydown", (e) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
      if (step) show(tabs[(tabs.indexOf(a) + step + tabs.length) % tabs.length].hash.slice(1), true);
    });
  }
  addEventListener("hashchange", () => show(location.hash.slice(1)));

  // --- timeline
  const view = $("timeline-view"), left = 130, lane = 26, gap = 8, stream = 12;
  let from = 0, to = film.step, waiting = false;
  const rows = [];
  let height = 4;
  for (const r of film.ranks) {
    const streams = r.spans.reduce((most, s) => Math.max(most, s[4]), 0);
    rows.push({ rank: r, y: height });
    height += lane + streams * (stream + 2) + gap;
  }
  view.classList.add("live");
  function width() { return Math.max(view.clientWidth || 1100, 600); }
  function niceStep(span, n) {
    const raw = span / n, p = Math.pow(10, Math.floor(Math.log10(raw)));
    return [1, 2, 5, 10].map((m) => m * p).find((s) => s >= raw);
  }
  function axis(out, w, x, bottom) {
    const step = niceStep(to - from, 8);
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      const at = x(t).toFixed(1);
      out.push(`<line x1="${at}" y1="4" x2="${at}" y2="${bottom}" class="grid"/><text x="${at}" y="${bottom + 16}" class="tiny muted" text-anchor="middle">${time(t)}</text>`);
    }
  }
  function drawTimeline() {
    const w = width(), plot = w - left - 10, x = (t) => left + (t - from) / (to - from) * plot;
    const out = [];
    axis(out, w, x, height);
    for (const { rank, y } of rows) {
      out.push(`<text x="${left - 10}" y="${y + lane / 2 + 4}" class="small" text-anchor="end">${escape(rank.label)}</text>`);
      const a = Math.max(x(0), left), b = Math.min(x(film.step), w - 10);
      out.push(`<rect x="${a}" y="${y}" width="${Math.max(0, b - a)}" height="${lane}" class="idle" data-tip="waiting"/>`);
      const clip = (s, e) => [Math.max(x(s), left), Math.min(x(e), w - 10)];
      for (const t of rank.tasks) {
        if (t[1] < from || t[0] > to) continue;
        const [p, q] = clip(t[0], t[1]);
        // A pass that is wide enough shows its instructions.
        const open = rank.spans.length > 0 && q - p > 90;
        out.push(`<rect x="${p.toFixed(2)}" y="${y}" width="${Math.max(0.4, q - p).toFixed(2)}" height="${lane}" class="k${t[2]} task" ${open ? 'opacity=".35"' : ""} data-tip="${escape(`${rank.label}: ${t[3]}\n${time(t[1] - t[0])}, from ${time(t[0])}`)}"/>`);
        if (!open && q - p > 18 && t[2] !== 3) out.push(`<text x="${((p + q) / 2).toFixed(1)}" y="${y + lane / 2 + 4}" class="ontask" text-anchor="middle">${t[4]}</text>`);
      }
      let drawn = -1;
      for (const s of rank.spans) {
        if (s[1] < from || s[0] > to) continue;
        const [p, q] = clip(s[0], s[1]);
        const beside = s[4] > 0, task = beside ? null : rank.tasks.find((t) => t[0] <= s[0] && s[1] <= t[1]);
        if (!beside) {
          const [tp, tq] = task ? clip(task[0], task[1]) : [p, q];
          if (tq - tp <= 90 || q - p < 0.25 && p - drawn < 0.25) continue;
          drawn = q;
        }
        const top = beside ? y + lane + 2 + (s[4] - 1) * (stream + 2) : y + 3, high = beside ? stream - 2 : lane - 6;
        out.push(`<rect x="${p.toFixed(2)}" y="${top}" width="${Math.max(0.3, q - p - 0.3).toFixed(2)}" height="${high}" class="k${s[3]}" data-tip="${escape(`${film.names[s[2]]}\n${kinds[s[3]]}, ${time(s[1] - s[0])}, from ${time(s[0])}${beside ? ", beside the kernels" : ""}`)}"/>`);
      }
    }
    view.innerHTML = `<svg id="timeline-svg" role="img" aria-label="timeline of ranks" viewBox="0 0 ${w} ${height + 24}" width="${w}" height="${height + 24}">${out.join("")}</svg>`;
  }
  function redraw() {
    if (waiting) return;
    waiting = true;
    showTip("");
    requestAnimationFrame(() => { waiting = false; drawTimeline(); });
  }
  function zoom(by, at) {
    const span = Math.min(film.step, Math.max((to - from) * by, Math.min(film.step, 100)));
    const share = (at - from) / (to - from);
    from = Math.max(0, Math.min(at - span * share, film.step - span));
    to = from + span;
    redraw();
  }
  function timeAt(e) {
    const box = view.getBoundingClientRect();
    return from + Math.max(0, Math.min(1, (e.clientX - box.left - left) / (width() - left - 10))) * (to - from);
  }
  view.addEventListener("wheel", (e) => { e.preventDefault(); zoom(e.deltaY > 0 ? 1.25 : 0.8, timeAt(e)); }, { passive: false });
  let drag = null;
  view.addEventListener("pointerdown", (e) => { drag = { x: e.clientX, from }; view.setPointerCapture(e.pointerId); });
  view.addEventListener("pointermove", (e) => {
    if (!drag) return;
    const span = to - from, by = (drag.x - e.clientX) / (width() - left - 10) * span;
    from = Math.max(0, Math.min(drag.from + by, film.step - span));
    to = from + span;
    redraw();
  });
  for (const end of ["pointerup", "pointercancel"]) view.addEventListener(end, () => { drag = null; });
  $("zoom-in").addEventListener("click", () => zoom(0.5, (from + to) / 2));
  $("zoom-out").addEventListener("click", () => zoom(2, (from + to) / 2));
  $("zoom-all").addEventListener("click", () => { from = 0; to = film.step; redraw(); });

  // --- memory
  const memory = $("memory-view"), pick = $("memory-rank"), detail = $("memory-detail");
  const area = { top: 14, bottom: 286 };
  let cursor = null;
  function drawMemory() {
    const r = film.ranks[pick.value], w = Math.max(memory.clientWidth || 1100, 600), plot = w - left - 10;
    const most = r.arena * 1.06, x = (t) => left + t / film.step * plot, y = (b) => area.bottom - (area.bottom - area.top) * b / most;
    const out = [];
    const unit = Math.pow(1024, Math.floor(Math.log2(Math.max(most, 1)) / 10)), step = niceStep(most / unit, 6) * unit;
    for (let b = 0; b <= most; b += step) out.push(`<line x1="${left}" y1="${y(b)}" x2="${w - 10}" y2="${y(b)}" class="grid"/><text x="${left - 8}" y="${y(b) + 4}" class="tiny muted" text-anchor="end">${round(Math.round(b))}</text>`);
    function fill(name, of) {
      let path = `M${x(0)} ${area.bottom}V${y(r.persist).toFixed(1)}`;
      for (const p of r.points) path += `H${x(p[0]).toFixed(1)}V${y(of(p)).toFixed(1)}`;
      out.push(`<path d="${path}H${x(film.step)}V${area.bottom}Z" class="${name}"/>`);
    }
    fill("mtemp", (p) => r.persist + p[1] + p[2]);
    fill("msaved", (p) => r.persist + p[1]);
    let level = r.persist;
    for (let i = r.parts.length - 1; i >= 0; i--) {
      const p = r.parts[i], high = y(level - p.bytes) - y(level);
      out.push(`<rect x="${x(0)}" y="${y(level)}" width="${x(film.step) - x(0)}" height="${high}" class="mpart${i % 4}"/>`);
      if (high > 16) out.push(`<text x="${left + 10}" y="${y(level) + high / 2 + 4}" class="ontask">${escape(p.kind)} ${bytes(p.bytes)}</text>`);
      level -= p.bytes;
    }
    out.push(`<line x1="${left}" y1="${y(r.arena)}" x2="${w - 10}" y2="${y(r.arena)}" class="limit"/><text x="${w - 14}" y="${y(r.arena) - 5}" class="tiny" text-anchor="end">allocated: ${bytes(r.arena)}</text>`);
    const ticks = niceStep(film.step, 8);
    for (let t = 0; t <= film.step; t += ticks) out.push(`<text x="${x(t)}" y="${area.bottom + 18}" class="tiny muted" text-anchor="middle">${time(t)}</text>`);
    if (cursor !== null) out.push(`<line x1="${x(cursor)}" y1="${area.top}" x2="${x(cursor)}" y2="${area.bottom}" class="cursor"/>`);
    memory.innerHTML = `<svg id="memory-svg" role="img" aria-label="memory over time of ${escape(r.label)}" viewBox="0 0 ${w} 320" width="${w}" height="320">${out.join("")}</svg>`;
    describe(r);
  }
  function row(name, value) { return `<tr><td class="mono">${escape(name)}</td><td class="n">${bytes(value)}</td></tr>`; }
  function describe(r) {
    const parts = r.parts.filter((p) => p.bytes > 0).map((p) => row(p.kind, p.bytes)).join("");
    const always = `<div><h3>Always there, on ${escape(r.label)}: ${bytes(r.persist)}</h3><table class="data">${parts}</table></div>`;
    if (cursor === null) { detail.className = "detail"; detail.innerHTML = always; return; }
    let at = r.points[0];
    for (const p of r.points) { if (p[0] > cursor) break; at = p; }
    const m = film.moments[at[4]];
    detail.className = "detail two";
    detail.innerHTML = always + `<div><h3>At ${time(cursor)}, ${escape(m.at)}: ${bytes(r.persist + at[1] + at[2])}</h3><table class="data">` +
      row(`activations of ${at[3]} micro-batch${at[3] === 1 ? "" : "es"} in flight`, at[1]) + row("temporary", at[2]) + m.live.map((l) => row("· " + l.name, l.bytes)).join("") + "</table></div>";
  }
  memory.addEventListener("pointermove", (e) => {
    const box = memory.getBoundingClientRect(), w = Math.max(memory.clientWidth, 600);
    cursor = Math.max(0, Math.min(1, (e.clientX - box.left - left) / (w - left - 10))) * film.step;
    drawMemory();
  });
  pick.addEventListener("change", () => { cursor = null; drawMemory(); });
  addEventListener("resize", () => { drawTimeline(); drawMemory(); });

  show(location.hash.slice(1) || "overview");
  scrollTo(0, 0);
})();
