// Each part of the cluster as it is shown. A part is `{asked_ms, error, answer}`.

import {
  bytes, digits, make, micros, newMap, plural, setAttribute, setBadge, setBar, setMap, setText, span, sync,
} from "./draw.js";

// Rows of a table at most; those that are not well come first.
const ROWS_MAX = 300;

export const GRADES = {
  up: "good", draining: "warning", silent: "bad", ended: "bad", unreachable: "bad", down: "bad",
  healthy: "good", regenerating: "warning", degraded: "warning", lost: "bad", idle: "idle",
  whole: "good", partial: "warning", ending: "idle",
};

const WORDS = {
  up: "up", draining: "draining", silent: "no answer", ended: "process ended", unreachable: "unreachable",
  down: "down", healthy: "whole", regenerating: "being rebuilt", degraded: "degraded", lost: "extents lost",
  whole: "whole", partial: "not whole", ending: "being deleted",
};

const HEALTH_OF = { h: "whole", r: "being rebuilt", d: "degraded", l: "lost" };

// A cell is text, or what fills it: a function of the cell, called again with each answer.
function setCells(row, cells, labels) {
  cells.forEach((content, index) => {
    let cell = row.children[index];
    if (!cell) {
      const [name, role] = index === 0 ? ["th", "rowheader"] : ["td", "cell"];
      cell = make(name, { role, "data-label": labels[index] });
      if (index === 0) cell.setAttribute("scope", "row");
      row.append(cell);
    }
    if (typeof content === "function") {
      if (!cell.firstElementChild) cell.replaceChildren();
      content(cell);
    } else {
      setText(cell, content);
    }
  });
}

function setTable(section, labels, items, keyOf, isWell, cellsOf) {
  const table = section.querySelector("table");
  if (!table.tHead) {
    const heads = labels.map((label) => {
      const head = make("th", { scope: "col", role: "columnheader" });
      head.append(label || make("span", { class: "hidden" }, "Orders"));
      return head;
    });
    table.append(make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...heads)));
    table.append(make("tbody", { role: "rowgroup" }));
  }
  table.hidden = items.length === 0;
  const sorted = [...items.filter((item) => !isWell(item)), ...items.filter(isWell)];
  const shown = sorted.slice(0, ROWS_MAX);
  sync(table.tBodies[0], shown, keyOf, () => make("tr", { role: "row" }), (row, item) =>
    setCells(row, cellsOf(item), labels));
  const more = items.length - shown.length;
  setText(section.querySelector(".more"), more > 0 ? `and ${plural(more, "row")} more` : "");
}

const badge = (state, why, text = WORDS[state] ?? state) => (cell) => {
  if (!cell.firstElementChild) cell.append(make("span", { class: "badge" }), make("span", { class: "why" }));
  setBadge(cell.children[0], GRADES[state] ?? "idle", text);
  setText(cell.children[1], why ?? "");
};

const filled = (text, share) => (cell) => {
  if (!cell.firstElementChild) cell.append(make("div"), make("div", { class: "bar" }));
  setText(cell.children[0], text);
  setBar(cell.children[1], share);
};

// Buttons, made again only when others are wanted.
const buttons = (wanted) => (cell) => {
  const names = wanted.map(([name]) => name).join();
  if (cell.firstElementChild && cell.dataset.buttons === names) return;
  cell.dataset.buttons = names;
  cell.replaceChildren(...wanted.map(([name, label, act]) => {
    const button = make("button", { type: "button", "aria-label": label }, name);
    button.addEventListener("click", act);
    return button;
  }));
};

function setStale(section, part) {
  const why = part.error ? `This is the last answer. Now: ${part.error}` : "";
  setText(section.querySelector(".stale"), why);
  section.hidden = false;
}

const LEVELS = { none: "", stalled: "programs stall", short: "below the headroom", floor: "below the floor" };
const LEVEL_GRADES = { none: "good", stalled: "warning", short: "warning", floor: "bad" };

