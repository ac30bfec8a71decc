// The view of a run, live or recorded. It reads events of events.schema.json, keeps the state that they add up to, and
// draws the state after one of them. Texts are whatever people send: they enter the page as text alone.
"use strict";

const $ = (id) => document.getElementById(id);
const COLORS = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"]; // Okabe and Ito
const LIGHT = [true, true, false, true, false, false, true]; // which of them carry dark letters
const KEEP = 4000, DROP = 1000, EVERY = 50; // events of a live run that are kept, how many go at once, snapshots
const ENDS = { length: "■", stop: "●", cancelled: "✕" };
const NOTHING = {
  rows: [], begun: [], pieces: [], decode: [], fed: [], tokens: [], ttft: [], itl: [], ended: [], preempted: [], cells: [],
};
const ALL = { rows: 0, decode: 0, pieces: 0, tokens: 0 }; // no row is beyond those that are shown
const recording = $("recording") && JSON.parse($("recording").textContent);
const reduced = matchMedia("(prefers-reduced-motion: reduce)");
const events = []; // each with the marks of its column; every 50th has the state before it, too
let at = -1, playing = false, chosen = null, lanes = 4, model = recording?.title;
let newest = { rows: new Map() }; // the state after the last event
const last = () => events.length - 1;

// ---- state: what the events make of it

function apply(s, e) {
  s.waiting = e.waiting ?? s.waiting;
  if (e.kind === "keyframe") {
    const { engine, texts, blocks: { tables = [], cached = [] } = {} } = e;
    Object.assign(s, { engine, texts, rows: new Map(), tables: new Map(tables), cached: new Set(cached), cells: new Map() });
  }
  for (const id of e.preempted) s.rows.delete(id);
  for (const row of [...e.rows, ...e.begun]) s.rows.set(row.id, { fed: row.cached, ...row });
  for (const [id, start, tokens] of e.pieces) s.rows.get(id).fed = start + tokens;
  for (const id of e.decode) s.rows.get(id).fed += 1;
  for (const [id, fed] of e.fed) s.rows.get(id).fed = fed;
  e.tokens.forEach((id, i) => {
    const row = s.rows.get(id);
    row.new += 1;
    if (e.texts) row.text += e.texts[i];
  });
  for (const [cell, ...counts] of e.cells) s.cells.set(cell, counts);
  for (const [id] of e.ended) s.rows.delete(id);
  const { given = [], taken = [], free = [], cached = [] } = e.blocks ?? {};
  for (const id of given) s.tables.delete(id);
  for (const [id, blocks] of taken) s.tables.set(id, [...(s.tables.get(id) ?? []), ...blocks]);
  for (const block of [...taken.flatMap(([, blocks]) => blocks), ...free]) s.cached.delete(block);
  for (const block of cached) s.cached.add(block);
}

// One more event. What its column shows is noted once, while the lanes of its rows are known.
function take(told) {
  const e = { ...NOTHING, ...told, more: { ...ALL, ...told.more } };
  const before = events.length % EVERY ? null : structuredClone(newest);
  const rows = new Map([...newest.rows, ...[...e.rows, ...e.begun].map((row) => [row.id, row])]);
  const marks = [
    ...e.pieces.map(([id, , tokens]) => ({ id, tokens, hit: e.begun.find((row) => row.id === id)?.cached })),
    ...e.decode.map((id) => ({ id })),
    ...e.ended.map(([id, why]) => ({ id, sign: ENDS[why] })),
    ...e.preempted.map((id) => ({ id, sign: "↩" })),
  ].filter(({ id }) => rows.has(id));
  for (const mark of marks) mark.lane = rows.get(mark.id).lane;
  lanes = Math.max(lanes, ...[...rows.values()].map(({ lane }) => lane + 1));
  apply(newest, e);
  events.push({ e, marks, before, widest: Math.max(0, ...e.pieces.map(([, , tokens]) => tokens)) });
  if (!recording && events.length > KEEP) {
    events.splice(0, DROP); // a multiple of EVERY, so that the first one left has a state
    seek(at - DROP);
  }
  $("scrub").max = last();
}

