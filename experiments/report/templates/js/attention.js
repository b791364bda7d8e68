/* Attention of one case: over the picture, over the words, by segment; a slider for the layer, arms side by side. */
function attentionOf(index, arm) {
  const own = (found, key) => (found && Object.hasOwn(found, key) ? found[key] : null);
  const found = own(data.attention && data.attention.cases, cases[index].id);
  return arm === undefined ? found : own(found, arm);
}

/* The answer's first token that is a Yes or a No, else its first: where the verdict was read off. */
const verdictToken = (block) => Math.max(0, block.tokens.findIndex((token) => /^(yes|no)$/i.test(token)));

/* From a verdict to where it looked. */
function lookAt(index, arm) {
  if (arm !== state.arm && arm !== state.against) open(index, arm);
  const view = [...document.querySelectorAll("#detail .attention .side")].find((side) => side.dataset.arm === arm);
  const token = view.querySelectorAll("button.token")[verdictToken(attentionOf(index, arm))];
  if (!token) return;
  token.click();
  document.querySelector("#detail .attention").scrollIntoView({ block: "nearest" });
}

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

function attentionPanel(index, arms) {
  const found = attentionOf(index);
  if (!found) return data.attention ? el("p", { class: "small", text: "Attention was not logged for this case." }) : null;
  const shown = arms.filter((arm) => Object.hasOwn(found, arm));
  if (!shown.length) return el("p", { class: "small", text: `Attention of this case was logged for ${Object.keys(found).join(", ")}.` });
  const deepest = (best, arm) => (found[arm].layers.length > best.layers.length ? found[arm] : best);
  const first = shown.reduce(deepest, found[shown[0]]), most = first.layers.length;
  const panel = el("section", { class: "attention", "aria-label": "attention" }, el("h4", { text: "Where the answer looks" }));
  const views = el("div", { class: "sides" });
  const blocks = shown.map((arm) => ({ arm, block: found[arm], token: verdictToken(found[arm]) }));
  const legend = el("p", { class: "legend small" });
  const draw = (chosen) => {
    const most = scaleOf(blocks);
    legend.replaceChildren(el("span", { text: "share of the token’s attention in one cell: 0%" }), " ",
      el("span", { class: "scale", "aria-hidden": "true" }), " ", el("span", { text: `${(100 * most).toFixed(1)}% (one scale for all)` }));
    for (const one of blocks) one.most = most;
    views.replaceChildren(...blocks.map((one) => attentionView(index, one, draw)));
    const at = blocks.indexOf(chosen); /* the pressed button was drawn anew: the keyboard stays on it */
    if (at >= 0) views.children[at].querySelectorAll("button.token")[chosen.token].focus();
  };
  const label = el("output", { class: "layer-name" });
  const name = () => { label.textContent = state.layer === null ? "mean of all layers" : `layer ${first.layers[state.layer]}`; };
  if (state.layer !== null && state.layer >= most) state.layer = null;
  if (state.group >= first.groups.length) state.group = 0;
  const slider = el("input", { type: "range", class: "layer", min: 0, max: most, step: 1, "aria-label": "layer; 0 is the mean of all layers" });
  slider.value = state.layer === null ? 0 : state.layer + 1;
  slider.addEventListener("input", () => { state.layer = slider.value === "0" ? null : Number(slider.value) - 1; name(); draw(); });
  const heads = el("select", { class: "heads", "aria-label": "heads" });
  choices(heads, first.groups.map((group, at) => [String(at), group]), String(state.group));
  heads.addEventListener("change", () => { state.group = Number(heads.value); draw(); });
  name();
  draw();
  panel.append(el("p", { class: "controls" }, "layer ", slider, " ", label, " ", heads), views,
    blocks.some((one) => one.block.grid) ? legend : "",
    el("p", { class: "small", text: `On the words, orange is where the token looks most, by each text’s own largest weight. ${data.attention.note}` }));
  return panel;
}

