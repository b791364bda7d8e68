/* Changes inside the model and to the picture, and what they do. */
const CELLS = 12;

function layerPair(name, ends, put) {
  const last = Math.max(0, (state.known.model.layers || 1) - 1);
  const box = (at, words) => {
    const found = el("input", { type: "number", min: 0, max: last, value: ends ? ends[at] : at ? last : 0, "aria-label": `${name}, ${words} layer` });
    found.addEventListener("change", () => put(boxes.map((one) => Math.min(last, Math.max(0, Number(one.value) || 0)))));
    return found;
  };
  const boxes = [box(0, "first"), box(1, "last")];
  return el("span", {}, "layers ", boxes[0], " to ", boxes[1]);
}

function tool(name, title, ...parts) {
  const why = ((state.known.model || {}).refusals || {})[name];
  return el("fieldset", { class: "tool", disabled: Boolean(why), "data-tool": name }, el("legend", { text: title }), ...parts, why ? el("p", { class: "small why", text: why }) : null);
}

function drawChanges() {
  if (!state.known || !state.known.model.layers) return;
  const { change } = state, { layers } = state.known.model;
  const put = (changes) => { Object.assign(state.change, changes); remember(); };
  const cut = el("input", { type: "checkbox", checked: change.cut !== null });
  cut.addEventListener("change", () => put({ cut: cut.checked ? [0, layers - 1] : null }) || drawChanges());
  const sweep = (action, text, draw, more = {}) => el("button", { type: "button", "data-action": action, text, onclick: guarded("sweeps", async () => {
    const asked = { ...experiment(action), ...more };
    const found = await work(asked);
    Object.assign(state, { last: asked, results: { ...state.results, [action]: found } });
    byId("sweeps").replaceChildren(draw(found), el("p", { class: "small", text: `${count()}. Measured on the model as it is, without an arm.` }));
    byId("tried").textContent = triedWords();
    say(`${text}: done`);
  }) });
  byId("changes").replaceChildren(
    tool("cut", "Keep the verdict from seeing the picture", el("label", { class: "check" }, cut, " cut attention from the verdict to the picture"), change.cut ? layerPair("cut", change.cut, (ends) => put({ cut: ends })) : null,
      sweep("windows", "cut each layer by itself", (found) => el("figure", {}, curve(found.windows.map(([first]) => String(first)), found.moved, "change of the margin, by decoder layer that is cut"), el("figcaption", { class: "small", text: "change of the margin when one decoder layer is cut" }),
        el("p", {}, ...found.moved.flatMap((value) => [number(value), " "]))))),
    tool("grey", "Grey out a part of the picture", painter(put), el("button", { type: "button", text: "nothing is grey", onclick: () => { put({ grey: [] }); drawChanges(); } })),
    tool("attention", "Attend more, or less, to the picture", slider("logits added", -5, 5, 0.1, change.attention, (value) => put({ attention: value })), layerPair("attention", change.attended, (ends) => put({ attended: ends }))),
    tool("patch", "Swap the picture", otherPicture(), sweep("patch", "where does the difference pass?", (found) => el("div", {}, effectGrid(found.places, found.layers.map((layer) => `layer ${layer}`), found.moved,
      `change of the margin when this place's states come from the other picture; all of it would be ${signed(found.other - found.clean)}`)))));
}

/* The other picture: a case, a drawn thing, or a file. */
function otherPicture() {
  const choice = el("select", { "aria-label": "draw the other picture" }, el("option", { value: "", text: "draw …" }), ...state.known.things.map((name) => el("option", { value: name, text: name })));
  const file = el("input", { type: "file", accept: "image/png,image/jpeg,image/webp", hidden: true });
  const put = guarded("effects", async (name) => {
    state.other = await ask("show", { name });
    remember();
    drawChanges();
  });
  choice.addEventListener("change", () => choice.value && put(`drawn:${choice.value}:1`));
  file.addEventListener("change", () => take(file.files[0]).then(put, troubled("effects")));
  return el("div", { class: "tools" }, state.other ? el("img", { src: state.other.url, alt: "the other picture", width: 72 }) : el("span", { class: "small", text: "none yet" }), choice,
    el("button", { type: "button", text: "or a file", onclick: () => file.click() }), file);
}

/* A grid over the picture: drag, or arrow keys and space. */
function painter(put) {
  const canvas = el("canvas", { width: 216, height: 216, class: "painter", "aria-label": "12 by 12 cells of the picture; arrow keys move, space paints" });
  const cells = new Set(state.change.grey), image = byId("picture");
  let painting = null;
  const draw = () => {
    const context = canvas.getContext("2d"), side = canvas.width / CELLS;
    context.fillStyle = "#ffffff";
    context.fillRect(0, 0, 216, 216);
    if (!image.hidden && image.complete && image.naturalWidth) context.drawImage(image, 0, 0, 216, 216);
    context.fillStyle = "rgb(127, 127, 127)";
    for (const cell of cells) context.fillRect((cell % CELLS) * side, Math.floor(cell / CELLS) * side, side, side);
  };
  const words = (cell) => (cells.has(cell) ? "grey" : "clear");
  const toggle = (cell, on) => {
    if (on) cells.add(cell);
    else cells.delete(cell);
    put({ grey: [...cells].sort((a, b) => a - b) });
    draw();
    return words(cell);
  };
  walkable(canvas, CELLS, CELLS, {
    pick: (cell, dragged = false) => { const on = !cells.has(cell); painting = dragged ? on : null; return toggle(cell, on); },
    over: (cell) => { if (cell === null) painting = null; else if (painting !== null) toggle(cell, painting); return cell === null ? "" : words(cell); },
  });
  if (image.complete) draw();
  else image.addEventListener("load", draw, { once: true });
  return canvas;
}

async function tryIt() {
  if (!state.answers.length) await go();
  const asked = { ...state.asked, change: copyOf(state.change), other: state.other ? state.other.name : "" };
  byId("effects").replaceChildren(el("p", { class: "small", text: "…" }));
  const found = await work(asked);
  Object.assign(state, { changed: found, last: asked });
  const rows = asked.arms.map((arm, at) => ({ arm: arm.name, before: state.answers[at].margin, was: state.answers[at].text, after: found.answers[at].margin, says: found.answers[at].error || found.answers[at].text }));
  const said = count();
  byId("effects").replaceChildren(beforeAndAfter(rows), ...(found.shown ? [el("img", { src: found.shown, alt: "the picture as it was asked, with grey parts", width: 120 })] : []),
    el("p", { class: "small", text: `${said}. A cut acts on both pictures of a contrast; attention is steered only on the first.` }));
  byId("tried").textContent = triedWords();
  say(rows.map(({ arm, before, after }) => `${arm}: from ${signed(before ?? null)} to ${signed(after ?? null)}`).join("; "));
}

function undoAll() {
  Object.assign(state, { change: copyOf(NOTHING), other: null });
  for (const name of ["effects", "sweeps"]) byId(name).replaceChildren();
  drawChanges();
  remember();
  say("all changes are undone");
}