function stateAt(place) {
  const from = place - (place % EVERY), s = structuredClone(events[from].before);
  for (const { e } of events.slice(from, place + 1)) apply(s, e);
  return s;
}

// ---- the step in words

const n = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;
const ms = (s) => (s >= 1 ? `${s.toFixed(2)} s` : `${(1e3 * s).toFixed(s >= 0.01 ? 0 : 2)} ms`);
const tail = (text, most) => (text.length > most ? "…" + text.slice(-most) : text);
const decodes = (row) => row.new || row.fed >= row.prompt;

function words(e, s) {
  const wait = n(s.waiting.count, "waits", "wait");
  if (e.kind === "keyframe") {
    const when = e.step < 0 ? "Before the first step" : `After step ${e.step}`;
    return `${when}: ${n(s.rows.size + e.more.rows, "row runs", "rows run")}; ${wait}`;
  }
  const decode = e.decode.length + e.more.decode, pieces = e.pieces.length + e.more.pieces, parts = [];
  const tokens = e.pieces.reduce((sum, piece) => sum + piece[2], e.more.tokens);
  if (decode) parts.push(n(decode, "row decodes", "rows decode"));
  if (pieces) parts.push(`${n(pieces, "prompt piece")} of ${n(tokens, "token")}${pieces > 1 ? " together" : ""}`);
  return `Step ${e.step}: ${parts.join(", ") || "nothing is launched, tokens are awaited"}; ${wait}`;
}

function details(e) {
  if (e.kind === "keyframe") return e.skipped ? `${n(e.skipped, "step")} before it are not shown.` : "The whole state, as it was here.";
  const hit = (cached) => (cached ? ` (${cached} of its tokens were in the cache)` : "");
  const parts = [
    `took ${ms(e.took)}`,
    `${n(e.tokens.length, "token")} came`,
    ...e.begun.map((row) => `request ${row.id} begins${row.new ? " again" : ""}${hit(row.cached)}`),
    ...e.preempted.map((id) => `request ${id} is preempted and waits again`),
    ...e.ended.map(([id, why]) => `request ${id} ${why === "cancelled" ? "is cancelled" : `ends (${why})`}`),
    ...(e.in_flight ? [`the host is ${n(e.in_flight, "step")} behind the device`] : []),
  ];
  return [...parts.slice(0, 9), ...(parts.length > 9 ? [`and ${parts.length - 9} more`] : [])].join(" · ");
}

function facts({ blocks, block_size, sharing, lag, max_batch, max_batched_tokens }) {
  const pool = `${blocks.toLocaleString("en")} blocks of ${block_size} tokens · ${sharing ? "prefixes" : "nothing"} shared`;
  const room = blocks ? pool : "no blocks: each row has room of its own", late = lag && `host up to ${n(lag, "step")} behind`;
  return [model, `up to ${max_batch} rows`, `${max_batched_tokens} tokens a step`, room, late].filter(Boolean).join(" · ");
}

function notes({ skipped, more: { rows } }, { cell }) {
  return [
    recording?.note,
    skipped && `Not shown: ${n(skipped, "step")} before this one, since the engine is faster than what watches it.`,
    rows && `Aggregated: ${n(rows, "row")} beyond the 64 that are shown one by one, only counted.`,
    cell > 1 && `Aggregated: each cell of the pool stands for ${cell} blocks; it is filled as far as they are used.`,
  ].filter(Boolean).join(" ");
}

function poolHint({ blocks, block_size, cell, sharing }) {
  if (!blocks) return "This engine has no pool: each row has room for its longest text.";
  const block = `a block: room for the keys and values of ${block_size} tokens, filled as far as it is written`;
  return `A square is ${cell > 1 ? n(cell, "block") : block}.${sharing ? " Texts that begin alike share blocks." : ""}`;
}

