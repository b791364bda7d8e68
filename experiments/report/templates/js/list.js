/* The list of cases: filters, order, and a window of rows, so that 1,500 cases × 8 arms scroll like ten. */
const ROW = 58;
let searchable = null;

function haystack(index) {
  if (searchable === null) {
    searchable = cases.map((one, at) => {
      const texts = new Set([one.id, one.text, one.scenario, ...Object.values(one.tags)]);
      for (const arm of data.arms) {
        const given = answer(at, arm);
        if (given) texts.add(given.text).add(given.why);
      }
      return [...texts].join("\n").toLowerCase();
    });
  }
  return searchable[index];
}

function passes(index, words) {
  const one = cases[index];
  if (state.subset && one.subset !== state.subset) return false;
  if (state.scenario && one.scenario !== state.scenario) return false;
  if (state.flip) {
    const flip = flipOf(index);
    if (state.flip === "any" ? flip !== "fixed" && flip !== "broken" : flip !== state.flip) return false;
  }
  if (state.outcome) {
    const given = answer(index, state.arm);
    const [kind, value] = state.outcome.split(":");
    if (kind === "right" && !(given && given.right === Number(value))) return false;
    if (kind === "none" && given && given.right >= 0) return false;
    if (kind === "verdict" && !(given && given.verdict === value)) return false;
    if (kind === "status" && !(given && given.status === value)) return false;
    if (kind === "attention" && !attentionOf(index)) return false;
    if (kind === "labelled" && !labelledCase(index)) return false;
  }
  return words.every((word) => haystack(index).includes(word));
}

function sortKey(index) {
  const margin = (arm) => (answer(index, arm) || { margin: null }).margin;
  if (state.sort === "change" || state.sort === "moved") {
    const now = margin(state.arm), before = margin(state.against);
    const size = now === null || before === null ? null : Math.abs(now - before);
    if (state.sort === "change") return size === null ? null : -size;
    /* Turned verdicts first, then other changed ones, by the change of the margin, which stays below the steps. */
    const step = { fixed: 2, broken: 2, changed: 1, "": 0 }[flipOf(index)];
    return -(step + (size === null ? 0 : size / (1 + size)));
  }
  const value = margin(state.arm);
  return value === null ? null : state.sort === "high" ? -value : value;
}

function refilter() {
  const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  for (let index = 0; index < cases.length; index += 1) if (passes(index, words)) found.push(index);
  if (state.sort) {
    const keys = new Map(found.map((index) => [index, sortKey(index)]));
    const last = (value) => (value === null ? Infinity : value);
    found.sort((a, b) => last(keys.get(a)) - last(keys.get(b)) || a - b);
  }
  state.shown = found;
  byId("count").textContent = `${found.length} of ${cases.length} cases`;
  byId("spacer").style.height = `${found.length * ROW}px`;
  byId("list").scrollTop = 0;
  drawRows();
}

function drawRows() {
  const list = byId("list"), rows = byId("rows");
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
  const last = Math.min(state.shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 4);
  rows.style.transform = `translateY(${first * ROW}px)`;
  rows.replaceChildren(...state.shown.slice(first, last).map((index, at) => row(index, first + at)));
  const open = state.shown.indexOf(state.open);
  if (open >= first && open < last) list.setAttribute("aria-activedescendant", `row-${state.open}`);
  else list.removeAttribute("aria-activedescendant");
}

function row(index, place) {
  const one = cases[index], now = answer(index, state.arm), before = answer(index, state.against);
  const flip = flipOf(index);
  const verdict = (given) => (given ? el("span", { class: mark(given), text: given.status === "answered"
    ? verdictWords(given.verdict) : given.status.replace(/_/g, " ") }) : el("span", { text: "–" }));
  const line = el("span", { class: "meta" }, flip ? el("span", { class: `tag ${flip}`, text: flip }) : null, flip ? " " : null);
  if (before && state.against !== state.arm) line.append(verdict(before), " → ");
  line.append(verdict(now));
  if (now && now.margin !== null) line.append(el("span", { text: ` ${signed(now.margin)}` }));
  line.append(` · ${one.subset} · `, el("bdi", { class: "id", text: one.id })); /* last: ids may be long */
  return el("div", { class: "row", role: "option", id: `row-${index}`, "aria-selected": String(index === state.open),
    "aria-setsize": state.shown.length, "aria-posinset": place + 1, "data-case": one.id, onclick: () => open(index) },
    el("bdi", { class: "text", text: one.text }), line);
}

