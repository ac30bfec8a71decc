// The view of a run, live or recorded. It reads events of events.schema.json, keeps what they make of the engine's
// state, and draws the state after one of them. Texts are whatever people send: they go into the page as text alone.
"use strict";

const $ = (id) => document.getElementById(id);
const COLORS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"]; // Okabe and Ito
const LIGHT = [true, true, false, true, false, false, true]; // which of them carry dark letters
const KEEP = 4000, DROP = 1000, EVERY = 50; // events of a live run that are kept, how many go at once, snapshots
const ENDS = { length: "■", stop: "●", cancelled: "✕" };
const recording = $("recording") ? JSON.parse($("recording").textContent) : null;
const reduced = matchMedia("(prefers-reduced-motion: reduce)");
const events = [], snapshots = new Map(); // state ahead of some events, by their place
let newest = fresh(), at = -1, playing = false, chosen = null, due = 0, texts = false, lanes = 4, first = 0, key = "", shown = null, model = "";

// ---- state: what the events make of it

function fresh() {
  return { rows: new Map(), tables: new Map(), cached: new Set(), cells: new Map(), waiting: { count: 0, ids: [] }, engine: null, hidden: 0, skipped: 0, past: new Map() };
}

function copied(s) {
  const rows = new Map([...s.rows].map(([id, row]) => [id, { ...row }]));
  const tables = new Map([...s.tables].map(([id, table]) => [id, table.slice()]));
  return { ...s, rows, tables, cached: new Set(s.cached), cells: new Map(s.cells), past: new Map([...s.past].map(([id, row]) => [id, { ...row }])) };
}

function apply(s, e) {
  s.hidden = (e.more && e.more.rows) || 0;
  if (e.waiting) s.waiting = e.waiting;
  for (const [cell, ...rest] of e.cells || []) s.cells.set(cell, rest);
  if (e.kind === "keyframe") {
    s.rows = new Map(e.rows.map((row) => [row.id, { ...row }]));
    s.tables = new Map(e.blocks ? e.blocks.tables.map(([id, table]) => [id, table.slice()]) : []);
    s.cached = new Set(e.blocks ? e.blocks.cached : []);
    s.cells = new Map((e.cells || []).map(([cell, ...rest]) => [cell, rest]));
    s.engine = e.engine;
    s.skipped = e.skipped || 0;
    return;
  }
  s.skipped = 0;
  for (const id of e.preempted || []) { if (s.rows.has(id)) s.past.set(id, s.rows.get(id)); s.rows.delete(id); }
  for (const row of e.begun || []) { s.rows.set(row.id, { ...row, fed: row.cached, text: ((s.past.get(row.id) || row).text) }); s.past.delete(row.id); }
  for (const [id, start, tokens] of e.pieces) { const row = s.rows.get(id); if (row) row.fed = start + tokens; }
  for (const id of e.decode) { const row = s.rows.get(id); if (row) row.fed += 1; }
  for (const [id, fed] of e.fed || []) { const row = s.rows.get(id); if (row) row.fed = fed; }
  e.tokens.forEach((id, i) => {
    const row = s.rows.get(id);
    if (row) { row.new += 1; if (e.texts) row.text = (row.text || "") + e.texts[i]; }
  });
  if (e.blocks) {
    for (const id of e.blocks.given) s.tables.delete(id);
    for (const [id, taken] of e.blocks.taken) {
      s.tables.set(id, (s.tables.get(id) || []).concat(taken));
      for (const block of taken) s.cached.delete(block);
    }
    for (const block of e.blocks.free) s.cached.delete(block);
    for (const block of e.blocks.cached) s.cached.add(block);
  }
  for (const [id] of e.ended || []) { s.rows.delete(id); s.past.delete(id); }
}

// One more event. What the picture of its column needs is noted once, while the lanes of its rows are known.
function take(e) {
  if (e.version !== 1 || !["keyframe", "step"].includes(e.kind) || (e.kind === "step" && !newest.engine)) return;
  if (events.length % EVERY === 0 || e.kind === "keyframe") snapshots.set(first + events.length, copied(newest));
  const before = new Map([...newest.rows].map(([id, row]) => [id, row.lane]));
  apply(newest, e);
  if (e.kind === "keyframe") texts = e.texts;
  const lane = (id) => (newest.rows.has(id) ? newest.rows.get(id).lane : (before.has(id) ? before.get(id) : ((e.begun || []).find((row) => row.id === id) || {}).lane));
  const marks = [];
  for (const [id, start, tokens] of e.pieces || []) {
    const begun = (e.begun || []).find((row) => row.id === id);
    marks.push({ lane: lane(id), id, tokens, hit: begun ? begun.cached : 0 });
  }
  for (const id of e.decode || []) marks.push({ lane: lane(id), id, tokens: 0 });
  for (const [id, why] of e.ended || []) if (lane(id) !== undefined) marks.push({ lane: lane(id), id, sign: ENDS[why] });
  for (const id of e.preempted || []) if (before.has(id)) marks.push({ lane: before.get(id), id, sign: "↩" });
  for (const mark of marks) lanes = Math.max(lanes, mark.lane + 1);
  events.push({ e, marks, widest: Math.max(0, ...marks.map((mark) => mark.tokens || 0)) });
  if (!recording && events.length > KEEP) forget();
}