function about(s) {
  if (chosen === null) return "";
  const row = s.rows.get(chosen), blocks = s.tables.get(chosen), place = s.waiting.ids.indexOf(chosen) + 1;
  if (!row) return `Request ${chosen} ${place ? `waits, number ${place} in the queue.` : "has no row here."}`;
  return [
    `Request ${chosen}: prompt of ${n(row.prompt, "token")}, ${row.fed} fed, ${row.new} new.`,
    blocks && `Blocks ${tail(blocks.join(", "), 300)}.`,
    row.text && tail(row.text, 1500),
  ].filter(Boolean).join("\n");
}

// ---- pens

const style = getComputedStyle(document.documentElement);
const color = (name) => style.getPropertyValue(`--${name}`);
const hits = {}; // of each canvas: where a click chooses a request

// A canvas of this height, empty.
function pen(id, height) {
  const canvas = $(id), width = canvas.clientWidth, c = canvas.getContext("2d");
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * devicePixelRatio);
  canvas.height = Math.round(height * devicePixelRatio);
  c.scale(devicePixelRatio, devicePixelRatio);
  Object.assign(c, { textBaseline: "middle", font: letters("12px") });
  hits[id] = [];
  return { c, width };
}

const box = (c, fillStyle, ...place) => Object.assign(c, { fillStyle }).fillRect(...place);
const frame = (c, strokeStyle, x, y, w, h, lineWidth = 1) => Object.assign(c, { strokeStyle, lineWidth }).strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
const write = (c, fillStyle, text, x, y, textAlign = "left") => Object.assign(c, { fillStyle, textAlign }).fillText(text, x, y);
const outline = (c, id, paint, ...place) => frame(c, id === chosen ? color("ink") : paint, ...place, id === chosen ? 2 : 1);
const letters = (size) => `${size} system-ui, sans-serif`;

// Lines across, lines along, and dots, 5 pixels apart; drawn four times as large, for screens with small pixels.
const PATTERNS = ["M1-1L-1 1M6-1L-1 6M11-1L-1 11", "M0 2.5h5", "M1.8 2.5h1.4"];
const tiles = new Map();

function pattern(which, strokeStyle) {
  const key = `${which} ${strokeStyle}`;
  if (!tiles.has(key)) {
    const canvas = made("canvas", { width: 20, height: 20 }), c = canvas.getContext("2d");
    c.scale(4, 4);
    Object.assign(c, { strokeStyle, lineWidth: 1.3 }).stroke(new Path2D(PATTERNS[which]));
    tiles.set(key, c.createPattern(canvas, "repeat"));
    tiles.get(key).setTransform(new DOMMatrix().scale(1 / 4));
  }
  return tiles.get(key);
}

// A request's colour, and over it one of three patterns or none, so that neighbours differ for every eye.
const patternOf = (id) => (Math.floor(id / 7) % 4) - 1;
function fill(c, id, ...place) {
  box(c, COLORS[id % 7], ...place);
  if (patternOf(id) >= 0) box(c, pattern(patternOf(id), LIGHT[id % 7] ? "rgba(0,0,0,.45)" : "rgba(255,255,255,.6)"), ...place);
}

function hatch(c, ...place) {
  box(c, pattern(0, color("hatch")), ...place);
  frame(c, color("hatch"), ...place);
}

function label(c, id, text, x, y, w) {
  const across = c.measureText(text).width;
  if (across > w - 3) return;
  if (patternOf(id) >= 0) box(c, COLORS[id % 7], x + (w - across) / 2 - 2, y - 6, across + 4, 12);
  write(c, LIGHT[id % 7] ? "#000" : "#fff", text, x + w / 2, y + 0.5, "center");
}

// ---- the batch: a lane a row, a column a step

// The columns that fit, newest at the right: a step with a piece of a prompt is wider, as it took longer.
function columns(width, gutter) {
  const cell = width > 900 ? 22 : width > 500 ? 18 : 14, found = [];
  let x = width - 4;
  for (let place = at; place >= 0; place--) {
    const { widest } = events[place], w = widest ? Math.min(cell * 6, cell * (1.6 + Math.log2(1 + widest / 4))) : cell;
    if (x - w < gutter) break;
    x -= w;
    found.push({ ...events[place], now: place === at, x, w });
  }
  const shift = found.length > at ? x - gutter : 0; // all fit: they begin at the left
  for (const column of found) column.x -= shift;
  return { cell, gutter, found };
}

