/* Small drawings: the margin as a dial, curves by layer, bars before and after, a grid of effects. */
function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const exact = (value) => (value === null || value === undefined ? "" : String(value));
const number = (value) => el("strong", { class: "number", "data-value": exact(value), title: exact(value), text: value === null || value === undefined ? "–" : signed(value) });

/* Half a circle from No to Yes: 3 logits are three quarters of the way. */
function dial(margin) {
  if (margin === null || margin === undefined) return el("p", { class: "small", text: "no margin" });
  const angle = (Math.PI / 2) * (1 - Math.tanh(margin / 3)), x = 60 + 44 * Math.cos(angle), y = 60 - 44 * Math.sin(angle);
  const picture = svg("svg", { viewBox: "0 0 120 70", class: "dial", role: "img", "aria-label": `margin ${signed(margin)}: ${margin > 0 ? "towards Yes" : "towards No"}` },
    svg("path", { d: "M 10 60 A 50 50 0 0 1 60 10", class: "no" }), svg("path", { d: "M 60 10 A 50 50 0 0 1 110 60", class: "yes" }),
    svg("line", { x1: 60, y1: 60, x2: x, y2: y, class: "needle" }), svg("circle", { cx: 60, cy: 60, r: 4, class: "hub" }));
  const ends = el("p", { class: "dial-ends small" }, el("span", { text: "No" }), number(margin), el("span", { text: "Yes" }));
  return el("div", { class: "gauge" }, picture, ends);
}

/* Values by layer as a line with a dot each; zero is drawn where it lies between. */
function curve(names, values, words) {
  const width = 320, height = 110, left = 34, bottom = 20;
  const known = values.filter((value) => value !== null), low = Math.min(0, ...known), high = Math.max(0, ...known, low + 1e-6);
  const x = (at) => left + ((width - left - 10) * at) / Math.max(1, values.length - 1);
  const y = (value) => 8 + ((height - bottom - 8) * (high - value)) / (high - low);
  const dots = values.map((value, at) => (value === null ? "" : svg("circle", { cx: x(at), cy: y(value), r: 3 }, svg("title", {}, `${names[at]}: ${exact(value)}`))));
  const line = values.map((value, at) => (value === null ? "" : `${x(at)},${y(value)}`)).join(" ");
  const every = Math.ceil(names.length / 9);
  const label = (text, at, up, anchor) => svg("text", { x: at, y: up, "text-anchor": anchor }, text);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "curve", role: "img", "aria-label": `${words}: ${names.map((name, at) => `${name} ${values[at] === null ? "none" : signed(values[at])}`).join(", ")}` },
    svg("line", { x1: left, x2: width - 6, y1: y(0), y2: y(0), class: "zero" }), svg("polyline", { points: line }), ...dots.filter(Boolean),
    label(high.toFixed(2), left - 5, y(high) + 4, "end"), label(low.toFixed(2), left - 5, y(low) + 4, "end"),
    ...names.flatMap((name, at) => (at % every ? [] : [label(name, x(at), height - 5, "middle")])));
}

/* Margins before and after, for each arm, on one scale around 0. */
function beforeAndAfter(rows) {
  const most = Math.max(1, ...rows.flatMap(({ before, after }) => [Math.abs(before ?? 0), Math.abs(after ?? 0)]));
  const bar = (value, kind) => {
    const track = el("span", { class: "signed", "aria-hidden": "true" }), part = el("span", { class: kind });
    const size = (50 * Math.abs(value ?? 0)) / most;
    part.style.width = `${size}%`;
    part.style.left = value < 0 ? `${50 - size}%` : "50%";
    track.append(part);
    return track;
  };
  return el("table", { class: "effects" }, el("caption", { text: "margin of the first token, in logits: left is No, right is Yes" }),
    el("thead", {}, el("tr", {}, ...["arm", "drawn", "margin", "says"].map((text) => el("th", { scope: "col", text })))),
    el("tbody", {}, ...rows.flatMap(({ arm, before, after, was, says }) => [
      el("tr", {}, el("th", { scope: "row", text: `${arm}, before` }), el("td", { class: "track" }, bar(before, "was")), el("td", {}, number(before)), el("td", {}, el("bdi", { text: was || "–" }))),
      el("tr", { class: "after" }, el("th", { scope: "row", text: `${arm}, after` }), el("td", { class: "track" }, bar(after, "now")), el("td", {}, number(after)), el("td", {}, el("bdi", { text: says || "–" })))])));
}