const mark = (given) => (given.right < 0 ? "" : given.right ? "right" : "wrong");

function step(by) {
  if (!state.shown.length) return;
  const at = state.shown.indexOf(state.open);
  const next = at < 0 ? (by > 0 ? 0 : state.shown.length - 1) : at + by;
  open(state.shown[Math.min(state.shown.length - 1, Math.max(0, next))]);
}

function reveal(index) {
  const at = state.shown.indexOf(index), list = byId("list");
  if (at < 0) return;
  if (at * ROW < list.scrollTop) list.scrollTop = at * ROW;
  else if ((at + 1) * ROW > list.scrollTop + list.clientHeight) list.scrollTop = (at + 1) * ROW - list.clientHeight;
}

function choices(select, options, value) {
  select.replaceChildren(...options.map(([key, words]) => el("option", { value: key, text: words })));
  select.value = value;
}

function fillFilters() {
  const distinct = (values) => [...new Set(values)];
  choices(byId("f-arm"), data.arms.map((arm) => [arm, arm]), state.arm);
  choices(byId("f-against"), data.arms.map((arm) => [arm, arm]), state.against);
  choices(byId("f-subset"), [["", "all subsets"], ...distinct(cases.map((one) => one.subset)).map((v) => [v, v])], "");
  const within = cases.filter((one) => !state.subset || one.subset === state.subset);
  choices(byId("f-scenario"), [["", "all scenarios"], ...distinct(within.map((one) => one.scenario)).filter(Boolean)
    .map((value) => [value, value])], state.scenario);
  byId("f-subset").value = state.subset;
  const seen = data.verdicts.map((verdict) => [`verdict:${verdict}`, `verdict ${verdictWords(verdict)}`]);
  const met = new Set(data.arms.flatMap((arm) => data.answers[arm].map((line) => (line ? line[0] : 0))));
  const unusual = data.statuses.filter((status, at) => status !== "answered" && met.has(at));
  choices(byId("f-outcome"), [["", "any outcome"], ["right:1", "right"], ["right:0", "wrong"], ["none", "not scored"], ...seen,
    ...unusual.map((status) => [`status:${status}`, status.replace(/_/g, " ")]),
    ...(data.attention ? [["attention", "with attention"]] : []), ["labelled", "labelled here"]], state.outcome);
}

function listen() {
  const filters = { "f-arm": "arm", "f-against": "against", "f-subset": "subset", "f-scenario": "scenario",
                    "f-outcome": "outcome", "f-flip": "flip", "f-sort": "sort" };
  for (const [id, key] of Object.entries(filters)) {
    byId(id).addEventListener("change", (event) => {
      state[key] = event.target.value;
      if (key === "subset") { state.scenario = ""; fillFilters(); }
      refilter();
      if ((key === "arm" || key === "against") && state.open !== null) open(state.open);
    });
  }
  byId("search").addEventListener("input", (event) => { state.words = event.target.value; refilter(); });
  byId("list").addEventListener("scroll", () => requestAnimationFrame(drawRows));
  byId("reset").addEventListener("click", () => {
    Object.assign(state, { subset: "", scenario: "", outcome: "", flip: "", words: "", sort: "moved" });
    byId("search").value = byId("f-flip").value = "";
    byId("f-sort").value = "moved";
    fillFilters();
    refilter();
  });
  document.addEventListener("keydown", keys);
}

function keys(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape" && event.target === byId("search")) return byId("list").focus();
  if (event.ctrlKey || event.metaKey || event.altKey || typing || document.querySelector("dialog[open]")) return;
  const inList = event.target === byId("list");
  const page = Math.max(1, Math.floor(byId("list").clientHeight / ROW) - 1);
  const moves = { j: 1, k: -1, ...(inList ? { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page,
                                               Home: -cases.length, End: cases.length } : {}) };
  if (event.key in moves) step(moves[event.key]);
  else if (event.key === "/") { byId("cases").scrollIntoView(); byId("search").focus(); }
  else if (event.key === "?") toggleHelp();
  else return;
  event.preventDefault();
}