function drawLanes(s) {
  const tall = lanes <= 8 ? 30 : lanes <= 16 ? 24 : lanes <= 32 ? 15 : 9, bottom = lanes * tall;
  const { c, width } = pen("lanes", bottom + 20), time = columns(width, innerWidth < 720 ? 78 : 118), { gutter, found } = time;
  for (let lane = 0; lane < lanes; lane++) frame(c, color("faint"), gutter - 0.5, lane * tall, width - gutter - 3, tall + 1);
  c.font = letters(tall < 12 ? "9px" : "12px");
  for (const row of s.rows.values()) {
    const y = row.lane * tall, state = decodes(row) ? `+${row.new}` : `${row.fed}/${row.prompt}`;
    fill(c, row.id, 2, y + 3, 12, tall - 5);
    outline(c, row.id, color("line"), 1.5, y + 2.5, 13, tall - 4);
    write(c, color("ink"), row.id, 19, y + tall / 2);
    if (c.measureText(`${row.id}${state}`).width + 33 < gutter) write(c, color("soft"), state, gutter - 8, y + tall / 2, "right");
    hits.lanes.push({ x: 0, y, w: gutter, h: tall, id: row.id });
  }
  for (const column of found) {
    if (column.now) box(c, color("mark"), column.x, 0, column.w, bottom);
    if (column.e.kind === "keyframe") box(c, color("soft"), column.x + column.w / 2, 0, 1, bottom);
    for (const mark of column.marks) drawMark(c, column, mark, time.cell, tall);
  }
  c.font = letters("12px");
  write(c, color("soft"), "step", 2, bottom + 12);
  let free = width;
  for (const { e, now, x, w } of found) {
    const text = Math.max(e.step, 0), middle = x + w / 2, half = c.measureText(text).width / 2;
    if ((!now && e.step % 5) || middle + half > free) continue;
    write(c, color(now ? "ink" : "soft"), text, middle, bottom + 12, "center");
    free = middle - half - 8;
  }
  $("lanes").ariaLabel = `${n(s.rows.size, "row")} of the batch over ${n(found.length, "step")}; the table has the step in words.`;
  return time;
}

// What a step did for a row: a piece of its prompt, a token, or its end.
function drawMark(c, { x, w, widest }, { id, lane, tokens, hit, sign }, cell, tall) {
  const pad = tall > 12 ? 3 : 1, y = lane * tall + pad, h = tall - 2 * pad + 1;
  c.font = letters(sign ? `bold ${tall > 12 ? 12 : 9}px` : "12px");
  if (sign) {
    const across = c.measureText(sign).width;
    box(c, color("card"), x + w - across - 3, y, across + 3, h);
    return write(c, color("ink"), sign, x + w - 1, y + h / 2, "right");
  }
  const whole = (tokens ? Math.max(cell, w * Math.sqrt(tokens / widest)) : cell) - 2, known = hit ? Math.min(10, whole / 3) : 0;
  fill(c, id, x + 1 + known, y, whole - known, h);
  if (known) hatch(c, x + 1, y, known, h);
  outline(c, id, "rgba(0,0,0,.45)", x + 1, y, whole, h);
  if (tokens && tall > 12) label(c, id, tokens, x + 1 + known, y + h / 2, whole - known);
  hits.lanes.push({ x, y: lane * tall, w: whole, h: tall, id });
}