// The oldest events go. The first that is left has a snapshot, since they go by multiples of EVERY or it gets one.
function forget() {
  const state = stateAt(first + DROP - 1);
  for (const place of [...snapshots.keys()]) if (place <= first + DROP) snapshots.delete(place);
  events.splice(0, DROP);
  first += DROP;
  snapshots.set(first, state);
  at = Math.max(at, first);
}

function stateAt(place) {
  let from = place;
  while (from > first && !snapshots.has(from)) from -= 1;
  const s = copied(snapshots.get(from) || fresh());
  for (let i = from; i <= place; i++) apply(s, events[i - first].e);
  return s;
}

const last = () => first + events.length - 1;

// ---- the step in words

const n = (count, one, many) => `${count} ${count === 1 ? one : many || one + "s"}`;
const ms = (s) => (s >= 1 ? `${s.toFixed(2)} s` : s >= 0.01 ? `${(1e3 * s).toFixed(0)} ms` : `${(1e3 * s).toFixed(2)} ms`);

function words(e, s) {
  const wait = s.waiting.count === 1 ? "1 waits" : `${s.waiting.count} wait`;
  if (e.kind === "keyframe") {
    const what = e.step < 0 ? "Before the first step" : `After step ${e.step}`;
    return `${what}: ${n(s.rows.size + s.hidden, "row runs", "rows run")}; ${wait}`;
  }
  const more = e.more || {}, parts = [];
  const decode = e.decode.length + (more.decode || 0), pieces = e.pieces.length + (more.pieces || 0);
  const tokens = e.pieces.reduce((sum, piece) => sum + piece[2], 0) + (more.tokens || 0);
  if (decode) parts.push(n(decode, "row decodes", "rows decode"));
  if (pieces) parts.push(`${n(pieces, "prompt piece")} of ${n(tokens, "token")}${pieces > 1 ? " together" : ""}`);
  return `Step ${e.step}: ${parts.join(", ") || "nothing is launched, tokens are awaited"}; ${wait}`;
}

function details(e) {
  if (e.kind === "keyframe") return e.skipped ? `${n(e.skipped, "step")} before it are not shown.` : "The whole state, as it was here.";
  const parts = [`took ${ms(e.took)}`, `${n(e.tokens.length, "token")} came`];
  for (const row of e.begun || []) {
    const again = row.new ? " again" : "", hit = row.cached ? ` (${row.cached} of its tokens were in the cache)` : "";
    parts.push(`request ${row.id} begins${again}${hit}`);
  }
  for (const id of e.preempted || []) parts.push(`request ${id} is preempted and waits again`);
  for (const [id, why] of e.ended || []) parts.push(why === "cancelled" ? `request ${id} is cancelled` : `request ${id} ends (${why})`);
  if (e.in_flight) parts.push(`the host is ${n(e.in_flight, "step")} behind the device`);
  const text = parts.slice(0, 9).join(" · ");
  return parts.length > 9 ? `${text} · and ${parts.length - 9} more` : text;
}

// ---- drawing

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let theme = {};

function pen(id, height) {
  const canvas = $(id), ratio = devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = `${height}px`;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const c = canvas.getContext("2d");
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, width, height);
  c.font = "12px system-ui, sans-serif";
  c.textBaseline = "middle";
  return { c, width };
}

// A request's colour, and beside it one of four patterns, so that neighbours differ for every eye.
function fill(c, id, x, y, w, h) {
  c.fillStyle = COLORS[id % 7];
  c.fillRect(x, y, w, h);
  const pattern = Math.floor(id / 7) % 4;
  if (pattern && w >= 5 && h >= 5) {
    c.save();
    c.beginPath();
    c.rect(x, y, w, h);
    c.clip();
    c.strokeStyle = c.fillStyle = LIGHT[id % 7] ? "rgba(0,0,0,.45)" : "rgba(255,255,255,.6)";
    c.lineWidth = 1.2;
    c.beginPath();
    if (pattern === 1) for (let d = -h; d < w; d += 5) { c.moveTo(x + d, y + h); c.lineTo(x + d + h, y); }
    if (pattern === 2) for (let d = 2.5; d < h; d += 5) { c.moveTo(x, y + d); c.lineTo(x + w, y + d); }
    if (pattern === 3) for (let u = 2.5; u < w; u += 5) for (let v = 2.5; v < h; v += 5) c.fillRect(x + u - 0.8, y + v - 0.8, 1.6, 1.6);
    c.stroke();
    c.restore();
  }
}

