/* Where a word looks, layer by layer; what stands in each layer; and back from a patch to the words that look at it. */
async function lookAround() {
  const asked = experiment("look");
  try {
    state.looked = await work(asked);
  } catch (error) {
    return troubled("looked")(error);
  }
  state.results.look = { experiment: asked, share: state.looked.share };
  state.token_at = state.looked.answer[0] ?? state.looked.words.length - 1;
  state.layer = null;
  drawLook();
}

function drawLook() {
  const { block, words: prompt, answer, share } = state.looked;
  const views = el("div", {}), label = el("output", { class: "layer-name" });
  const chip = (text, token) => el("button", { type: "button", class: "token", "aria-pressed": String(token === state.token_at), "data-token": token, text, onclick: () => { state.token_at = token; draw(); } });
  const chips = el("p", { class: "chips", role: "group", "aria-label": "words of the question and of the answer" });
  const draw = () => {
    for (const button of chips.querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.token) === state.token_at));
      button.style.removeProperty("--share");
    }
    label.textContent = state.layer === null ? "mean of all layers" : `decoder layer ${block.layers[state.layer]}`;
    drawMap(views, block, chips);
  };
  chips.append(...prompt.flatMap(([text, token]) => [chip(text, token), " "]), el("span", { class: "small", text: " → " }), ...answer.flatMap((token) => [chip(block.tokens[token], token), " "]));
  const layer = el("input", { type: "range", class: "layer", min: 0, max: block.layers.length, step: 1, "aria-label": "layer; 0 is the mean of all layers" });
  layer.value = state.layer === null ? 0 : state.layer + 1;
  layer.addEventListener("input", () => { state.layer = layer.value === "0" ? null : Number(layer.value) - 1; draw(); });
  const heads = el("select", { class: "heads", "aria-label": "heads" }, ...block.groups.map((name, at) => el("option", { value: at, text: name })));
  heads.value = state.group;
  heads.addEventListener("change", () => { state.group = Number(heads.value); draw(); });
  const whose = el("select", { "aria-label": "whose attention" }, ...state.asked.arms.map((arm, at) => el("option", { value: at, text: arm.name })));
  whose.value = state.arm;
  whose.addEventListener("change", () => { state.arm = Number(whose.value); lookAround(); });
  byId("looked").replaceChildren(...[
    el("p", { class: "small", text: "Click a word: the colours show where its attention lies. Point at a patch, or go there with the arrow keys: the words that look at it light up. Attention shows where a model looks, not why it answers." }),
    chips, el("div", { class: "controls" }, "layer ", layer, " ", label, " ", heads, state.asked.arms.length > 1 ? whose : null), views,
    el("figure", {}, curve(block.layers.map(String), share, "share of the verdict's attention on the picture, by decoder layer"), el("figcaption", { class: "small", text: "share of the verdict’s attention on the picture, by decoder layer; the first token, a sink, is left out" }))].filter(Boolean));
  draw();
}

function drawMap(place, block, chips) {
  const token = state.token_at, { layer, group } = state, most = scaleOf([{ block, token, layer, group }]);
  const image = byId("picture").hidden ? null : byId("picture"), parts = [];
  if (block.grid) {
    const found = weights(block, "image", cellsOf(block), token, layer, group);
    const canvas = painted(image, block.grid, found, most, 300, mapWords(block.grid, found));
    canvas.classList.add("map");
    const light = (cell) => lightWords(block, cell, chips);
    walkable(canvas, ...block.grid, { over: light, pick: light });
    parts.push(canvas);
    if (block.layers.length > 1) {
      parts.push(el("div", { class: "layers", role: "group", "aria-label": "layer by layer" }, ...layerRuns(block).map((run) => el("figure", {},
        painted(image, block.grid, runWeights(block, token, run, group), most, 88, run.name), el("figcaption", { text: run.name })))));
    }
  } else parts.push(el("p", { class: "small", text: "These image tokens stand for no place in the picture: no map." }));
  place.replaceChildren(el("div", { class: "maps" }, el("div", {}, ...parts), el("div", {}, bars(block, token, layer, group), words(block, token, layer, group))));
}

/* Which words look at a patch; null: none is pointed at. The two that look most are said. */
function lightWords(block, cell, chips) {
  const buttons = [...chips.querySelectorAll("button")];
  const shares = buttons.map((button) => (cell === null ? 0 : weights(block, "image", cellsOf(block), Number(button.dataset.token), state.layer, state.group)[cell]));
  const most = Math.max(...shares, 1e-9), order = buttons.map((_, at) => at).sort((a, b) => shares[b] - shares[a]);
  buttons.forEach((button, at) => { if (cell === null) button.style.removeProperty("--share"); else button.style.setProperty("--share", shares[at] / most); });
  return `looked at most by ${order.slice(0, 2).map((at) => buttons[at].textContent).join(" and ")}`;
}

/* What looks closer, each one click: measured on the model as it is, without an arm. */
const CLOSER = {
  lens: ["by layer: what would it say?", (found) => el("div", { class: "pair" }, el("figure", {}, curve(found.layers.map(String), found.margins, "margin by residual layer"), el("figcaption", { class: "small", text: "margin at the verdict if the model ended after each residual layer (logit lens)" })),
    el("div", { class: "wide", role: "group", tabindex: 0, "aria-label": "likeliest words by layer" }, el("table", {}, el("caption", { text: "likeliest words by layer" }), el("tbody", {}, ...found.layers.map((layer, at) => el("tr", {}, el("th", { scope: "row", text: `layer ${layer}` }), el("td", {}, number(found.margins[at])),
      el("td", { class: "words" }, ...found.words[at].flatMap((word, rank) => [el("bdi", { text: word || "␣" }), el("span", { class: "small", text: ` ${Math.round(100 * found.probabilities[at][rank])}%  ` })])))))))) ],
  heads: ["five heads that write the verdict", (found) => el("div", { class: "layers five" }, ...found.heads.map(([layer, head], at) => el("figure", {}, painted(byId("picture"), [found.maps[at].length, found.maps[at][0].length], found.maps[at].flat(), Math.max(...found.maps.flat(2)), 120, `attention of head ${head} of decoder layer ${layer}`),
    el("figcaption", {}, `layer ${layer}, head ${head}: `, number(found.effects[at]))))) ],
  occlude: ["cover each part: what is missed?", (found) => el("div", { class: "pair" }, signedMap(found.map, "change of the margin when a part is covered"), signedWords(found.words)) ],
};

function drawCloser() {
  const refusals = (state.known.model.refusals) || {};
  byId("look-actions").replaceChildren(...Object.entries(CLOSER).flatMap(([action, [name, draw]]) => [el("button", { type: "button", "data-action": action, disabled: Boolean(refusals[action]), title: refusals[action] || "", text: name,
    onclick: guarded("closer", async () => {
      const asked = experiment(action);
      byId("closer").replaceChildren(el("p", { class: "small", text: "…" }));
      const found = await work(asked);
      Object.assign(state, { last: asked, results: { ...state.results, [action]: found } });
      byId("closer").replaceChildren(el("h3", { text: name }), el("p", { class: "small", text: "Measured on the model as it is, without an arm or a change." }), draw(found));
      say(`${name}: done`);
    }) }), ...(refusals[action] ? [el("span", { class: "small why", text: refusals[action] })] : [])]));
}