/* Joined runs may be of models of different depth: the shallower one stays at its last layer. */
function placeIn(block) {
  const last = block.layers.length - 1;
  return { last, layer: state.layer === null ? null : Math.min(state.layer, last), group: state.group < block.groups.length ? state.group : 0 };
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

/* The largest weight of all pictures that are drawn: they share one scale. */
function scaleOf(blocks) {
  let most = 0;
  for (const { block, token } of blocks) {
    if (!block.grid) continue;
    const { layer, group } = placeIn(block);
    most = Math.max(most, ...weights(block, "image", cellsOf(block), token, layer, group));
    for (const run of layerRuns(block)) most = Math.max(most, ...runWeights(block, token, run, group));
  }
  return most;
}

function attentionView(index, one, redraw) {
  const { arm, block } = one;
  const { last, layer, group } = placeIn(block);
  const chips = el("p", { class: "chips" }, "token: ", ...block.tokens.flatMap((token, at) => [el("button", { type: "button",
    class: "token", "aria-pressed": String(at === one.token), text: token, onclick: () => { one.token = at; redraw(one); } }), " "]));
  const view = el("section", { class: "side", "aria-label": `attention of ${arm}`, "data-arm": arm }, el("h4", { text: arm }), chips);
  if (layer !== state.layer) view.append(el("p", { class: "small", text: `layer ${block.layers[last]}, this model's last` }));
  if (group !== state.group) view.append(el("p", { class: "small", text: block.groups[group] }));
  if (block.grid) {
    view.append(heat(index, block, one.token, layer, group, one.most));
    if (block.layers.length > 1) {
      view.append(el("div", { class: "layers", role: "group", "aria-label": `${arm}, layer by layer` }, ...layerRuns(block).map((run) => el("figure", {},
        painted(index, block, runWeights(block, one.token, run, group), one.most, 88, `${arm}, ${run.name}`), el("figcaption", { text: run.name })))));
    }
  }
  view.append(bars(block, one.token, layer, group), words(block, one.token, layer, group));
  return view;
}

/* viridis at five places, as in the page's drawn maps and in its legend */
const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
function colourOf(share) {
  const place = Math.min(1, Math.max(0, share)) * (VIRIDIS.length - 1), at = Math.min(VIRIDIS.length - 2, Math.floor(place)), rest = place - at;
  return VIRIDIS[at].map((value, part) => Math.round(value + rest * (VIRIDIS[at + 1][part] - value)));
}

function heat(index, block, token, layer, group, most) {
  const [rows, columns] = block.grid;
  const found = weights(block, "image", rows * columns, token, layer, group);
  const strongest = Math.max(...found), total = found.reduce((sum, value) => sum + value, 0), peak = found.indexOf(strongest);
  return painted(index, block, found, most, 240, `attention over the image, ${rows} by ${columns} cells; the strongest is in row `
    + `${Math.floor(peak / columns) + 1}, column ${(peak % columns) + 1}, with ${total ? Math.round((100 * strongest) / total) : 0}% of what falls on the image`);
}

/* The picture in grey under the map's colours; a case without a picture of its own shows the colours alone. */
function painted(index, block, found, most, side, words) {
  const [rows, columns] = block.grid;
  const canvas = el("canvas", { width: side, height: side, role: "img", class: cases[index].hidden ? "blurred" : "", "aria-label": words });
  const veil = document.querySelector("#detail .veil");
  if (veil && veil.getAttribute("aria-pressed") === "true") canvas.classList.remove("blurred");
  const paint = (image) => {
    const context = canvas.getContext("2d");
    if (image) {
      canvas.height = Math.round((side * image.naturalHeight) / image.naturalWidth);
      context.filter = "grayscale(1)";
      context.drawImage(image, 0, 0, canvas.width, canvas.height);
      context.filter = "none";
    }
    const edge = (place, parts, size) => Math.round((place * size) / parts); /* whole pixels: no seams between cells */
    found.forEach((value, at) => {
      const column = at % columns, line = Math.floor(at / columns);
      const x = edge(column, columns, canvas.width), y = edge(line, rows, canvas.height);
      context.fillStyle = `rgba(${colourOf(most ? value / most : 0).join(", ")}, ${image ? 0.62 : 1})`;
      context.fillRect(x, y, edge(column + 1, columns, canvas.width) - x, edge(line + 1, rows, canvas.height) - y);
    });
  };
  const image = pictureOf(cases[index].image);
  if (!image || image.complete) paint(image);
  else image.addEventListener("load", () => paint(image), { once: true });
  return canvas;
}

/* The picture last asked for is kept: a slider that decoded it anew at every step would flicker. */
let picturePlace = -1, pictureKept = null;
function pictureOf(place) {
  if (place !== picturePlace) {
    picturePlace = place;
    pictureKept = place < 0 ? null : el("img", { src: data.images[place] });
  }
  return pictureKept;
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
