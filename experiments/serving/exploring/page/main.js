/* Listens, and opens on the address's experiment, or an example. */
async function learn() {
  state.known = await ask("state");
  const { model } = state.known;
  const words = model.failed ? `the model could not be loaded: ${model.failed}` : model.ready ? `${model.name} · ${model.layers} decoder layers · ${model.dtype}` : `${model.name} is being loaded …`;
  if (byId("model").textContent !== words) byId("model").textContent = words; /* a status is read out each time it is set */
  if (model.ready) {
    drawCloser();
    drawChanges();
  }
  return model.ready || model.failed;
}

function listen() {
  const on = (id, act, place = "sides") => byId(id).addEventListener("click", guarded(place, async () => act()));
  const drawer = () => { byId("drawer").hidden = !byId("drawer").hidden; byId("draw").setAttribute("aria-expanded", String(!byId("drawer").hidden)); };
  on("go", go);
  on("stop", () => state.working && state.working.abort());
  addEventListener("keydown", (event) => { if (event.key === "Escape" && state.working) state.working.abort(); });
  on("choose", () => byId("file").click());
  on("draw", drawer);
  on("draw-it", () => choose(`drawn:${byId("sign").checked ? "no-" : ""}${byId("thing").value}:${byId("seed").value}`, true));
  on("second-arm", () => { state.arms.push({ name: state.known.arms.vcd ? "vcd" : "baseline", settings: {} }); drawArms(); remember(); byId("arms").querySelectorAll("select")[1].focus(); });
  on("apply", tryIt, "effects");
  on("undo", undoAll, "effects");
  on("save", save, "kept");
  on("link", () => navigator.clipboard.writeText(location.href).then(() => say("the address is copied")), "kept");
  on("unlock", () => { state.token = byId("token").value.trim(); byId("key").close(); return start(recalled(), state.token); });
  const dropped = guarded("sides", async (file) => { const name = await take(file); if (name) await choose(name, true); });
  byId("file").addEventListener("change", () => dropped(byId("file").files[0]));
  byId("text").addEventListener("input", () => { state.text = byId("text").value; remember(); });
  byId("text").addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); byId("go").click(); } });
  byId("framed").addEventListener("change", () => { state.framed = byId("framed").checked; remember(); });
  addEventListener("paste", (event) => { const file = [...event.clipboardData.files][0]; if (file) dropped(file); });
  const drop = byId("drop");
  for (const kind of ["dragover", "drop"]) addEventListener(kind, (event) => event.preventDefault());
  drop.addEventListener("dragover", () => drop.classList.add("over"));
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  addEventListener("drop", (event) => { drop.classList.remove("over"); dropped(event.dataTransfer.files[0]); });
}

async function start(wanted, token) {
  if (token) state.token = token;
  await learn();
  byId("thing").replaceChildren(...state.known.things.map((name) => el("option", { value: name, text: name })));
  const second = wanted.arm && wanted.arm !== "baseline" ? wanted.arm : state.known.studied || (state.known.arms.vcd ? "vcd" : "");
  state.arms = Array.isArray(wanted.arms) ? wanted.arms : [{ name: "baseline", settings: {} }, ...(second in state.known.arms ? [{ name: second, settings: {} }] : [])];
  const found = await ask("show", { name: wanted.name || "first" });
  if (wanted.other) state.other = await ask("show", { name: wanted.other }).catch(() => null);
  if (wanted.change) state.change = { ...copyOf(NOTHING), ...wanted.change };
  state.framed = wanted.framed !== false;
  byId("framed").checked = state.framed;
  setText(wanted.text !== undefined ? wanted.text : found.case ? found.case.text : "How do I kill this?");
  drawArms();
  showPicture(found);
  const wait = setInterval(() => learn().then((done) => { if (done) clearInterval(wait); }, () => {}), 500);
  if (found.url || found.case) await go();
  if (wanted.change) await tryIt();
}

listen();
start(recalled()).catch(troubled("sides"));
addEventListener("hashchange", () => location.reload());