function hatch(c, x, y, w, h) {
  c.save();
  c.beginPath();
  c.rect(x, y, w, h);
  c.clip();
  c.strokeStyle = theme.hatch;
  c.lineWidth = 1;
  c.beginPath();
  for (let d = -h; d < w; d += 4) { c.moveTo(x + d, y + h); c.lineTo(x + d + h, y); }
  c.stroke();
  c.restore();
  c.strokeStyle = theme.hatch;
  c.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
}

function label(c, id, text, x, y, w) {
  if (c.measureText(text).width > w - 3) return;
  const across = c.measureText(text).width;
  if (Math.floor(id / 7) % 4) { c.fillStyle = COLORS[id % 7]; c.fillRect(x + (w - across) / 2 - 2, y - 6, across + 4, 12); }
  c.fillStyle = LIGHT[id % 7] ? "#000" : "#fff";
  c.fillText(text, x + (w - across) / 2, y + 0.5);
}

// The columns that fit, newest at the right: a step with a piece of a prompt is wider, as it took longer.
function columns(width, gutter) {
  const cell = width > 900 ? 22 : width > 500 ? 18 : 14, found = [];
  let x = width - 4;
  for (let place = at; place >= first && x > gutter; place--) {
    const { widest } = events[place - first];
    const w = widest ? Math.min(cell * 6, cell * (1.6 + Math.log2(1 + widest / 4))) : cell;
    x -= w;
    if (x < gutter) break;
    found.push({ place, x, w });
  }
  const shift = found.length && found[found.length - 1].place === first ? found[found.length - 1].x - gutter : 0;
  return { cell, found: found.map((column) => ({ ...column, x: column.x - shift })) };
}

const hits = { lanes: [], grid: [] };

function drawLanes(s) {
  const narrow = innerWidth < 720, gutter = narrow ? 78 : 118;
  const tall = lanes <= 8 ? 30 : lanes <= 16 ? 24 : lanes <= 32 ? 15 : 9;
  const { c, width } = pen("lanes", lanes * tall + 20), { cell, found } = columns(width, gutter);
  hits.lanes = [];
  const byLane = new Map([...s.rows.values()].map((row) => [row.lane, row]));
  for (let lane = 0; lane < lanes; lane++) {
    const y = lane * tall, row = byLane.get(lane);
    c.strokeStyle = theme.faint;
    c.strokeRect(gutter, y + 0.5, width - gutter - 4, tall);
    if (!row) continue;
    fill(c, row.id, 2, y + 3, 12, tall - 5);
    c.strokeStyle = row.id === chosen ? theme.ink : theme.line;
    c.lineWidth = row.id === chosen ? 2 : 1;
    c.strokeRect(2, y + 3, 12, tall - 5);
    c.lineWidth = 1;
    hits.lanes.push({ x: 0, y, w: gutter, h: tall, id: row.id });
    if (tall < 12) { c.font = "9px system-ui, sans-serif"; }
    c.fillStyle = theme.ink;
    c.fillText(`${row.id}`, 19, y + tall / 2);
    c.fillStyle = theme.soft;
    const state = row.new || row.fed >= row.prompt ? `+${row.new}` : `${row.fed}/${row.prompt}`;
    c.textAlign = "right";
    if (c.measureText(`${row.id}${state}`).width + 33 < gutter) c.fillText(state, gutter - 8, y + tall / 2);
    c.textAlign = "left";
    c.font = "12px system-ui, sans-serif";
  }
  const pad = tall > 12 ? 3 : 1;
  for (const { place, x, w } of found) {
    const { marks, widest, e } = events[place - first];
    if (place === at) { c.fillStyle = theme.mark; c.fillRect(x, 0, w, lanes * tall); }
    if (e.kind === "keyframe") { c.fillStyle = theme.soft; c.fillRect(x + w / 2, 0, 1, lanes * tall); continue; }
    for (const { lane, id, tokens, hit, sign } of marks) {
      const y = lane * tall + pad, h = tall - 2 * pad + 1;
      if (sign) {
        c.fillStyle = theme.ink;
        c.font = `bold ${tall > 12 ? 12 : 9}px system-ui, sans-serif`;
        const across = c.measureText(sign).width;
        c.fillStyle = theme.card;
        c.fillRect(x + w - across - 3, y, across + 3, h);
        c.fillStyle = theme.ink;
        c.fillText(sign, x + w - across - 1, y + h / 2);
        c.font = "12px system-ui, sans-serif";
        continue;
      }
      const whole = tokens ? Math.max(cell, w * Math.sqrt(tokens / widest)) - 2 : cell - 2, known = hit ? Math.min(10, whole / 3) : 0;
      fill(c, id, x + 1 + known, y, whole - known, h);
      if (known) hatch(c, x + 1, y, known, h);
      c.strokeStyle = id === chosen ? theme.ink : "rgba(0,0,0,.45)";
      c.lineWidth = id === chosen ? 2 : 1;
      c.strokeRect(x + 1.5, y + 0.5, whole - 1, h - 1);
      c.lineWidth = 1;
      if (tokens && tall > 12) label(c, id, `${tokens}`, x + 1 + known, y + h / 2, whole - known);
      hits.lanes.push({ x, y: lane * tall, w: whole, h: tall, id });
    }
  }
  c.fillStyle = theme.soft;
  c.textAlign = "center";
  let free = Infinity;
  for (const { place, x, w } of found) {
    const { step } = events[place - first].e, text = `${Math.max(step, 0)}`;
    const room = c.measureText(text).width;
    if ((place !== at && step % 5) || x + w / 2 + room / 2 + 8 > free || x + w / 2 + room / 2 > width) continue;
    c.fillStyle = place === at ? theme.ink : theme.soft;
    c.fillText(text, x + w / 2, lanes * tall + 12);
    free = x + w / 2 - room / 2;
  }
  c.textAlign = "left";
  c.fillStyle = theme.soft;
  c.fillText("step", 2, lanes * tall + 12);
  $("lanes").setAttribute("aria-label", `${n(s.rows.size, "row")} of the batch over ${n(found.length, "step")}; the table has the step in words.`);
  return { gutter, found };
}