function pressure(figures) {
  const seen = figures?.pressure;
  if (!seen) return "not\u00A0watched";
  return (cell) => {
    if (!cell.firstElementChild) cell.append(make("span", { class: "badge" }), make("span", { class: "why" }));
    const used = seen.total_bytes ? Math.round((100 * seen.used_bytes) / seen.total_bytes) : 0;
    setBadge(cell.children[0], LEVEL_GRADES[seen.level], LEVELS[seen.level] || "none");
    setText(cell.children[1], `${used} % used, ${bytes(seen.left_bytes)} left`);
  };
}

function evictions(figures) {
  if (!figures?.pressure) return "";
  const asked = figures.asked_back ? `, ${figures.asked_back} requested now` : "";
  const taken = figures.slabs_taken ? `, ${figures.slabs_taken} taken` : "";
  return `${figures.evictions_done} of ${figures.evictions_asked}${asked}${taken}`;
}

export function showHosts(section, part, ask) {
  setStale(section, part);
  const labels = ["Host", "State", "Domain", "Lent", "Free", "Pressure", "Evicted slabs", "Clients", "Up for"];
  if (ask) labels.push("");
  const isWell = (host) => host.state === "up" && !["short", "floor"].includes(host.figures?.pressure?.level);
  setTable(section, labels, part.answer ?? [], (host) => host.name, isWell, (host) => {
    const figures = host.figures;
    const cells = [host.name, badge(host.state, host.why), host.domain];
    if (!figures) {
      cells.push(...labels.slice(cells.length).map(() => (cell) => cell.replaceChildren()));
      return cells;
    }
    const lent = `${bytes(figures.lent_bytes)} of ${bytes(figures.memory_bytes)}`;
    cells.push(
      filled(lent, figures.lent_bytes / figures.memory_bytes),
      bytes(figures.free_bytes), pressure(figures), evictions(figures),
      digits(figures.clients), span(figures.uptime_s),
    );
    if (ask) {
      const drains = host.state === "draining";
      cells.push(buttons([drains
        ? ["Lend again", `Have host ${host.name} lend again`, () => ask("lend", host.name)]
        : ["Drain", `Drain host ${host.name}`, () => ask("drain", host.name)]]));
    }
    return cells;
  });
}

function newVolume() {
  return make("article", { class: "volume" },
    make("header", {}, make("h3"), make("span", { class: "badge" })),
    make("p", { class: "size" }), make("p", { class: "why muted" }), newMap(),
    make("p", { class: "rates" }),
    make("details", {}, make("summary"), make("ul")),
    make("p", { class: "buttons" }));
}

function describeMap(map) {
  const counts = ["h", "r", "d", "l"]
    .map((letter, index) => [HEALTH_OF[letter], map.by_health[index]])
    .filter(([, count]) => count > 0)
    .map(([word, count]) => `${digits(count)} ${word}`);
  const cell = map.per_cell > 1 ? `, ${map.per_cell} in a cell that shows the worst` : "";
  return `${plural(map.count, "mapped extent")}: ${counts.join(", ") || "none"}${cell}`;
}

function troubles(figures) {
  const said = [];
  if (figures.journal_error) said.push(`its journal cannot be written: ${figures.journal_error}`);
  if (figures.torn_pages) said.push(`${plural(figures.torn_pages, "page")} lost`);
  if (figures.wrong_splits) said.push(`${plural(figures.wrong_splits, "wrong split")} found`);
  return said.join("; ");
}

