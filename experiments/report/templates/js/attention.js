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
    const most = scaleOf(blocks.map(({ block, token }) => ({ block, token, ...placeIn(block) })));
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
  const slider = el("input", { type: "range", class: "layer", min: 0, max: most, step: 1, "aria-label": "layer; 0 is the mean of all layers" });
  slider.value = state.layer === null ? 0 : state.layer + 1;
  slider.addEventListener("input", () => { state.layer = slider.value === "0" ? null : Number(slider.value) - 1; name(); draw(); });
  name();
  draw();
  panel.append(el("p", { class: "controls" }, "layer ", slider, " ", label), views,
    blocks.some((one) => one.block.grid) ? legend : "",
    el("p", { class: "small", text: `On the words, orange is where the token looks most, by each text’s own largest weight. ${data.attention.note}` }));
  return panel;
}

/* Joined runs may be of models of different depth: the shallower one stays at its last layer. */
function placeIn(block) {
  const last = block.layers.length - 1;
  return { last, layer: state.layer === null ? null : Math.min(state.layer, last), group: 0 };
}

function attentionView(index, one, redraw) {
  const { arm, block } = one;
  const { last, layer, group } = placeIn(block);
  const chips = el("p", { class: "chips" }, "token: ", ...block.tokens.flatMap((token, at) => [el("button", { type: "button",
    class: "token", "aria-pressed": String(at === one.token), text: token, onclick: () => { one.token = at; redraw(one); } }), " "]));
  const view = el("section", { class: "side", "aria-label": `attention of ${arm}`, "data-arm": arm }, el("h4", { text: arm }), chips);
  if (layer !== state.layer) view.append(el("p", { class: "small", text: `layer ${block.layers[last]}, this model's last` }));
  if (block.grid) {
    view.append(heat(index, block, one.token, layer, group, one.most));
    if (block.layers.length > 1) {
      view.append(el("div", { class: "layers", role: "group", "aria-label": `${arm}, layer by layer` }, ...layerRuns(block).map((run) => el("figure", {},
        overCase(index, block, runWeights(block, one.token, run, group), one.most, 88, `${arm}, ${run.name}`), el("figcaption", { text: run.name })))));
    }
  }
  view.append(bars(block, one.token, layer, group), words(block, one.token, layer, group));
  return view;
}

function heat(index, block, token, layer, group, most) {
  const found = weights(block, "image", cellsOf(block), token, layer, group);
  return overCase(index, block, found, most, 240, mapWords(block.grid, found));
}

/* Over the case's picture, blurred where that is. */
function overCase(index, block, found, most, side, words) {
  const canvas = painted(pictureOf(cases[index].image), block.grid, found, most, side, words);
  const veil = document.querySelector("#detail .veil");
  if (cases[index].hidden && !(veil && veil.getAttribute("aria-pressed") === "true")) canvas.classList.add("blurred");
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