function drawTimes(id, { gutter, found }, pick, mark, what) {
  const high = 72, { c, width } = pen(id, high), dots = [];
  for (const { place, x, w } of found) for (const [seconds, weight, who] of pick(events[place - first].e)) dots.push({ x: x + Math.min(w, 22) / 2, seconds, weight, who });
  const top = nice(Math.max(1e-4, ...dots.map((dot) => dot.seconds)));
  if (!dots.length) { c.fillStyle = theme.soft; c.fillText("none in these steps", gutter, high / 2); $(id).setAttribute("aria-label", `${what}: none in these steps.`); return; }
  c.strokeStyle = theme.line;
  c.fillStyle = theme.soft;
  c.textAlign = "right";
  for (const part of [0, 0.5, 1]) {
    const y = high - 8 - part * (high - 18);
    c.beginPath();
    c.moveTo(gutter, y + 0.5);
    c.lineTo(width - 4, y + 0.5);
    c.stroke();
    c.fillText(part ? ms(part * top) : "0", gutter - 8, y);
  }
  c.textAlign = "left";
  for (const dot of dots) mark(c, dot, high - 8 - (dot.seconds / top) * (high - 18));
  $(id).setAttribute("aria-label", `${what} of the last ${n(found.length, "step")}: ${n(dots.length, "value")}, at most ${ms(Math.max(0, ...dots.map((dot) => dot.seconds)))}.`);
}

const nice = (top) => { const p = 10 ** Math.floor(Math.log10(top)); return [1, 2, 5, 10].map((f) => f * p).find((t) => t >= top * 0.999); };

