// Elements, numbers as people read them, maps and charts. Text is only ever set as text.

const SVG = "http://www.w3.org/2000/svg";

// An element with attributes and children; strings become text.
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function makeSvg(name, attributes = {}) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

// Changes nothing where nothing changed: what is focused or read aloud stays.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

export function setBadge(element, grade, text) {
  setAttribute(element, "class", "badge");
  setAttribute(element, "data-grade", grade);
  setText(element, text);
}

// Has `parent` hold one element for each item, in their order; those of known keys are kept.
export function sync(parent, items, keyOf, create, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = known.get(key);
    known.delete(key);
    if (!child) {
      child = create(item);
      child.dataset.key = key;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    // In its place: what is drawn goes by how wide that is.
    update(child, item);
  }
  for (const child of known.values()) child.remove();
}

// A number and its unit stay on one line.
const BLANK = "\u00A0";
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(count) {
  if (count === null || count === undefined) return "unknown";
  let unit = 0;
  while (count >= 1024 && unit < UNITS.length - 1) {
    count /= 1024;
    unit += 1;
  }
  return `${digits(count)}${BLANK}${UNITS[unit]}`;
}

export function digits(value) {
  const places = value >= 100 || Number.isInteger(value) ? 0 : value >= 10 ? 1 : 2;
  return value.toFixed(places).replace(/\B(?=(\d{3})+$)/g, places ? "" : ",");
}

export function micros(us) {
  if (us === null || us === undefined) return "none";
  return us >= 1000 ? `${digits(us / 1000)}${BLANK}ms` : `${digits(us)}${BLANK}us`;
}

export function span(seconds) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"]];
  for (const [length, name] of parts) {
    if (seconds >= 2 * length) return `${Math.floor(seconds / length)}${BLANK}${name}`;
  }
  return `${Math.round(seconds)}${BLANK}s`;
}

export function plural(count, one, many = `${one}s`) {
  return `${digits(count)} ${count === 1 ? one : many}`;
}

// A bar that is filled by a share, 0 to 1. What it says stands beside it as text.
export function setBar(bar, share) {
  if (!bar.firstElementChild) {
    bar.append(make("div"));
    bar.setAttribute("aria-hidden", "true");
  }
  const width = `${(Math.min(1, Math.max(0, share || 0)) * 100).toFixed(1)}%`;
  if (bar.firstElementChild.style.width !== width) bar.firstElementChild.style.width = width;
}

// Shapes of cells: they tell states apart without colours.
const STEP = 12;
// Up to so many cells there is room for larger ones.
const MANY_CELLS = 120;
const SHAPES = {
  h: (x, y) => `M${x} ${y}h10v10h-10z`,
  r: (x, y) => `M${x} ${y}v10h10z`,
  d: (x, y) => `M${x} ${y}h10v10h-10zM${x + 2.5} ${y + 2.5}v5h5v-5z`,
  l: (x, y) => `M${x + 1} ${y + 1}l8 8M${x + 9} ${y + 1}l-8 8`,
};

// Draws the map of a volume's extents, as many in a row as there is room for.
export function setMap(svg, cells, label, width) {
  const columns = Math.max(8, Math.floor(width / (cells.length > MANY_CELLS ? STEP : 2 * STEP)));
  const drawn = `${columns} ${cells}`;
  setAttribute(svg, "aria-label", label);
  if (svg.dataset.drawn === drawn) return;
  svg.dataset.drawn = drawn;
  const rows = Math.max(1, Math.ceil(cells.length / columns));
  svg.setAttribute("viewBox", `0 0 ${columns * STEP} ${rows * STEP}`);
  const paths = { h: "", r: "", d: "", l: "" };
  [...cells].forEach((letter, index) => {
    const x = (index % columns) * STEP + 1;
    const y = Math.floor(index / columns) * STEP + 1;
    if (letter in paths) paths[letter] += SHAPES[letter](x, y);
  });
  svg.replaceChildren(
    ...Object.entries(paths).map(([letter, d]) => makeSvg("path", { class: letter, d })),
  );
}

export function newMap() {
  return makeSvg("svg", { class: "map", role: "img" });
}

export function drawSwatch(place) {
  const svg = makeSvg("svg", { class: "map", viewBox: "0 0 12 12", "aria-hidden": "true" });
  const letter = place.dataset.letter;
  svg.append(makeSvg("path", { class: letter, d: SHAPES[letter](1, 1) }));
  place.replaceChildren(svg);
}

// A chart of one or two series of the last hour: `{name, values}`, null where nothing is known.
export function newChart(title) {
  return make(
    "figure",
    {},
    make("figcaption", {}, title),
    make("div", { class: "axis top" }, make("span"), make("span")),
    makeSvg("svg", { class: "chart", role: "img", viewBox: "0 0 360 100", preserveAspectRatio: "none" }),
    make("div", { class: "axis" }, make("span", {}, "1 h ago"), make("span", {}, "now")),
    make("div", { class: "key" }),
  );
}

export function setChart(figure, title, series, shown) {
  const known = series.flatMap(({ values }) => values.filter((value) => value !== null));
  const most = Math.max(...known, 0);
  const svg = figure.querySelector("svg");
  const classes = ["first", "second"];
  const paths = series.map(({ values }, index) =>
    makeSvg("path", { class: classes[index], d: line(values, most) }),
  );
  svg.replaceChildren(...paths);
  const said = series.map(({ name, values }) => {
    const some = values.filter((value) => value !== null);
    if (!some.length) return `${name}: no data`;
    const now = values.at(-1) ?? values.at(-2);
    const latest = now === null ? "unknown" : shown(now);
    return `${name}: now ${latest}, at most ${shown(Math.max(...some))}`;
  });
  setAttribute(svg, "aria-label", `${title}, the last hour. ${said.join(". ")}.`);
  setText(figure.querySelector(".axis.top span"), known.length ? shown(most) : "no data yet");
  const key = figure.querySelector(".key");
  sync(key, said, (text) => text.split(":")[0], () => make("span"), (span, text) => {
    setAttribute(span, "class", classes[said.indexOf(text)]);
    setText(span, text);
  });
}

// Gaps stay gaps; a value between two of them is a short line.
function line(values, most) {
  let path = "";
  let isOpen = false;
  const width = 360 / values.length;
  values.forEach((value, index) => {
    if (value === null) {
      isOpen = false;
      return;
    }
    const y = (98 - (most > 0 ? value / most : 0) * 94).toFixed(1);
    const x = (index * width).toFixed(1);
    path += isOpen ? `L${x} ${y}` : `M${x} ${y}h${(width / 2).toFixed(1)}`;
    isOpen = true;
  });
  return path;
}