function setVolume(article, volume, ask) {
  const [header, size, why, map, rates, details, orders] = article.children;
  const figures = volume.figures;
  setText(header.children[0], volume.name);
  setBadge(header.children[1], GRADES[volume.state], volume.state === "idle" ? "not in use" : WORDS[volume.state]);
  const mode = figures?.mode ? ` ${figures.mode}` : "";
  const held = figures ? `, ${bytes(figures.stored_bytes)} stored, ${bytes(figures.lent_bytes)} lent by hosts` : "";
  setText(size, `${volume.size} ${volume.scheme}${mode}${held}`);
  setText(why, volume.why ?? (figures ? troubles(figures) : ""));
  map.toggleAttribute("hidden", !figures || figures.map.count === 0);
  details.hidden = !figures || figures.map.told.length === 0;
  rates.hidden = !figures;
  orders.hidden = !figures || !ask;
  if (!figures) return;
  setMap(map, figures.map.cells, `${volume.name}: ${describeMap(figures.map)}`, article.clientWidth - 24);
  const now = figures.rates;
  const isTimed = now && (now.read_p99_us !== null || now.write_p99_us !== null);
  const timed = isTimed ? `; p99 ${micros(now.read_p99_us)} read, ${micros(now.write_p99_us)} write` : "";
  const does = now
    ? `${digits(now.reads)} page reads/s, ${digits(now.writes)} writes/s${timed}`
    : "rates follow with the next answer";
  const limit = figures.repair_bytes_per_s;
  const repairs = limit === null ? "" : `; repairs at ${bytes(limit)}/s now`;
  setText(rates, `${describeMap(figures.map)}. ${figures.hosts_connected} of ${figures.hosts} hosts ` +
    `connected; ${does}${repairs}`);
  const { told, by_health: counts } = figures.map;
  setText(details.firstElementChild, `Extents that are not whole: ${digits(counts[1] + counts[2] + counts[3])}`);
  sync(details.lastElementChild, told, (extent) => String(extent.index), () => make("li"), (item, extent) => {
    const share = extent.regenerated === null ? "" : `, ${Math.round(100 * extent.regenerated)} % rebuilt`;
    setText(item, `extent ${extent.index}: ${WORDS[extent.health]}, ${extent.missing} of ` +
      `${extent.splits} slabs missing${share}`);
  });
  if (ask) {
    buttons([
      ["Scrub", `Scrub volume ${volume.name}`, () => ask("scrub", volume.name)],
      ["Limit repairs", `Limit repairs of volume ${volume.name}`, () => ask("repair", volume.name)],
    ])(orders);
  }
}

export function showVolumes(section, part, ask) {
  setStale(section, part);
  const volumes = part.answer ?? [];
  const isWell = (volume) => volume.state === "healthy" || volume.state === "idle";
  section.querySelector(".empty").hidden = volumes.length > 0;
  section.querySelector(".legend").hidden = volumes.length === 0;
  const sorted = [...volumes.filter((one) => !isWell(one)), ...volumes.filter(isWell)].slice(0, ROWS_MAX);
  sync(section.querySelector(".volumes"), sorted, (volume) => volume.name, newVolume,
    (article, volume) => setVolume(article, volume, ask));
}

export function showKv(section, part) {
  setStale(section, part);
  const kv = part.answer;
  if (!kv) return;
  sync(section.querySelector(".groups"), kv.groups, (group) => String(group.group), () =>
    make("li", {}, make("span", { class: "badge" }), make("span", { class: "muted" })),
  (item, group) => {
    setBadge(item.children[0], group.whole ? "good" : "bad", `group ${group.group}: ${group.whole ? "whole" : "not whole"}`);
    const wrong = group.places
      .filter((place) => !place.answers || place.state !== (place.is_parity ? "full" : "home"))
      .map((place) => `${place.is_parity ? "parity" : "partition"} at ${place.name ?? "nobody"}: ` +
        `${place.state}${place.answers ? "" : ", no answer"}`);
    const places = group.places.map((place) => place.name ?? "nobody").join(" ");
    setText(item.children[1], group.whole ? ` ${places}` : ` ${wrong.join("; ") || "unknown to all nodes"}`);
  });
  const labels = ["Node", "State", "Partitions", "Stored", "Values", "Parity", "Tables", "Missing"];
  setTable(section, labels, kv.nodes, (node) => node.name, (node) => node.state === "up" && !node.missing_bytes,
    (node) => [
      node.name, badge(node.state, node.why), digits(node.owned),
      ...["stored", "values", "parity", "tables"].map((of) => (node.memory ? bytes(node.memory[of]) : "")),
      node.memory ? bytes(node.missing_bytes) : "",
    ]);
}