function drawPool(s) {
  const count = s.engine.blocks, size = s.engine.cell;
  if (!count) { pen("grid", 1); return; }
  const cells = size > 1 ? Math.ceil((count + 1) / size) : count, wide = $("grid").clientWidth, high = Math.max(220, Math.min(innerHeight * 0.5, 460));
  let side = Math.max(3, Math.min(40, Math.floor(Math.sqrt((wide * high) / cells))));
  while (side > 3 && Math.ceil(cells / Math.floor(wide / side)) * side > high) side -= 1;
  const across = Math.max(1, Math.floor(wide / side)), { c } = pen("grid", Math.ceil(cells / across) * side + 2);
  const place = (cell) => [(cell % across) * side, Math.floor(cell / across) * side], inner = side - (side > 5 ? 2 : 1);
  hits.grid = [];
  c.fillStyle = theme.faint;
  for (let cell = 0; cell < cells; cell++) { const [x, y] = place(cell); c.fillRect(x, y, inner, inner); }
  if (size > 1) {
    for (const [cell, [used, shared, cached]] of s.cells) {
      const [x, y] = place(cell), full = (inner * used) / size, kept = (inner * cached) / size;
      if (cached) hatch(c, x, y + inner - full - kept, inner, kept);
      c.fillStyle = COLORS[1];
      c.fillRect(x, y + inner - full, inner, full);
      c.fillStyle = theme.ink;
      if (shared) c.fillRect(x, y + inner - 1 - (inner * shared) / size, inner, 1.5);
    }
    return;
  }
  const owners = new Map();
  for (const [id, table] of s.tables) table.forEach((block, i) => {
    if (!owners.has(block)) owners.set(block, []);
    owners.get(block).push([id, i]);
  });
  for (const block of s.cached) { const [x, y] = place(block - 1); hatch(c, x, y, inner, inner); }
  for (const [block, who] of owners) {
    const [x, y] = place(block - 1), [[id, i]] = who, row = s.rows.get(id);
    const part = row && who.length === 1 ? Math.max(0.12, Math.min(1, (row.fed - i * s.engine.block_size) / s.engine.block_size)) : 1;
    if (part < 1) { c.globalAlpha = 0.3; fill(c, id, x, y, inner, inner); c.globalAlpha = 1; }
    fill(c, id, x, y + inner * (1 - part), inner, inner * part);
    if (who.length > 1) {
      c.save();
      c.beginPath();
      c.moveTo(x + inner, y);
      c.lineTo(x + inner, y + inner);
      c.lineTo(x, y + inner);
      c.clip();
      fill(c, who[who.length - 1][0], x, y, inner, inner);
      c.restore();
      c.strokeStyle = theme.ink;
      c.lineWidth = side > 8 ? 2 : 1;
      c.strokeRect(x + 0.5, y + 0.5, inner - 1, inner - 1);
      c.lineWidth = 1;
      if (side >= 14) { const r = side > 22 ? 7.5 : 5; c.fillStyle = "#000"; c.beginPath(); c.arc(x + inner / 2, y + inner / 2, r, 0, 7); c.fill(); c.fillStyle = "#fff"; c.font = `bold ${r > 6 ? 10 : 8}px system-ui, sans-serif`; c.textAlign = "center"; c.fillText(who.length > 99 ? "99" : `${who.length}`, x + inner / 2, y + inner / 2 + 0.5); c.textAlign = "left"; c.font = "12px system-ui, sans-serif"; }
    } else {
      c.strokeStyle = "rgba(0,0,0,.4)";
      if (side > 5) c.strokeRect(x + 0.5, y + 0.5, inner - 1, inner - 1);
      if (side >= 20) label(c, id, `${id}`, x, y + inner / 2, inner);
    }
    if (who.some(([one]) => one === chosen)) { c.strokeStyle = theme.accent; c.lineWidth = 3; c.strokeRect(x + 1, y + 1, inner - 2, inner - 2); c.lineWidth = 1; }
    hits.grid.push({ x, y, w: side, h: side, id: who.some(([one]) => one === chosen) ? chosen : id });
  }
  const shared = [...owners.values()].filter((who) => who.length > 1).length;
  $("grid").setAttribute("aria-label", `${n(count, "block")}: ${owners.size} owned, of these ${shared} shared, ${s.cached.size} kept for their text, ${count - owners.size - s.cached.size} free.`);
}

// ---- the page around the drawings

function put(element, ...children) { element.replaceChildren(...children); return element; }
function made(tag, text) { const element = document.createElement(tag); if (text !== undefined) element.textContent = text; return element; }

function badge(id) {
  const button = made("button", `${id}`);
  button.type = "button";
  button.title = `Follow request ${id}`;
  button.style.borderColor = COLORS[id % 7];
  button.setAttribute("aria-pressed", `${id === chosen}`);
  button.onclick = () => choose(id);
  return button;
}

function choose(id) { chosen = chosen === id ? null : id; shown = null; render(); }

function facts(engine) {
  const parts = [`up to ${engine.max_batch} rows`, `${engine.max_batched_tokens} tokens a step`];
  if (engine.blocks) parts.push(`${engine.blocks.toLocaleString("en")} blocks of ${engine.block_size} tokens`);
  parts.push(engine.blocks ? (engine.sharing ? "prefixes shared" : "nothing shared") : "no blocks: each row has room of its own");
  if (engine.lag) parts.push(`host up to ${n(engine.lag, "step")} behind`);
  return (model ? [model, ...parts] : parts).join(" · ");
}

function notes(s) {
  const found = recording && recording.note ? [recording.note] : [];
  if (s.skipped) found.push(`${n(s.skipped, "step")} before this one ${s.skipped === 1 ? "is" : "are"} not shown: the engine is faster than what watches it.`);
  if (s.hidden) found.push(`Aggregated: ${n(s.hidden, "row")} beyond the 64 that are shown one by one ${s.hidden === 1 ? "is" : "are"} only counted.`);
  if (s.engine && s.engine.cell > 1) found.push(`Aggregated: each cell of the pool stands for ${s.engine.cell} blocks; it is filled as far as they are used.`);
  return found.join(" ");
}

