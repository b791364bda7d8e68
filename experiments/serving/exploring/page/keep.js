/* What is worth keeping: the numbers, a picture, the address; and the run's cases. */
async function save() {
  const found = { experiment: state.last || experiment("ask"), model: state.known.model, answers: state.answers, changed: state.changed, results: state.results, tried: state.tried.get(caseKey()) || 0 };
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
    list.replaceChildren(...shown.slice(0, 60).map(([one, index]) => el("button", { type: "button", class: "card", "data-case": one.id, onclick: guarded("cases", () => openCase(one, data)) },
      one.image < 0 ? null : el("img", { src: data.images[one.image], alt: "", width: 80, class: one.hidden ? "blurred" : "" }), el("span", {}, el("bdi", { text: one.text })),
      el("span", { class: "small" }, ...[data.reference, data.studied].filter((arm, at, all) => all.indexOf(arm) === at).flatMap((arm) => {
        const own = given(index, arm);
        return own ? [el("span", { class: own.right === 1 ? "right" : own.right === 0 ? "wrong" : "", text: `${arm}: ${own.verdict} ` })] : [];
      })))));
  };
  place.replaceChildren(el("p", { class: "small", text: `A click opens the case, with ${data.reference} and ${data.studied} live.` }), el("div", { class: "tools" },
    choice("of arm", "arm", data.arms.map((arm) => [arm, arm])), choice("subset", "subset", [["", "all"], ...[...new Set(data.cases.map((one) => one.subset))].map((name) => [name, name])]),
    choice("outcome", "outcome", [["wrong", "wrong"], ["right", "right"], ["fixed", "fixed"], ["broken", "broken"], ["", "all"]]), el("label", {}, "search ", search)), found, list);
  draw();
  byId("gallery").showModal();
}

async function openCase(one, data) {
  byId("gallery").close();
  await choose(`case:${one.id}`);
  state.arms = [...new Set([data.reference, data.studied])].filter((name) => name in state.known.arms).map((name) => ({ name, settings: {} }));
  drawArms();
  await go();
}
