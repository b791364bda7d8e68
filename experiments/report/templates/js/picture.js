/* One picture with what is known of its cells, shared by the report and the page of task=explore: weights, scale, colours, bars,
   words. A block is what attention_log packs; a place is {layer (null: mean of all), group}. Nothing here knows a page. */
const unpacked = new WeakMap();
function bytes(block, name) {
  if (!unpacked.has(block)) unpacked.set(block, {});
  const kept = unpacked.get(block);
  if (!kept[name]) kept[name] = Uint8Array.from(atob(block[name]), (sign) => sign.charCodeAt(0));
  return kept[name];
}

/* Weights of one token at one layer (null: mean over all; [from, to]: over those) and head group; name is "image" or "words". */
function weights(block, name, size, token, layer, group) {
  const every = block.layers.map((_, at) => at);
  const layers = layer === null ? every : Array.isArray(layer) ? every.slice(layer[0], layer[1] + 1) : [layer];
  const found = new Float64Array(size);
  for (const at of layers) {
    const scale = block[`${name}_scale`][token][at][group] / 255 / layers.length;
    const start = ((token * block.layers.length + at) * block.groups.length + group) * size;
    const packed = bytes(block, name);
    for (let cellAt = 0; cellAt < size; cellAt += 1) found[cellAt] += packed[start + cellAt] * scale;
  }
  return found;
}

function masses(block, token, layer, group) {
  const layers = layer === null ? block.layers.map((_, at) => at) : [layer];
  return block.names.map((_, segment) => layers.reduce((sum, at) => sum + block.masses[token][at][group][segment], 0) / layers.length);
}

/* The small multiples of a block: all layers, or runs of them, from the first to the last. */
const PANELS = 8;
function layerRuns(block) {
  const count = Math.min(PANELS, block.layers.length);
  return [...Array(count).keys()].map((at) => {
    const from = Math.floor((at * block.layers.length) / count), to = Math.floor(((at + 1) * block.layers.length) / count) - 1;
    return { from, to, name: from === to ? `layer ${block.layers[from]}` : `layers ${block.layers[from]}–${block.layers[to]}` };
  });
}

const cellsOf = (block) => (block.grid ? block.grid[0] * block.grid[1] : 0);
const runWeights = (block, token, run, group) => weights(block, "image", cellsOf(block), token, [run.from, run.to], group);

/* The largest weight of all pictures that are drawn: they share one scale. Each view is {block, token, layer, group}. */
function scaleOf(views) {
  let most = 0;
  for (const { block, token, layer, group } of views) {
    if (!block.grid) continue;
    most = Math.max(most, ...weights(block, "image", cellsOf(block), token, layer, group));
    for (const run of layerRuns(block)) most = Math.max(most, ...runWeights(block, token, run, group));
  }
  return most;
}

/* the stops of the page's drawn maps and of their legend */
const STOPS = property("map").split(", ").map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
function colourOf(share) {
  const place = Math.min(1, Math.max(0, share)) * (STOPS.length - 1), at = Math.min(STOPS.length - 2, Math.floor(place)), rest = place - at;
  return STOPS[at].map((value, part) => Math.round(value + rest * (STOPS[at + 1][part] - value)));
}

/* What is said of a map to whoever does not see it. */
function mapWords(grid, found) {
  const [rows, columns] = grid;
  const strongest = Math.max(...found), total = found.reduce((sum, value) => sum + value, 0), peak = found.indexOf(strongest);
  return `attention over the image, ${rows} by ${columns} cells; the strongest is in row `
    + `${Math.floor(peak / columns) + 1}, column ${(peak % columns) + 1}, with ${total ? Math.round((100 * strongest) / total) : 0}% of what falls on the image`;
}

/* The image in grey under the map's colours, on a canvas as wide as side; where there is no image the colours alone. */
function painted(image, grid, found, most, side, words, colour = colourOf) {
  const [rows, columns] = grid;
  const canvas = el("canvas", { width: side, height: side, role: "img", "aria-label": words });
  const paint = (shown) => {
    const context = canvas.getContext("2d");
    if (shown) {
      canvas.height = Math.round((side * shown.naturalHeight) / shown.naturalWidth);
      context.filter = "grayscale(1)";
      context.drawImage(shown, 0, 0, canvas.width, canvas.height);
      context.filter = "none";
    }
    const edge = (place, parts, size) => Math.round((place * size) / parts); /* whole pixels: no seams between cells */
    found.forEach((value, at) => {
      const column = at % columns, line = Math.floor(at / columns);
      const x = edge(column, columns, canvas.width), y = edge(line, rows, canvas.height);
      context.fillStyle = `rgba(${colour(most ? value / most : 0).join(", ")}, ${shown ? 0.62 : 1})`;
      context.fillRect(x, y, edge(column + 1, columns, canvas.width) - x, edge(line + 1, rows, canvas.height) - y);
    });
  };
  if (!image || image.complete) paint(image);
  else image.addEventListener("load", () => paint(image), { once: true });
  return canvas;
}

function bars(block, token, layer, group) {
  const found = masses(block, token, layer, group);
  const tokens = tokensRead(block, token), all = tokens.reduce((sum, count) => sum + count, 0);
  const sum = found.reduce((total, share) => total + share, 0);
  const even = (at) => (tokens[at] && sum ? `${(found[at] / sum / (tokens[at] / all)).toFixed(2)}×` : "–");
  return el("table", { class: "bars" }, el("caption", { text: "share of the token's attention by segment"
    + (all ? "; × is its length-normalised share: 1 is that of an even spread over tokens" : "") }), el("tbody", {},
    ...block.names.map((name, at) => {
      const bar = el("span", { class: "bar" });
      bar.style.width = `${Math.round(100 * found[at])}%`;
      return el("tr", { "data-segment": name }, el("th", { scope: "row", text: name }), el("td", { text: `${(100 * found[at]).toFixed(1)}%` }),
        all ? el("td", { text: even(at) }) : null,
        el("td", { class: "track", "aria-hidden": "true" }, bar));
    })));
}

/* Tokens of each segment that a token of the answer can look at; nothing where the run did not count them. */
function tokensRead(block, token) {
  const later = block.tokens.length - token; /* of the answer: itself and what follows was not there yet */
  return (block.counts || []).map((count, at) => (block.names[at] === "generated" ? Math.max(0, count - later) : count));
}

function words(block, token, layer, group) {
  const found = weights(block, "words", block.keys.length, token, layer, group), most = Math.max(...found, 1e-9);
  const order = block.keys.map((_, at) => at).sort((a, b) => found[b] - found[a]).slice(0, 5);
  const top = order.map((at) => `${block.keys[at]} ${(100 * found[at]).toFixed(1)}%`).join(", ");
  const shown = el("p", { class: "heatwords", dir: "auto", role: "group", tabindex: 0, "aria-label": "attention over the words" }, ...block.keys.flatMap((key, at) => {
    const word = el("span", { title: `${block.names[block.segments[at]]}: ${(100 * found[at]).toFixed(2)}%` }, el("bdi", { text: key }));
    word.style.setProperty("--share", found[at] / most);
    return [word, " "];
  }));
  return el("div", {}, shown, el("p", { class: "small" }, "most: ", el("bdi", { text: top })));
}