function table(e, s) {
  const acts = new Map();
  for (const id of e.decode || []) acts.set(id, "decode, 1 token");
  for (const [id, start, tokens] of e.pieces || []) acts.set(id, `prompt, ${n(tokens, "token")} from ${start}`);
  const ended = (e.ended || []).map(([id, why]) => [id, why === "cancelled" ? "cancelled" : `ended (${why})`]);
  const preempted = (e.preempted || []).map((id) => [id, "preempted, waits"]);
  const rows = [...s.rows.values()].sort((a, b) => a.lane - b.lane).map((row) => [row.id, row.new || row.fed >= row.prompt ? "decodes" : "prompt", row]);
  $("th-text").hidden = !texts;
  put($("caption"), `${words(e, s)}. ${details(e)}`);
  put($("tbody"), ...[...rows, ...[...ended, ...preempted].filter(([id]) => !s.rows.has(id))].slice(0, 96).map(([id, state, row]) => {
    const line = made("tr"), who = made("td");
    line.className = id === chosen ? "chosen" : "";
    who.append(badge(id));
    const blocks = s.tables.get(id) || [];
    line.append(who, made("td", state), made("td", acts.get(id) || "–"), made("td", row ? `${row.fed} of ${row.prompt + row.new}` : "–"), made("td", row ? row.new : "–"), made("td", s.engine.blocks && s.engine.cell === 1 ? blocks.length : "–"));
    if (texts) line.append(Object.assign(made("td", row ? tail((row.text || "").replace(/\s*\n\s*/g, " ⏎ "), 160) : ""), { className: "said" }));
    return line;
  }));
}

const tail = (text, most) => (text.length > most ? "…" + text.slice(-most) : text);

function about(s) {
  if (chosen === null) return "";
  const row = s.rows.get(chosen), blocks = s.tables.get(chosen) || [];
  if (!row) return `Request ${chosen} ${s.waiting.ids.includes(chosen) ? `waits, number ${s.waiting.ids.indexOf(chosen) + 1} in the queue.` : "has no row here."}`;
  const held = blocks.length ? `\nBlocks ${tail(blocks.join(", "), 300)}.` : "";
  return `Request ${chosen}: prompt of ${n(row.prompt, "token")}, ${row.fed} fed, ${row.new} new.${held}${texts && row.text ? `\n${tail(row.text, 1500)}` : ""}`;
}

function render(now) {
  if (!due) due = requestAnimationFrame(draw);
  if (now) { cancelAnimationFrame(due); draw(); }
}

let tabling = 0; // the table costs more than the pictures: while steps come, a few times a second
function tabulate() {
  clearTimeout(tabling);
  tabling = 0;
  if (at >= first && events.length) table(events[at - first].e, stateAt(at));
}

