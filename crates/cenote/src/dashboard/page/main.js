// The page: takes what the dashboard tells, and has each part shown.

import { bytes, digits, drawSwatch, make, micros, newChart, setAttribute, setBadge, setBar, setChart, setText, span, sync } from "./draw.js";
import { cards, problems, showCaches, showEvents, showHosts, showKv, showStores, showVolumes, showWork } from "./parts.js";
import { follow, hour, order, token } from "./talk.js";

const by = (id) => document.getElementById(id);
const SHOW = { hosts: showHosts, volumes: showVolumes, kv: showKv, caches: showCaches, stores: showStores };
// A part that is older than so many intervals is said to be old.
const OLD_INTERVALS = 5;

const parts = {};
let about = { interval_ms: 2000, orders: false };
let nowMs = 0;
let lastEvent = null;

function showPart(name) {
  const orders = about.orders && (name === "hosts" || name === "volumes");
  SHOW[name](by(name), parts[name], orders ? ask : null);
}

function showSummary() {
  const wrong = problems(parts);
  const known = Object.keys(parts).length > 0;
  const text = wrong.length ? wrong.join("; ") : known ? "All is well" : "Connecting to the cluster";
  setAttribute(by("summary-title"), "data-grade", wrong.length ? "bad" : known ? "good" : "idle");
  setText(by("summary-title"), text);
  document.title = `${wrong.length ? `${wrong.length} wrong` : "well"} - Cenote`;
  sync(by("cards"), cards(parts), ([label]) => label, () =>
    make("li", {}, make("div", { class: "label" }), make("div", { class: "value" })),
  (card, [label, value, share]) => {
    setText(card.children[0], label);
    setText(card.children[1], value);
    if (share === undefined) return;
    if (!card.children[2]) card.append(make("div", { class: "bar" }));
    setBar(card.children[2], share);
  });
}

// What came since is read aloud; not what was there when the page was opened.
function announce(events) {
  const newest = events[0]?.number ?? 0;
  const fresh = lastEvent === null ? [] : events.filter((event) => event.number > lastEvent);
  lastEvent = newest;
  if (fresh.length) setText(by("news"), fresh.slice(0, 3).map((event) => event.text).join(". "));
}

// Of a part whose thread waits longer than its limit there is no error: only its age tells.
function showAges() {
  for (const [name, part] of Object.entries(parts)) {
    const age = nowMs - part.asked_ms;
    if (!part.error && part.asked_ms && age > OLD_INTERVALS * about.interval_ms + 10000) {
      setText(by(name).querySelector(".stale"), `Data is ${span(age / 1000)} old.`);
    }
  }
}

function handle(name, data) {
  if (name === "now") {
    nowMs = data;
    showAges();
  } else if (name === "about") {
    about = data;
    setText(by("cluster"), data.cluster ?? "");
    setText(by("version"), `Cenote ${data.version}${data.orders ? "" : ", read-only"}`);
    Object.keys(parts).forEach(showPart);
  } else if (name === "work") {
    showWork(by("work"), data);
  } else if (name === "events") {
    showEvents(by("events"), data);
    announce(data);
  } else if (name in SHOW) {
    parts[name] = data;
    showPart(name);
    showSummary();
  }
}

// The last hour.

// Last: the part without which there is nothing to draw.
const CHARTS = [
  ["Pages per second", (rate) => digits(rate), [["reads", "reads"], ["writes", "writes"]]],
  ["Latency of reads", micros, [["median", "read_p50_us"], ["p99", "read_p99_us"]]],
  ["Latency of writes", micros, [["median", "write_p50_us"], ["p99", "write_p99_us"]]],
  ["Slab bytes rebuilt per second", bytes, [["rebuilt", "rebuilt_bytes"]]],
  ["Memory of hosts", bytes, [["lent", "lent_bytes"], ["free", "free_bytes"]]],
  ["Key-value operations per second", (rate) => digits(rate), [["operations", "operations"]], "kv"],
  ["Bytes put into stores per second", bytes, [["put", "put_bytes"]], "stores"],
];