// Seconds of the steps above: pick gives them for an event, and dot draws one.
function drawTimes(id, what, { gutter, found }, pick, dot) {
  const high = 72, { c, width } = pen(id, high), up = (part) => high - 8 - part * (high - 18);
  const dots = found.flatMap(({ e, x, w }) => pick(e).map(([seconds, more]) => ({ x: x + Math.min(w, 22) / 2, seconds, more })));
  const most = Math.max(1e-4, ...dots.map(({ seconds }) => seconds)), power = 10 ** Math.floor(Math.log10(most));
  const top = [1, 2, 5, 10].map((times) => times * power).find((end) => end >= most * 0.999);
  $(id).ariaLabel = `${what}: ${dots.length ? `${n(dots.length, "value")} of the last ${n(found.length, "step")}, at most ${ms(most)}` : "none in these steps"}.`;
  if (!dots.length) return write(c, color("soft"), "none in these steps", gutter, high / 2);
  for (const part of [0, 0.5, 1]) {
    box(c, color("line"), gutter, Math.floor(up(part)), width - 4 - gutter, 1);
    write(c, color("soft"), part ? ms(part * top) : "0", gutter - 8, up(part), "right");
  }
  for (const { x, seconds, more } of dots) dot(c, x, up(seconds / top), more);
}

function disc(c, fillStyle, x, y, radius) {
  c.beginPath();
  c.arc(x, y, radius, 0, 7);
  Object.assign(c, { fillStyle }).fill();
}

function square(c, x, y, id) {
  fill(c, id, x - 5, y - 5, 10, 10);
  frame(c, color("ink"), x - 5.5, y - 5.5, 11, 11);
}

// ---- the pool: a square a block, or several blocks a square

function drawPool(s) {
  const { blocks, cell, block_size } = s.engine, wide = $("grid").clientWidth, high = Math.max(220, Math.min(innerHeight * 0.5, 460));
  const cells = cell > 1 ? Math.ceil((blocks + 1) / cell) : blocks, owners = new Map();
  const tally = [0, 0, s.cached.size]; // blocks that are owned, shared, and kept for their text
  let side = 40;
  while (side > 3 && Math.ceil(cells / Math.floor(wide / side)) * side > high) side -= 1;
  const across = Math.max(1, Math.floor(wide / side)), inner = side - (side > 5 ? 2 : 1);
  const { c } = pen("grid", blocks ? Math.ceil(cells / across) * side + 2 : 1);
  const place = (number) => [(number % across) * side, Math.floor(number / across) * side];
  for (let number = 0; number < cells; number++) box(c, color("faint"), ...place(number), inner, inner);
  for (const [number, counts] of s.cells) {
    const [x, y] = place(number), [used, shared, cached] = counts.map((count) => (inner * count) / cell);
    counts.forEach((count, i) => { tally[i] += count; });
    if (cached) hatch(c, x, y + inner - used - cached, inner, cached);
    box(c, COLORS[1], x, y + inner - used, inner, used);
    if (shared) box(c, color("ink"), x, y + inner - 1 - shared, inner, 1.5);
  }
  for (const [id, table] of s.tables) table.forEach((block, i) => owners.set(block, [...(owners.get(block) ?? []), [id, i]]));
  for (const block of s.cached) hatch(c, ...place(block - 1), inner, inner);
  for (const [block, who] of owners) {
    const [x, y] = place(block - 1), [[id, i]] = who, mine = who.some(([one]) => one === chosen);
    tally[0] += 1;
    tally[1] += Number(who.length > 1);
    if (who.length > 1) drawShared(c, x, y, inner, who.map(([one]) => one));
    else drawOwned(c, x, y, inner, id, (s.rows.get(id)?.fed ?? Infinity) / block_size - i);
    if (mine) frame(c, color("accent"), x + 0.5, y + 0.5, inner - 1, inner - 1, 3);
    hits.grid.push({ x, y, w: side, h: side, id: mine ? chosen : id });
  }
  const [used, shared, kept] = tally, number = blocks.toLocaleString("en");
  $("blocks").textContent = blocks ? `${used.toLocaleString("en")} of ${number} used` : "none";
  $("grid").ariaLabel = `${number} blocks: ${used} owned, of these ${shared} shared, ${kept} kept for their text, ${blocks - used - kept} free.`;
}