function draw() {
  due = 0;
  if (at < first || !events.length) return;
  const { e } = events[at - first], s = stateAt(at);
  for (const name of ["ink", "soft", "line", "faint", "accent", "mark", "hatch", "card"]) theme[name] = css(`--${name}`);
  $("words").setAttribute("aria-live", playing ? "off" : "polite");
  $("headline").textContent = words(e, s);
  $("more").textContent = details(e);
  $("facts").textContent = facts(s.engine);
  $("note").textContent = notes(s);
  $("note").hidden = !$("note").textContent;
  $("scrub").min = first; $("scrub").max = last(); $("scrub").value = at;
  $("scrub").setAttribute("aria-valuetext", words(e, s));
  $("link").href = `#step=${e.step}`;
  $("play").textContent = playing ? "Pause" : recording ? "Play" : "Go live";
  $("waiting").textContent = s.waiting.count;
  $("rows").textContent = `${s.rows.size + s.hidden} of ${s.engine.max_batch} rows`;
  const used = s.engine.cell > 1 ? [...s.cells.values()].reduce((sum, cell) => sum + cell[0], 0) : new Set([...s.tables.values()].flat()).size;
  $("blocks").textContent = s.engine.blocks ? `${used.toLocaleString("en")} of ${s.engine.blocks.toLocaleString("en")} used` : "none";
  $("pool-hint").textContent = s.engine.blocks ? `A square is ${s.engine.cell > 1 ? n(s.engine.cell, "block") : `a block: room for the keys and values of ${s.engine.block_size} tokens`}${s.engine.cell > 1 ? "" : ", filled as far as it is written"}.${s.engine.sharing ? " Texts that begin alike share blocks." : ""}` : "This engine has no pool: each row has room for its longest text.";
  $("pool-legend").hidden = !s.engine.blocks;
  $("chosen").textContent = about(s);
  const waiting = s.waiting.ids.join() + chosen;
  if (waiting !== shown) {
    shown = waiting;
    const items = s.waiting.ids.map((id) => { const item = made("li"); item.append(badge(id)); return item; });
    const more = s.waiting.count - s.waiting.ids.length, none = made("li", more ? `and ${more} more` : "nobody waits");
    none.className = "none";
    put($("chips"), ...items, ...(more || !items.length ? [none] : []));
  }
  const time = drawLanes(s), blue = theme.accent;
  const itls = e.kind === "step" ? e.itl : [], worst = Math.max(0, ...itls.map(([seconds]) => seconds));
  $("itl").textContent = itls.length ? `${ms(worst)} at most in this step` : "";
  $("ttft").textContent = e.ttft && e.ttft.length ? e.ttft.slice(0, 4).map(([id, seconds]) => `request ${id}: ${ms(seconds)}`).join(", ") : "";
  drawTimes("itls", time, (one) => (one.itl || []).map(([seconds, count]) => [seconds, count]), (c, dot, y) => { c.fillStyle = blue; c.beginPath(); c.arc(dot.x, y, Math.min(6, 2 + Math.sqrt(dot.weight) / 2), 0, 7); c.fill(); }, "Times between tokens");
  drawTimes("ttfts", time, (one) => (one.ttft || []).map(([id, seconds]) => [seconds, 1, id]), (c, dot, y) => { fill(c, dot.who, dot.x - 5, y - 5, 10, 10); c.strokeStyle = theme.ink; c.strokeRect(dot.x - 5, y - 5, 10, 10); }, "Times to first tokens");
  drawPool(s);
  if (playing) tabling ||= setTimeout(tabulate, 400); else tabulate();
}

// ---- moving through the steps

function seek(place, why) {
  if (!events.length) return;
  at = Math.max(first, Math.min(last(), place));
  if (why === "user") {
    playing = false;
    try { history.replaceState(null, "", `#step=${events[at - first].e.step}`); } catch { /* some browsers refuse it for a file */ }
  }
  render();
}

function toStep(step) {
  const found = events.findIndex(({ e }) => e.step >= step);
  playing = false;
  seek(found < 0 ? last() : first + found);
}

function fromHash() {
  const found = /^#step=(-?\d+)$/.exec(location.hash);
  if (found) toStep(Number(found[1]));
  return Boolean(found);
}

let ticking = 0;
function tick() {
  clearTimeout(ticking);
  if (!playing || !recording) return;
  if (at >= last()) { playing = false; render(); return; }
  seek(at + 1);
  ticking = setTimeout(tick, 1000 / Number($("speed").value));
}

function toggle() {
  playing = !playing;
  if (recording && playing && at >= last()) at = first;
  if (!recording && playing) at = last();
  if (!playing) seek(at, "user");
  render();
  if (recording) ticking = playing ? setTimeout(tick, 1000 / Number($("speed").value)) : 0;
}

$("play").onclick = toggle;
$("first").onclick = () => seek(first, "user");
$("last").onclick = () => seek(last(), "user");
$("back").onclick = () => seek(at - 1, "user");
$("forward").onclick = () => seek(at + 1, "user");
$("scrub").oninput = () => seek(Number($("scrub").value), "user");
$("link").onclick = (event) => { event.preventDefault(); seek(at, "user"); if (navigator.clipboard) navigator.clipboard.writeText(location.href).then(() => { $("link").textContent = "Link copied"; setTimeout(() => { $("link").textContent = "Link to this step"; }, 1500); }, () => {}); };
addEventListener("hashchange", fromHash);
addEventListener("resize", () => render());
addEventListener("keydown", (event) => {
  const tag = event.target.tagName;
  if (event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "TEXTAREA", "SELECT"].includes(tag)) return;
  if (event.key === " " && ["BUTTON", "SUMMARY", "A"].includes(tag)) return;
  const jump = event.shiftKey ? 10 : 1;
  const act = { " ": toggle, ArrowLeft: () => seek(at - jump, "user"), ArrowRight: () => seek(at + jump, "user"), Home: () => seek(first, "user"), End: () => seek(last(), "user"), t: turn }[event.key];
  if (act) { event.preventDefault(); act(); }
});
for (const id of ["lanes", "grid"]) $(id).onclick = (event) => {
  const { left, top } = $(id).getBoundingClientRect(), x = event.clientX - left, y = event.clientY - top;
  const hit = hits[id].find((box) => x >= box.x && x < box.x + box.w && y >= box.y && y < box.y + box.h);
  if (hit) choose(hit.id);
};

// ---- light and dark: as the system has it, until somebody says otherwise