export function showCaches(section, part) {
  setStale(section, part);
  const caches = part.answer ?? [];
  section.querySelector(".empty").hidden = caches.length > 0;
  const labels = ["Cache", "State", "Size", "Copies", "Clients", "Regions", "Hosts"];
  setTable(section, labels, caches, (cache) => cache.name, (cache) => cache.state === "whole", (cache) => {
    const figures = cache.figures;
    const why = [cache.why, ...(figures?.troubles ?? [])].filter(Boolean).join("; ");
    const cells = [cache.name, badge(cache.state, why, cache.state === "idle" ? "no manager" : undefined)];
    if (!figures) return [...cells, "", "", "", "", ""];
    const parts = [`${figures.open} of ${figures.regions} open`];
    if (figures.absent) parts.push(`${figures.absent} without memory`);
    if (figures.moving) parts.push(`${figures.moving} moving`);
    if (figures.losses) parts.push(`${figures.losses} lost data at some time`);
    if (figures.is_checkpointing) parts.push("checkpointing");
    return [
      ...cells, bytes(figures.size_bytes), digits(figures.copies), digits(figures.clients), parts.join(", "),
      `${figures.hosts_up} of ${figures.hosts} up`,
    ];
  });
}

export function showStores(section, part) {
  setStale(section, part);
  const labels = ["Store", "State", "Scheme", "Log in use", "Not durable yet", "Put", "Written"];
  setTable(section, labels, part.answer ?? [], (store) => store.address, (store) => store.answers, (store) => {
    const figures = store.figures;
    const cells = [store.address, badge(store.answers ? "up" : "silent", store.why)];
    if (!figures) return [...cells, "", (cell) => cell.replaceChildren(), "", "", ""];
    const cleaning = figures.cleaning ? ", being cleaned" : "";
    return [
      ...cells, figures.scheme,
      filled(`${bytes(figures.used_bytes)} of ${bytes(figures.log_bytes)}${cleaning}`,
        figures.used_bytes / figures.log_bytes),
      plural(figures.backlog, "version"), bytes(figures.put_bytes), bytes(figures.written_bytes),
    ];
  });
}

const DOINGS = {
  rebuild: (of) => `Volume ${of}: rebuilding slabs`,
  change: (of) => `Volume ${of}: changing scheme`,
  scrub: (of) => `Volume ${of}: scrub`,
  drain: (of) => `Host ${of}: draining`,
  recover: (of) => `Node ${of}: recovering`,
  move: (of) => `Cache ${of}: moving regions`,
};

export function showWork(section, works) {
  section.querySelector(".empty").hidden = works.length > 0;
  sync(section.querySelector(".works"), works, (work) => `${work.kind} ${work.of}`, () =>
    make("li", {}, make("strong"), make("span"), make("div", { class: "bar" })),
  (item, work) => {
    const left = work.unit === "bytes" ? bytes(work.left) : plural(Math.ceil(work.left), work.unit.slice(0, -1));
    const done = work.done === null ? "" : `, ${Math.floor(100 * work.done)} % done`;
    const time = work.left_s === null ? "time left unknown" : `about ${span(work.left_s)} left`;
    setText(item.children[0], DOINGS[work.kind](work.of));
    setText(item.children[1], `${work.note ? ` ${work.note}` : ""}: ${left} left${done}, ${time}`);
    setBar(item.children[2], work.done);
  });
}

