/* What is worth keeping: the Python of the last number, a picture and a file, the address; and the run's cases. */
async function showCode() {
  if (!state.last) throw new Error("Ask first: code is the Python of the last number on this page.");
  const found = await ask("code", { ...state.last, arm: state.arm });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(found.python);
      say("the code is copied");
    } catch {
      getSelection().selectAllChildren(byId("kept").querySelector("pre.python")); /* an address without https keeps the clipboard shut */
      say("the code is selected; copy it with your keyboard");
    }
  };
  byId("kept").replaceChildren(el("p", { class: "small", text: `The Python of the last thing measured (${state.last.action}${state.last.arms.length > 1 ? `, ${state.last.arms[state.arm].name}` : ""}): ` }, el("button", { type: "button", id: "copy-code", text: "copy", onclick: copy })),
    el("pre", { class: "python", tabindex: 0, role: "group", "aria-label": "Python" }, el("code", { text: found.python })), ...(found.command ? [el("p", { class: "small", text: "As a command:" }), el("pre", {}, el("code", { text: found.command }))] : []));
  say("the code is shown");
}

const urlOf = async (url) => (await fetch(url)).blob();

async function save() {
  const found = { experiment: state.last || experiment("ask"), model: state.known.model, answers: state.answers, changed: state.changed, results: state.results, tried: state.tried.get(caseKey()) || 0, code: state.last ? (await ask("code", state.last)).python : "" };
  download("explore.json", "application/json", JSON.stringify(found, null, 1));
  const name = state.picture ? state.picture.name : "", canvas = byId("looked").querySelector("canvas.map");
  if (name.startsWith("own:")) {
    const whole = el("canvas", { width: byId("picture").naturalWidth, height: byId("picture").naturalHeight });
    whole.getContext("2d").drawImage(byId("picture"), 0, 0);
    saveCanvas(whole, `picture-${name.slice(4, 16)}.png`);
  }
  if (canvas) saveCanvas(canvas, "explore.png");
  say("saved");
}

function saveCanvas(canvas, name) {
  canvas.toBlob((blob) => {
    const link = el("a", { download: name, href: URL.createObjectURL(blob) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
}

/* The run's cases: failures first, filters as in the report. */
async function openRun() {
  const data = await ask("run"), place = byId("cases"), wanted = { arm: data.reference, subset: "", outcome: "wrong", words: "" };
  const given = (index, arm) => {
    const row = (data.answers[arm] || [])[index];
    return row && { verdict: row[1] < 0 ? "none" : data.words[data.verdicts[row[1]]] || data.verdicts[row[1]], margin: row[2], text: row[3] < 0 ? "" : data.texts[row[3]], right: row[5] };
  };
  const list = el("div", { class: "cards" }), found = el("p", { class: "small", role: "status" });
  const choice = (name, key, options) => {
    const select = el("select", {}, ...options.map(([value, text]) => el("option", { value, text })));
    select.value = wanted[key];
    select.addEventListener("change", () => { wanted[key] = select.value; draw(); });
    return el("label", {}, `${name} `, select);
  };
  const search = el("input", { type: "search", placeholder: "words or id" });
  search.addEventListener("input", () => { wanted.words = search.value.toLowerCase(); draw(); });
  const passes = (one, index) => {
    const own = given(index, wanted.arm), studied = given(index, data.studied), before = given(index, data.reference);
    if (wanted.subset && one.subset !== wanted.subset) return false;
    if (wanted.outcome === "wrong" && !(own && own.right === 0)) return false;
    if (wanted.outcome === "right" && !(own && own.right === 1)) return false;
    if (wanted.outcome === "fixed" && !(before && studied && before.right === 0 && studied.right === 1)) return false;
    if (wanted.outcome === "broken" && !(before && studied && before.right === 1 && studied.right === 0)) return false;
    return `${one.id} ${one.text}`.toLowerCase().includes(wanted.words);
  };
  const draw = () => {
    const shown = data.cases.map((one, index) => [one, index]).filter(([one, index]) => passes(one, index));
    found.textContent = `${shown.length} of ${data.cases.length} cases${shown.length > 60 ? ", the first 60" : ""}`;
    list.replaceChildren(...shown.slice(0, 60).map(([one, index]) => el("button", { type: "button", class: "card", "data-case": one.id, onclick: guarded("cases", () => openCase(one, data, given, index)) },
      one.image < 0 ? null : el("img", { src: data.images[one.image], alt: "", width: 80, class: one.hidden ? "blurred" : "" }), el("span", {}, el("bdi", { text: one.text })),
      el("span", { class: "small" }, ...[data.reference, data.studied].filter((arm, at, all) => all.indexOf(arm) === at).flatMap((arm) => {
        const own = given(index, arm);
        return own ? [el("span", { class: own.right === 1 ? "right" : own.right === 0 ? "wrong" : "", text: `${arm}: ${own.verdict} ` })] : [];
      })))));
  };
  place.replaceChildren(el("p", { class: "small", text: state.known.model.not_live || `A click opens the case, with ${data.reference} and ${data.studied} live.` }), el("div", { class: "tools" },
    choice("of arm", "arm", data.arms.map((arm) => [arm, arm])), choice("subset", "subset", [["", "all"], ...[...new Set(data.cases.map((one) => one.subset))].map((name) => [name, name])]),
    choice("outcome", "outcome", [["wrong", "wrong"], ["right", "right"], ["fixed", "fixed"], ["broken", "broken"], ["", "all"]]), el("label", {}, "search ", search),
    ...[["", "the whole report"], ...data.sections].map(([name, title]) => el("button", { type: "button", text: title, onclick: guarded("cases", async () => { location.href = (await ask("report")).address + (name && `#section-${name}`); }) }))), found, list);
  draw();
  byId("gallery").showModal();
}

async function openCase(one, data, given, index) {
  const arms = [...new Set([data.reference, data.studied])];
  byId("gallery").close();
  await choose(`case:${one.id}`);
  const why = state.known.model.not_live || state.picture.read_only;
  if (!state.picture.case) setText(one.text);
  if (why) {
    byId("sides").replaceChildren(el("p", { class: "trouble", text: why }), ...arms.filter((arm) => given(index, arm)).map((arm) => el("section", { class: "side", "aria-label": `recorded answer of ${arm}` }, el("h3", { text: `${arm}, as recorded` }),
      el("blockquote", {}, el("bdi", { text: given(index, arm).text })), dial(given(index, arm).margin))));
    return;
  }
  state.arms = arms.filter((name) => name in state.known.arms).map((name) => ({ name, settings: {} }));
  drawArms();
  await go();
}