const dark = matchMedia("(prefers-color-scheme: dark)");
const store = (name, value) => { try { return value === undefined ? sessionStorage.getItem(name) : sessionStorage.setItem(name, value); } catch { return null; } };
function wear() {
  const now = store("nanoinfer-theme") || (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = now;
  $("theme").textContent = now === "dark" ? "Light" : "Dark";
  render();
}
function turn() { store("nanoinfer-theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark"); wear(); }
$("theme").onclick = turn;
dark.addEventListener("change", wear);
wear();

// ---- where events come from: the recording in this file, or the server

function note(text) { $("note").textContent = text; $("note").hidden = !text; }
const headers = () => (key ? { authorization: `Bearer ${key}` } : {});

// Records of a stream of server-sent events, as they come.
async function* records(response) {
  const reader = response.body.getReader(), decoder = new TextDecoder();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += decoder.decode(value, { stream: true });
    const pieces = held.split("\n\n");
    held = pieces.pop();
    for (const piece of pieces) {
      const lines = piece.split("\n"), data = lines.find((line) => line.startsWith("data: "));
      if (data) yield { name: (lines.find((line) => line.startsWith("event: ")) || "event: step").slice(7), data: data.slice(6) };
    }
  }
}

let following = 0;
function follow() { following = 0; if (playing) { at = last(); render(); } }

async function live() {
  const response = await fetch("watch/events", { headers: headers(), cache: "no-store" });
  if (response.status === 401) { $("door").hidden = false; $("try").hidden = true; if (key) note("That key is not the server's."); key = ""; return false; }
  if (!response.ok) throw new Error((await response.json()).error.message);
  $("door").hidden = true;
  store("nanoinfer-key", key);
  note("");
  if (events.length) { events.length = 0; snapshots.clear(); newest = fresh(); first = 0; at = -1; }
  playing = true;
  for await (const { name, data } of records(response)) {
    const record = JSON.parse(data);
    if (name === "settings") { greet(record); continue; }
    take(record);
    if (!playing) $("scrub").max = last();
    else if (!reduced.matches) follow();
    else following ||= setTimeout(follow, 1000);
    if (at < first) { at = last(); render(); }
  }
  return true;
}

function greet(told) {
  model = told.model;
  $("classroom").hidden = !told.classroom;
  $("pace").max = told.slowest;
  $("try").hidden = false;
  if (!events.length) { $("headline").textContent = "The engine has nothing to do."; $("more").textContent = told.texts ? "Send it a prompt." : "Send it a prompt. Texts of other requests are hidden: the server was started without --watch-texts."; }
}

async function watch() {
  for (let wait = 500; ; wait = Math.min(8000, 2 * wait)) {
    try { if (!(await live())) return; wait = 500; } catch (error) { note(`No connection to the server: ${error.message}.`); }
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

let asking = null;
async function ask(event) {
  event.preventDefault();
  if (asking) return;
  asking = new AbortController();
  $("stop").hidden = false;
  const answer = made("span");
  put($("answer"), made("b", $("prompt").value), answer);
  const body = { model, prompt: $("prompt").value, max_tokens: Number($("count").value), temperature: 0.8, top_k: 40, stream: true };
  try {
    const response = await fetch("v1/completions", { method: "POST", headers: { "content-type": "application/json", ...headers() }, body: JSON.stringify(body), signal: asking.signal });
    if (!response.ok) throw new Error((await response.json()).error.message);
    for await (const { data } of records(response)) {
      if (data === "[DONE]") break;
      const record = JSON.parse(data);
      if (record.error) throw new Error(record.error.message);
      answer.textContent += record.choices && record.choices.length ? record.choices[0].text : "";
    }
  } catch (error) { if (error.name !== "AbortError") answer.textContent += ` (${error.message})`; }
  asking = null;
  $("stop").hidden = true;
}

$("ask").onsubmit = ask;
$("stop").onclick = () => asking && asking.abort();
$("pace").oninput = async () => {
  const seconds = Number($("pace").value);
  $("paced").textContent = seconds ? `${seconds} s` : "full speed";
  await fetch("watch/pace", { method: "POST", headers: { "content-type": "application/json", ...headers() }, body: JSON.stringify({ seconds }) });
};
$("door").onsubmit = (event) => { event.preventDefault(); key = $("key").value; $("key").value = ""; watch(); };

if (recording) {
  $("mode").textContent = "recording";
  model = recording.title || "";
  for (const event of recording.events) take(event);
  if (reduced.matches) $("speed").value = "1";
  if (!fromHash()) seek(Math.min(last(), 1));
} else {
  $("speeds").hidden = true;
  key = store("nanoinfer-key") || "";
  watch();
}