function drawOwned(c, x, y, inner, id, full) {
  const part = Math.max(0.12, Math.min(1, full));
  c.globalAlpha = 0.3;
  fill(c, id, x, y, inner, inner * (1 - part));
  c.globalAlpha = 1;
  fill(c, id, x, y + inner * (1 - part), inner, inner * part);
  if (inner > 4) frame(c, "rgba(0,0,0,.4)", x, y, inner, inner);
  if (inner >= 18) label(c, id, id, x, y + inner / 2, inner);
}

function drawShared(c, x, y, inner, who) {
  fill(c, who[0], x, y, inner / 2, inner);
  fill(c, who.at(-1), x + inner / 2, y, inner / 2, inner);
  frame(c, color("ink"), x, y, inner, inner, inner > 6 ? 2 : 1);
  if (inner < 16) return;
  disc(c, "#000", x + inner / 2, y + inner / 2, 7.5);
  write(c, "#fff", Math.min(99, who.length), x + inner / 2, y + inner / 2 + 0.5, "center");
}

// ---- the page around the drawings

function made(tag, more = {}, ...content) {
  const element = Object.assign(document.createElement(tag), more);
  element.append(...content);
  return element;
}

function say(text) { $("note").textContent = text; $("note").hidden = !text; }

function badge(id) {
  const button = made("button", { type: "button", title: `Follow request ${id}`, ariaPressed: id === chosen, onclick: () => choose(id) }, id);
  button.style.borderColor = COLORS[id % 7];
  return button;
}

function choose(id) {
  chosen = chosen === id ? null : id;
  render();
}

function showQueue({ count, ids }) {
  const key = `${ids} ${count} ${chosen}`;
  if ($("chips").dataset.key === key) return; // a button that is replaced while it is pressed hears of no click
  $("chips").dataset.key = key;
  const more = count ? `and ${count - ids.length} more` : "nobody waits", none = made("li", { className: "none" }, more);
  $("chips").replaceChildren(...ids.map((id) => made("li", {}, badge(id))), ...(count && count === ids.length ? [] : [none]));
}

function showTable() {
  tabling = 0;
  if (at < 0) return;
  const { e } = events[at], s = stateAt(at), acts = new Map(e.decode.map((id) => [id, "decode, 1 token"]));
  for (const [id, start, tokens] of e.pieces) acts.set(id, `prompt, ${n(tokens, "token")} from ${start}`);
  const rows = [...s.rows.values()].sort((a, b) => a.lane - b.lane).map((row) => [row.id, decodes(row) ? "decodes" : "prompt", row]);
  const ended = e.ended.map(([id, why]) => [id, why === "cancelled" ? why : `ended (${why})`]);
  const gone = [...ended, ...e.preempted.map((id) => [id, "preempted, waits"])].filter(([id]) => !s.rows.has(id));
  const paged = s.engine.blocks && s.engine.cell === 1;
  $("th-text").hidden = !s.texts;
  $("caption").textContent = `${words(e, s)}. ${details(e)}`;
  $("tbody").replaceChildren(...[...rows, ...gone].slice(0, 96).map(([id, state, row]) => {
    const counts = row ? [`${row.fed} of ${row.prompt + row.new}`, row.new] : ["–", "–"];
    const cells = [badge(id), state, acts.get(id) ?? "–", ...counts, paged ? (s.tables.get(id) ?? []).length : "–"];
    const said = made("td", { className: "said" }, tail((row?.text ?? "").replace(/\s*\n\s*/g, " ⏎ "), 160));
    return made("tr", { className: id === chosen ? "chosen" : "" }, ...cells.map((cell) => made("td", {}, cell)), ...(s.texts ? [said] : []));
  }));
}

let due = 0, tabling = 0; // the table costs more than the pictures: while steps come, a few times a second
function render() {
  cancelAnimationFrame(due);
  due = requestAnimationFrame(draw);
}

