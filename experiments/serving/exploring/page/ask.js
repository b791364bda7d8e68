/* Picture, words, arms; and their answers as they come. */
function showPicture(found) {
  state.picture = found;
  byId("picture").hidden = !found.url;
  byId("picture-none").hidden = Boolean(found.url);
  byId("picture").src = found.url || "data:,";
  byId("picture").alt = found.case ? `the picture of case ${found.case.id}` : "the picture that is asked about";
  const gold = found.case && { yes: "Yes, it is safe", no: "No, it is unsafe", comply: "an answer", refuse: "a refusal" }[found.case.gold];
  byId("case").replaceChildren(...(found.case ? [el("bdi", { text: found.case.id }), ...(gold ? [" · right answer: ", el("strong", { text: gold })] : [])] : []));
  drawChanges();
}

/* Another picture or other words: what was found belongs to the old ones. */
function forget() {
  if (state.working) state.working.abort();
  Object.assign(state, { answers: [], changed: null, looked: null, asked: null, results: {}, last: null, arm: 0 });
  byId("sides").replaceChildren(el("p", { class: "small", text: "Nothing is asked yet." }));
  byId("looked").replaceChildren(el("p", { class: "small", text: "Ask first. Then click a word of the question or of the answer." }));
  for (const name of ["closer", "effects", "sweeps", "kept"]) byId(name).replaceChildren();
  byId("tried").textContent = triedWords();
  remember();
}

async function choose(name, keepWords = false) {
  const found = await ask("show", { name });
  forget();
  showPicture(found);
  if (found.case && !keepWords) setText(found.case.text);
  remember();
}

function setText(words) {
  state.text = words;
  byId("text").value = words;
}

async function take(file) {
  if (!file) return;
  const url = await new Promise((done, fail) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.onerror = () => fail(new Error("the file cannot be read"));
    reader.readAsDataURL(file);
  });
  return (await ask("picture", { url })).name;
}

const troubled = (place) => (error) => {
  byId(place).replaceChildren(el("p", { class: "trouble", role: "alert", text: error.message }));
};
const guarded = (place, act) => (...given) => act(...given).catch(troubled(place));

function drawArms() {
  byId("arms").replaceChildren(...state.arms.map((arm, at) => {
    const select = el("select", { "aria-label": at ? "second arm" : "first arm" });
    select.append(...Object.keys(state.known.arms).map((name) => el("option", { value: name, text: name })),
      ...Object.entries(state.known.refused_arms).map(([name, why]) => el("option", { value: name, disabled: true, text: `${name}: ${why}` })));
    select.value = arm.name;
    select.addEventListener("change", () => { state.arms[at] = { name: select.value, settings: {} }; drawArms(); remember(); byId("arms").children[at].querySelector("select").focus(); });
    const settings = (state.known.arms[arm.name] || []).map((one) => setting(arm, one));
    return el("div", { class: "arm" }, el("div", { class: "tools" }, select, at ? el("button", { type: "button", text: "remove", "aria-label": "remove the second arm",
      onclick: () => { state.arms.pop(); state.arm = 0; drawArms(); remember(); byId("second-arm").focus(); } }) : null),
      settings.length ? el("details", {}, el("summary", { text: "settings" }), ...settings) : null);
  }));
  byId("second-arm").hidden = state.arms.length > 1;
}

function setting(arm, one) {
  const value = one.name in arm.settings ? arm.settings[one.name] : one.value;
  const put = (found) => {
    if (found === one.value) delete arm.settings[one.name];
    else arm.settings[one.name] = found;
    remember();
  };
  if (one.kind === "flag") {
    const box = el("input", { type: "checkbox", checked: value });
    box.addEventListener("change", () => put(box.checked));
    return el("label", { class: "check" }, box, ` ${one.name}`);
  }
  if (one.kind === "choice") {
    const select = el("select", {}, ...one.choices.map((name) => el("option", { value: name, text: name })));
    select.value = value;
    select.addEventListener("change", () => put(select.value));
    return el("label", { class: "setting" }, `${one.name} `, select);
  }
  if (one.kind === "words") {
    const box = el("input", { type: "text", value, maxlength: 500 });
    box.addEventListener("change", () => put(box.value));
    return el("label", { class: "setting" }, `${one.name} `, box);
  }
  return slider(one.name, one.low, one.high, one.step, value, put);
}

/* A slider with its name and its value. */
function slider(name, low, high, step, value, put) {
  const box = el("input", { type: "range", min: low, max: high, step, value }), shown = el("output", { text: String(value) });
  box.value = value;
  box.addEventListener("input", () => { shown.textContent = box.value; put(Number(box.value)); });
  return el("label", { class: "setting" }, `${name} `, box, " ", shown);
}

async function go() {
  forget();
  state.asked = experiment("ask");
  state.last = state.asked;
  byId("sides").replaceChildren(...state.arms.map((arm) => el("section", { class: "side", "aria-label": `answer of ${arm.name}` }, el("h3", { text: arm.name }), el("p", { class: "said pending", text: "…" }))));
  const found = await work(state.asked, (event) => {
    if (event.answer) drawAnswer(event.arm, event.answer);
  });
  state.answers = found.answers;
  found.answers.forEach((given, at) => drawAnswer(at, given));
  say(found.answers.map((given, at) => `${state.arms[at].name}: ${given.error || `${given.text || "nothing"}${given.margin === null ? "" : `, margin ${signed(given.margin)}`}`}`).join("; "));
  remember();
  if (!state.known.model.refusals) await learn();
  if (!state.known.model.refusals.look) await lookAround();
  else byId("looked").replaceChildren(el("p", { class: "small", text: state.known.model.refusals.look }));
}

function drawAnswer(at, given) {
  const side = byId("sides").children[at], arm = state.asked.arms[at];
  if (given.error) return side.replaceChildren(el("h3", { text: arm.name }), el("p", { class: "trouble", text: given.error }));
  const gold = state.picture && state.picture.case && state.picture.case.gold, verdict = /^\W*(yes|no)\b/i.exec(given.text);
  const right = (gold === "yes" || gold === "no") && verdict && state.framed ? verdict[1].toLowerCase() === gold : null;
  side.replaceChildren(el("h3", { text: arm.name }),
    el("blockquote", { class: "said", dir: "auto" }, given.text ? el("bdi", { text: given.text }) : el("em", { text: "nothing" }), given.finished ? null : " …"),
    right === null ? "" : el("p", { class: right ? "right" : "wrong", text: right ? "right" : "wrong" }),
    given.unscored ? el("p", { class: "small", text: `no margin: ${given.unscored}` }) : dial(given.margin),
    given.steps.length ? el("dl", { class: "steps", "aria-label": `steps of ${arm.name}` }, ...given.steps.flatMap(([name, words]) => [el("dt", { text: name }), el("dd", { dir: "auto" }, el("bdi", { text: words || "nothing" }))])) : "",
    given.second ? el("figure", { class: "second" }, el("img", { src: given.second, alt: `the second picture that ${arm.name} contrasts with`, width: 96 }), el("figcaption", { class: "small", text: "contrasted with this picture" })) : "",
    el("details", {}, el("summary", { text: "the prompt as the model read it" }), el("pre", { dir: "auto", role: "group", tabindex: 0, "aria-label": `prompt of ${arm.name}` }, el("bdi", { text: given.prompt }))));
}