export function showEvents(section, events) {
  section.querySelector(".empty").hidden = events.length > 0;
  sync(section.querySelector(".events"), events, (event) => String(event.number), (event) => {
    const at = new Date(event.at_ms);
    const grade = event.grade === "plain" ? "idle" : event.grade;
    return make("li", {},
      make("time", { datetime: at.toISOString() }, at.toLocaleTimeString("en-GB")),
      make("span", { class: "badge", "data-grade": grade }, event.text));
  }, () => {});
}

// What is wrong, in a sentence for each kind; nothing when all is well.
export function problems(parts) {
  const said = [];
  const count = (part, isWrong, one, many) => {
    const wrong = (parts[part]?.answer ?? []).filter(isWrong).length;
    if (wrong) said.push(plural(wrong, one, many));
  };
  count("hosts", (host) => !["up", "draining"].includes(host.state), "host is down", "hosts are down");
  count("hosts", (host) => ["short", "floor"].includes(host.figures?.pressure?.level),
    "host is under memory pressure", "hosts are under memory pressure");
  count("volumes", (volume) => GRADES[volume.state] === "bad", "volume is lost or silent", "volumes are lost or silent");
  count("volumes", (volume) => GRADES[volume.state] === "warning", "volume is not whole", "volumes are not whole");
  count("volumes", (volume) => volume.figures && troubles(volume.figures), "volume has errors", "volumes have errors");
  count("caches", (cache) => ["partial", "silent", "idle"].includes(cache.state), "cache is not whole", "caches are not whole");
  count("stores", (store) => !store.answers, "store does not answer", "stores do not answer");
  const kv = parts.kv?.answer;
  const broken = kv ? kv.groups.filter((group) => !group.whole).length : 0;
  if (broken) said.push(plural(broken, "key-value group is not whole", "key-value groups are not whole"));
  for (const [name, part] of Object.entries(parts)) {
    if (part.error) said.push(`${name} cannot be reached`);
  }
  return said;
}

// The figures at the top: label, value, and a share where there is one.
export function cards(parts) {
  const shown = [];
  const hosts = parts.hosts?.answer;
  if (hosts) {
    const up = hosts.filter((host) => host.figures);
    const sum = (of) => up.reduce((all, host) => all + host.figures[of], 0);
    const [lent, memory] = [sum("lent_bytes"), sum("memory_bytes")];
    shown.push(["Hosts", `${up.length} of ${hosts.length} up`]);
    shown.push(["Memory lent", `${bytes(lent)} of ${bytes(memory)}`, memory ? lent / memory : 0]);
    shown.push(["Memory free", bytes(sum("free_bytes"))]);
  }
  const volumes = parts.volumes?.answer;
  if (volumes) {
    const used = volumes.filter((volume) => volume.state !== "idle");
    const whole = used.filter((volume) => volume.state === "healthy").length;
    const rates = used.map((volume) => volume.figures?.rates).filter(Boolean);
    const sum = (of) => rates.reduce((all, rate) => all + rate[of], 0);
    shown.push(["Volumes in use", used.length ? `${whole} of ${used.length} whole` : "none"]);
    shown.push(["Pages per second", `${digits(sum("reads"))} read, ${digits(sum("writes"))} written`]);
  }
  const kv = parts.kv?.answer;
  if (kv) {
    const whole = kv.groups.filter((group) => group.whole).length;
    shown.push(["Key-value groups", `${whole} of ${kv.groups.length} whole`]);
  }
  const caches = parts.caches?.answer;
  if (caches?.length) {
    const whole = caches.filter((cache) => cache.state === "whole").length;
    shown.push(["Caches", `${whole} of ${caches.length} whole`]);
  }
  const stores = parts.stores?.answer;
  if (stores) {
    const up = stores.filter((store) => store.answers).length;
    shown.push(["Stores", `${up} of ${stores.length} up`]);
  }
  return shown;
}