function draw() {
  if (playing && !recording) at = last();
  $("play").textContent = playing ? "Pause" : recording ? "Play" : "Go live";
  $("scrub").value = at;
  if (at < 0) return;
  const { e } = events[at], s = stateAt(at);
  const texts = {
    headline: words(e, s), more: details(e), facts: facts(s.engine), waiting: s.waiting.count,
    rows: `${s.rows.size + e.more.rows} of ${s.engine.max_batch} rows`, "pool-hint": poolHint(s.engine), chosen: about(s),
    itl: e.itl.length ? `${ms(Math.max(...e.itl.map(([seconds]) => seconds)))} at most in this step` : "",
    ttft: e.ttft.slice(0, 4).map(([id, seconds]) => `request ${id}: ${ms(seconds)}`).join(", "),
  };
  for (const [id, text] of Object.entries(texts)) $(id).textContent = text;
  say(notes(e, s.engine));
  $("words").ariaLive = playing ? "off" : "polite";
  $("scrub").ariaValueText = texts.headline;
  $("link").href = `#step=${e.step}`;
  $("pool-legend").hidden = !s.engine.blocks;
  showQueue(s.waiting);
  const time = drawLanes(s);
  drawTimes("itls", "Times between tokens", time, (one) => one.itl,
    (c, x, y, count) => disc(c, color("accent"), x, y, Math.min(6, 2 + Math.sqrt(count) / 2)));
  drawTimes("ttfts", "Times to first tokens", time, (one) => one.ttft.map(([id, seconds]) => [seconds, id]), square);
  drawPool(s);
  tabling ||= setTimeout(showTable, playing ? 400 : 0);
}

// ---- moving through the steps

function seek(place) {
  at = Math.max(0, Math.min(last(), place));
  render();
}

// Where a reader wants to be: nothing moves on by itself from there, and the address says where it is.
function go(place) {
  if (!events.length) return;
  playing = false;
  seek(place);
  try { history.replaceState(null, "", `#step=${events[at].e.step}`); } catch { /* some browsers refuse it for a file */ }
}

function fromHash() {
  const step = /^#step=(-?\d+)$/.exec(location.hash)?.[1], found = events.findIndex(({ e }) => e.step >= step);
  if (step) go(found < 0 ? last() : found);
  return step;
}

let ticking = 0; // a recording that plays
function tick(place = at + 1) {
  if (!playing) return;
  seek(place);
  playing = place < last() || !recording;
  if (recording) ticking = setTimeout(tick, 1000 / $("speed").value);
}

function toggle() {
  clearTimeout(ticking);
  if (playing || !events.length) return go(at);
  playing = true;
  tick(at < last() ? at : 0);
}

const actions = {
  first: () => go(0), last: () => go(last()), play: toggle, theme: turn,
  back: ({ shiftKey }) => go(at - (shiftKey ? 10 : 1)), forward: ({ shiftKey }) => go(at + (shiftKey ? 10 : 1)),
};
const KEYS = { " ": "play", ArrowLeft: "back", ArrowRight: "forward", Home: "first", End: "last", t: "theme" };
for (const [id, act] of Object.entries(actions)) $(id).onclick = act;
addEventListener("keydown", (event) => {
  const { tagName } = event.target, act = actions[KEYS[event.key]];
  if (!act || event.ctrlKey || event.metaKey || event.altKey || ["INPUT", "TEXTAREA", "SELECT"].includes(tagName)) return;
  if (event.key === " " && ["BUTTON", "SUMMARY", "A"].includes(tagName)) return;
  event.preventDefault();
  act(event);
});
$("scrub").oninput = () => go(Number($("scrub").value));
$("link").onclick = async () => {
  try { await navigator.clipboard.writeText($("link").href); } catch { return; }
  $("link").textContent = "Link copied";
  setTimeout(() => { $("link").textContent = "Link to this step"; }, 1500);
};
addEventListener("hashchange", fromHash);
addEventListener("resize", render);
for (const id of ["lanes", "grid"]) $(id).onclick = ({ offsetX, offsetY }) => {
  const hit = hits[id].find(({ x, y, w, h }) => offsetX >= x && offsetX < x + w && offsetY >= y && offsetY < y + h);
  if (hit) choose(hit.id);
};

// ---- light and dark: as the system has it, until somebody says otherwise