/* Lets the pointer and the arrow keys go over the cells of a canvas. on.over is told of each cell that is reached (null: none is any
   more), on.pick of each that is pressed, with a pointer or by space or Enter. The cell that has the keyboard's attention is framed. */
function walkable(canvas, rows, columns, on) {
  let at = 0, plain = null;
  const context = canvas.getContext("2d");
  const under = (event) => {
    const box = canvas.getBoundingClientRect(), place = (share, count) => Math.min(count - 1, Math.max(0, Math.floor(share * count)));
    return place((event.clientY - box.top) / box.height, rows) * columns + place((event.clientX - box.left) / box.width, columns);
  };
  const unframe = () => {
    if (plain) {
      context.clearRect(0, 0, canvas.width, canvas.height);
      context.drawImage(plain, 0, 0);
    }
    plain = null;
  };
  const frame = () => {
    const wide = canvas.width / columns, high = canvas.height / rows;
    plain = el("canvas", { width: canvas.width, height: canvas.height });
    plain.getContext("2d").drawImage(canvas, 0, 0);
    context.strokeStyle = `rgb(${property("more")})`;
    context.lineWidth = 3;
    context.strokeRect((at % columns) * wide + 1.5, Math.floor(at / columns) * high + 1.5, wide - 3, high - 3);
  };
  const reached = (act) => { unframe(); const words = act(at); frame(); say(`row ${Math.floor(at / columns) + 1}, column ${(at % columns) + 1}${words ? `, ${words}` : ""}`); };
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.addEventListener("pointerdown", (event) => { at = under(event); unframe(); on.pick(at, true); canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => { unframe(); on.over(under(event)); });
  for (const end of ["pointerup", "pointercancel", "pointerleave"]) canvas.addEventListener(end, () => on.over(null));
  canvas.addEventListener("focus", () => { if (canvas.matches(":focus-visible")) frame(); });
  canvas.addEventListener("blur", () => { unframe(); on.over(null); });
  canvas.addEventListener("keydown", (event) => {
    const row = Math.floor(at / columns), column = at % columns;
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (move) at = Math.min(rows - 1, Math.max(0, row + move[0])) * columns + Math.min(columns - 1, Math.max(0, column + move[1]));
    else if (event.key !== " " && event.key !== "Enter") return;
    event.preventDefault();
    reached(move ? on.over : on.pick);
  });
}

const [LESS, MORE] = ["less", "more"].map((name) => property(name).split(", ").map(Number));

/* From blue (less Yes) over white to orange (more Yes). */
function diverging(share) {
  const size = Math.min(1, Math.abs(share)), end = share < 0 ? LESS : MORE;
  return end.map((value) => Math.round(247 + size * (value - 247)));
}

/* A node on the colour of its share, with letters that can be read on it. */
function coloured(node, share) {
  const parts = diverging(share), [red, green, blue] = parts.map((value) => (value / 255) ** 2.2);
  node.style.background = `rgb(${parts.join(", ")})`;
  node.style.color = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.18 ? "#ffffff" : "#000000";
  return node;
}

/* A signed map over the picture: where something there speaks for Yes, and where for No. */
function signedMap(map, words) {
  const flat = map.flat(), most = Math.max(...flat.map(Math.abs));
  const canvas = painted(byId("picture"), [map.length, map[0].length], flat, most, 240, words, diverging);
  return el("figure", {}, canvas, el("figcaption", { class: "small", text: "orange speaks for Yes, blue for No; white is no effect" }));
}

function signedWords(words) {
  const most = Math.max(...words.map(([, value]) => Math.abs(value)), 1e-9);
  return el("p", { class: "heatwords" }, ...words.flatMap(([word, value]) => [coloured(el("span", { class: "inked", title: `${word}: ${exact(value)}`, "data-value": exact(value) },
    el("bdi", { text: word }), el("small", { text: ` ${signed(value)}` })), value / most), " "]));
}

/* Effects of a row and a column as a table of coloured numbers. */
function effectGrid(rows, columns, values, words) {
  const most = Math.max(...values.flat().filter((value) => value !== null).map(Math.abs), 1e-9);
  return el("div", { class: "wide", role: "group", tabindex: 0, "aria-label": words }, el("table", { class: "grid" }, el("caption", { text: words }), el("thead", {}, el("tr", {}, el("td", {}),
    ...columns.map((name) => el("th", { scope: "col", text: name })))), el("tbody", {}, ...rows.map((name, at) => el("tr", {}, el("th", { scope: "row", text: name }),
    ...values[at].map((value) => coloured(el("td", {}, number(value)), (value ?? 0) / most)))))));
}
