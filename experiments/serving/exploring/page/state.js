/* What the page knows, how it asks the server, and the address that holds the experiment. */
const tab = Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
const NOTHING = { cut: null, grey: [], attention: 0, attended: null };
const state = {
  token: "", known: null, picture: null, other: null, text: "", framed: true, arms: [{ name: "baseline", settings: {} }],
  change: structuredClone(NOTHING), asked: null, answers: [], changed: null, looked: null, arm: 0, token_at: 0, layer: null, group: 0,
  last: null, results: {}, tried: new Map(), working: null,
};

const say = (words) => { byId("said").textContent = words; };
const copyOf = (value) => JSON.parse(JSON.stringify(value));

async function api(name, body, signal) {
  const reply = await fetch(`api/${name}`, { method: "POST", signal, body: JSON.stringify(body === undefined ? null : body),
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${state.token}` } });
  if (reply.status === 401 && !byId("key").open) byId("key").showModal();
  if (!reply.ok) throw new Error((await reply.json().catch(() => ({}))).error || `the server said ${reply.status}`);
  return reply;
}
const ask = async (name, body) => (await api(name, body)).json();

/* How far the work is: of as many forwards as the same took the last time, where there was one. */
const usual = {};
function progressed(action, forwards) {
  const bar = byId("progress"), all = usual[action];
  bar.hidden = false;
  if (all) Object.assign(bar, { max: all, value: Math.min(all, forwards) });
  else bar.removeAttribute("value");
  byId("waiting").textContent = `working … ${forwards}${all ? ` of ${all}` : ""} forwards`;
}

/* One piece of work for the model; on is told each event. A newer one takes the place of an older one. */
async function work(experiment, on = () => {}) {
  if (state.working) state.working.abort();
  const control = new AbortController();
  state.working = control;
  byId("stop").hidden = false;
  try {
    const reply = await api("work", { tab, experiment }, control.signal);
    const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the server ended before the answer");
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        const event = JSON.parse(line);
        if ("waiting" in event) {
          byId("waiting").textContent = event.loading ? "the model is being loaded …" : event.waiting ? `${event.waiting} before this one` : "";
        } else if (event.begun) byId("waiting").textContent = "working …";
        else if ("done" in event) {
          usual[experiment.action] = event.forwards;
          return event.done;
        } else if ("forwards" in event) progressed(experiment.action, event.forwards);
        else if ("error" in event) throw new Error(event.error);
        else on(event);
      }
    }
  } catch (error) {
    throw error.name === "AbortError" ? new Error("stopped") : error;
  } finally {
    if (state.working === control) {
      state.working = null;
      byId("waiting").textContent = "";
      byId("stop").hidden = byId("progress").hidden = true;
    }
  }
}

/* The experiment as the server reads it; what looks closer looks at what was asked last. */
function experiment(action) {
  const here = { picture: state.picture ? state.picture.name : "", text: state.text, framed: state.framed, arms: copyOf(state.arms), tokens: state.known.tokens };
  const asked = action === "ask" || !state.asked ? here : state.asked;
  return { ...asked, action, arm: state.arm, change: NOTHING, other: state.other ? state.other.name : "" };
}

/* Everything tried on one picture and question counts, whatever it showed. */
const caseKey = () => JSON.stringify([state.picture && state.picture.name, state.text]);
function count() {
  state.tried.set(caseKey(), (state.tried.get(caseKey()) || 0) + 1);
  return triedWords();
}
function triedWords() {
  const times = state.tried.get(caseKey()) || 0;
  return times ? `${times} ${times === 1 ? "change" : "changes"} tried on this case` + (times > 4 ? ": among so many, some effect is likely by chance" : "") : "";
}

/* The address: the report's #case=…&arm=…, and whatever differs from a plain question. */
function remember() {
  const kept = new URLSearchParams();
  const name = state.picture ? state.picture.name : "";
  if (name.startsWith("case:")) kept.set("case", name.slice(5));
  else if (name) kept.set("picture", name);
  kept.set("arm", state.arms[state.arms.length - 1].name);
  const more = { text: state.text, framed: state.framed, arms: state.arms, other: state.other ? state.other.name : "" };
  if (JSON.stringify(state.change) !== JSON.stringify(NOTHING)) more.change = state.change;
  kept.set("more", JSON.stringify(more));
  history.replaceState(null, "", `#${kept}`);
}

function recalled() {
  const found = new URLSearchParams(location.hash.slice(1));
  const given = found.get("token");
  try {
    if (given) sessionStorage.setItem("forestlens token", given);
    state.token = given || sessionStorage.getItem("forestlens token") || "";
  } catch { state.token = given || ""; } /* a frame without storage */
  let more = {};
  try { more = JSON.parse(found.get("more") || "{}"); } catch { /* an address cut short is a plain one */ }
  if (given) history.replaceState(null, "", location.pathname);
  return { name: found.has("case") ? `case:${found.get("case")}` : found.get("picture"), arm: found.get("arm"), ...more };
}