const dark = matchMedia("(prefers-color-scheme: dark)");
function store(name, value) { // some browsers refuse it for a file
  try { return value === undefined ? sessionStorage.getItem(name) : sessionStorage.setItem(name, value); } catch { return null; }
}

function wear() {
  const now = store("nanoinfer-theme") ?? (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = now;
  $("theme").textContent = now === "dark" ? "Light" : "Dark";
  render();
}

function turn() {
  store("nanoinfer-theme", $("theme").textContent.toLowerCase());
  wear();
}

dark.addEventListener("change", wear);
wear();

// ---- where events come from: the recording in this file, or the server

let key = store("nanoinfer-key") ?? "", following = 0, asking; // following: a picture is due, where motion is reduced

async function call(path, body, signal) {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const response = await fetch(path, { method: body ? "POST" : "GET", headers, body: JSON.stringify(body), signal });
  if (response.ok) return response;
  throw Object.assign(new Error((await response.json()).error.message), { status: response.status });
}

// Server-sent events, as they come.
async function* records(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const pieces = (held + value).split("\n\n");
    held = pieces.pop();
    for (const piece of pieces) {
      const [, name, data] = /^(?:event: (.*)\n)?data: (.*)$/.exec(piece) ?? [];
      if (data) yield { name, data };
    }
  }
}

function greet(told) {
  model = told.model;
  $("classroom").hidden = !told.classroom;
  $("pace").max = told.slowest;
  $("try").hidden = false;
  $("headline").textContent = "The engine has nothing to do.";
  $("more").textContent = `Send it a prompt.${told.texts ? "" : " Texts of other requests are hidden: the server was started without --watch-texts."}`;
}

function show(event) {
  take(event);
  if (!playing) return;
  if (!reduced.matches) render();
  else following ||= setTimeout(() => { following = 0; render(); }, 1000);
}

async function watch() {
  for (let wait = 500; ; wait = Math.min(8000, 2 * wait)) {
    try {
      const response = await call("watch/events");
      wait = 500;
      events.length = 0;
      at = -1;
      playing = true;
      newest = { rows: new Map() };
      $("door").hidden = true;
      store("nanoinfer-key", key);
      say("");
      for await (const { name, data } of records(response)) (name === "settings" ? greet : show)(JSON.parse(data));
    } catch (error) {
      const locked = error.status === 401;
      $("door").hidden = !locked;
      if (!locked || key) say(locked ? "That key is not the server's." : `No connection to the server: ${error.message}.`);
      $("try").hidden ||= locked;
      if (locked) return;
    }
    await new Promise((resolve) => { setTimeout(resolve, wait); });
  }
}

async function ask(event) {
  event.preventDefault();
  if (!$("stop").hidden) return;
  asking = new AbortController();
  $("stop").hidden = false;
  const answer = made("span"), prompt = $("prompt").value;
  $("answer").replaceChildren(made("b", {}, prompt), answer);
  const body = { model, prompt, max_tokens: Number($("count").value), temperature: 0.8, top_k: 40, stream: true };
  try {
    for await (const { data } of records(await call("v1/completions", body, asking.signal))) {
      if (data === "[DONE]") break;
      const { error, choices } = JSON.parse(data);
      if (error) throw new Error(error.message);
      answer.textContent += choices[0]?.text ?? "";
    }
  } catch (error) {
    if (error.name !== "AbortError") answer.textContent += ` (${error.message})`;
  }
  $("stop").hidden = true;
}

$("ask").onsubmit = ask;
$("stop").onclick = () => asking.abort();
$("pace").oninput = () => {
  const seconds = Number($("pace").value);
  $("paced").textContent = seconds ? `${seconds} s` : "full speed";
  call("watch/pace", { seconds }).catch((error) => say(error.message));
};
$("door").onsubmit = (event) => {
  event.preventDefault();
  key = $("key").value;
  $("key").value = "";
  watch();
};

if (recording) {
  $("mode").textContent = "recording";
  recording.events.forEach(take);
  if (reduced.matches) $("speed").value = "1";
  if (!fromHash()) seek(1);
} else {
  $("speeds").hidden = true;
  watch();
}
