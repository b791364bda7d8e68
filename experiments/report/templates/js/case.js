/* One case: picture, prompt, what every arm answered, how it was judged. */
function open(index, arm) {
  if (arm && data.arms.includes(arm) && arm !== state.arm) {
    state.arm = arm;
    byId("f-arm").value = arm;
  }
  show(index);
  const hash = `#case=${encodeURIComponent(cases[index].id)}&arm=${encodeURIComponent(state.arm)}`;
  if (location.hash !== hash) history.replaceState(null, "", hash);
  const place = state.shown.indexOf(index) + 1;
  say(place ? `case ${place} of ${state.shown.length}` : "the open case is not among those that the filters leave");
}

function show(index) {
  state.open = index;
  reveal(index);
  drawRows();
  drawCase(index);
}

function fromHash() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (!wanted.has("case")) return;
  const index = cases.findIndex((one) => one.id === wanted.get("case"));
  if (index < 0) {
    say(`this run has no case ${wanted.get("case")}`);
    return byId("said").scrollIntoView({ block: "center" });
  }
  open(index, wanted.get("arm"));
  byId("detail").scrollIntoView(); /* on a phone the list stands above it, on a wide screen to its left */
}

function drawCase(index) {
  const one = cases[index];
  const facts = [one.subset, one.scenario, ...Object.entries(one.tags).map(([key, value]) => `${key}: ${value}`)];
  const arms = [...new Set([state.against, state.arm])].filter((arm) => answer(index, arm));
  const others = data.arms.filter((arm) => !arms.includes(arm) && answer(index, arm));
  byId("detail").replaceChildren(...[
    el("h3", {}, el("bdi", { text: one.id }), " ", flipTag(index)),
    el("p", { class: "small" }, el("bdi", { text: facts.filter(Boolean).join(" · ") })),
    el("div", { class: "top" }, picture(one), el("div", { class: "asked" },
      el("blockquote", { dir: "auto" }, el("bdi", { text: one.text })),
      el("p", { class: "small" }, "Right answer: ", el("strong", { text: data.golds[one.gold] || one.gold }), "."))),
    el("div", { class: "sides" }, ...arms.map((arm) => side(index, arm))),
    attentionPanel(index, arms),
    others.length ? el("details", { class: "others" }, el("summary", { text: `${others.length} other arms` }),
      el("div", { class: "sides" }, ...others.map((arm) => side(index, arm)))) : null,
  ].filter(Boolean));
}

function flipTag(index) {
  const flip = flipOf(index);
  return flip ? el("span", { class: `tag ${flip}`, text: `${flip} by ${state.arm}` }) : el("span");
}

/* Pictures of harmful cases, and of harmless ones that a benchmark made to look alarming, stay blurred until they are asked for, one at a time. */
function picture(one) {
  if (one.image < 0) return el("div", { class: "none", text: "no thumbnail was kept" });
  const image = el("img", { src: data.images[one.image], alt: `image of case ${one.id}`, width: 160 });
  if (!one.hidden) return el("div", { class: "picture" }, image);
  const cover = el("button", { type: "button", class: "veil", "aria-pressed": "false" }, image,
    el("span", { class: "hint", text: "show the image" }));
  cover.addEventListener("click", () => {
    const shown = cover.getAttribute("aria-pressed") === "true";
    cover.setAttribute("aria-pressed", String(!shown));
    cover.querySelector(".hint").textContent = shown ? "show the image" : "hide the image";
    for (const canvas of document.querySelectorAll("#detail canvas")) canvas.classList.toggle("blurred", shown);
  });
  return el("div", { class: "picture" }, cover);
}

/* What was asked before the answer, in order: a description of the picture, the request rewritten, … */
function stepsOf(steps, arm) {
  return el("dl", { class: "steps", "aria-label": `steps of ${arm}` }, ...steps.flatMap(([name, said]) => [
    el("dt", { text: name }), el("dd", { dir: "auto" }, said ? el("bdi", { text: said }) : el("em", { text: "nothing" }))]));
}

function side(index, arm) {
  const given = answer(index, arm);
  const response = el("blockquote", { class: "response", dir: "auto", role: "group", tabindex: 0, "aria-label": `response of ${arm}` });
  if (given.text) response.append(el("bdi", { text: given.text }));
  else response.append(el("em", { text: "nothing" }));
  if (given.cut) response.append(el("span", { class: "small", text: ` … and ${given.cut} more characters` }));
  const said = el("strong", { class: mark(given), text: given.verdict === null ? data.silences[given.status] : verdictWords(given.verdict) });
  const verdict = el("p", {}, "Verdict: ", attentionOf(index, arm) ? el("button", { type: "button", class: `look ${mark(given)}`,
    title: "where the verdict looks", onclick: () => lookAt(index, arm) }, said) : said);
  if (given.right >= 0) verdict.append(given.right ? ", right" : ", wrong");
  if (given.verdict !== null && given.status !== "answered") verdict.append(` (${given.status.replace(/_/g, " ")})`);
  if (given.margin !== null) verdict.append(` · margin ${signed(given.margin)}`);
  return el("section", { class: "side", "aria-label": `arm ${arm}`, "data-arm": arm }, el("h4", { text: arm }), response, verdict,
    given.steps.length ? stepsOf(given.steps, arm) : null,
    given.why ? el("p", { class: "small" }, given.verdict === null ? "Reason: " : "Judge: ", el("bdi", { text: given.why })) : null,
    given.text && given.status !== "provider_blocked" ? labeller(index, arm) : null,
    given.prompt ? el("details", {}, el("summary", { text: "the prompt as the model read it" }),
      el("pre", { dir: "auto", role: "group", tabindex: 0, "aria-label": `prompt of ${arm}` }, el("bdi", { text: given.prompt }))) : null);
}