async function showHour() {
  const select = by("hour-volume");
  const found = await hour(select.value).catch(() => null);
  if (!found) {
    // A volume that is gone for an hour.
    select.value = "";
    return;
  }
  sync(select, [{ name: "" }, ...found.volumes.map((name) => ({ name }))], ({ name }) => name, ({ name }) =>
    make("option", { value: name }, name || "all volumes"), () => {});
  const charts = by("hour").querySelector(".charts");
  const shown = CHARTS.filter(([, , , part]) => !part || parts[part]);
  sync(charts, shown, ([title]) => title, ([title]) => newChart(title), (figure, [title, text, series]) =>
    setChart(figure, title, series.map(([name, of]) => ({ name, values: found[of] })), text));
}

// Orders.

const ORDERS = {
  drain: ["Drain host", "Drain", "It stops lending, and volumes move their slabs to other hosts. It lends again when told to or restarted."],
  lend: ["Lend again: host", "Lend again", "It lends slabs to clients again."],
  scrub: ["Scrub volume", "Scrub", "Every page with data is read and verified once; wrong splits are repaired."],
  repair: ["Limit repairs of volume", "Set the limit", "Limits the rate of rebuilds and moves until the volume is opened again."],
};
let ordered = null;

function ask(kind, name) {
  const [title, button, text] = ORDERS[kind];
  ordered = { kind, name };
  setText(by("order-title"), `${title} ${name}`);
  setText(by("order-text"), text);
  setText(by("order-do"), button);
  setText(by("order-said"), "");
  by("order-rate-line").hidden = kind !== "repair";
  // Empty is no number, and not "no limit".
  by("order-rate").required = kind === "repair";
  showTokenLine();
  by("order").showModal();
}

function showTokenLine() {
  const isNeeded = token.get() === "";
  by("order-token-line").hidden = !isNeeded;
  by("order-token").required = isNeeded;
  by("order-token").value = "";
}

async function carryOut(event) {
  event.preventDefault();
  const { kind, name } = ordered;
  if (by("order-token").value) token.set(by("order-token").value);
  const what = { order: kind, [kind === "drain" || kind === "lend" ? "host" : "volume"]: name };
  if (kind === "repair") what.bytes_per_s = Math.round(by("order-rate").valueAsNumber * 1048576);
  by("order-do").disabled = true;
  try {
    setText(by("news"), await order(what));
    by("order").close();
  } catch (error) {
    showTokenLine();
    setText(by("order-said"), error.message);
  } finally {
    by("order-do").disabled = false;
  }
}

by("order-form").addEventListener("submit", carryOut);
by("order-cancel").addEventListener("click", () => by("order").close());

// The token, where nothing is told without.

function login(why) {
  by("content").hidden = true;
  by("login").hidden = false;
  setText(by("login-said"), why);
  setBadge(by("link"), "idle", "waits for the token");
  by("login-token").focus();
  return new Promise((done) => {
    by("login-form").onsubmit = (event) => {
      event.preventDefault();
      token.set(by("login-token").value);
      by("login-token").value = "";
      by("login").hidden = true;
      done();
    };
  });
}

function setState(state) {
  const isLive = state === "live";
  setBadge(by("link"), isLive ? "good" : "bad", isLive ? "live" : "the dashboard does not answer");
  if (isLive && by("content").hidden) {
    by("content").hidden = false;
    // Maps had no width before.
    if (parts.volumes) showPart("volumes");
    showHour();
  }
}

document.querySelectorAll(".swatch").forEach(drawSwatch);
by("hour-volume").addEventListener("change", showHour);
// Maps have as many cells in a row as there is room for.
let resized = 0;
addEventListener("resize", () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(() => parts.volumes && showPart("volumes"));
});
setInterval(() => by("content").hidden || showHour(), 10000);
follow({ event: handle, state: setState, token: login });
