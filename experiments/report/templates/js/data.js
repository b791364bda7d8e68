/* The run's data as the page uses it. */
const data = JSON.parse(document.getElementById("data").textContent);
const cases = data.cases;
const state = { arm: data.studied, against: data.reference, subset: "", scenario: "", outcome: "", flip: "", words: "",
                sort: "moved", open: null, shown: [], layer: null };

/* An arm's answer to a case, null where it has none: {status, verdict, margin, text, cut, right, why, prompt, id, steps}. */
function answer(index, arm) {
  const row = (data.answers[arm] || [])[index];
  if (!row) return null;
  const [status, verdict, margin, text, cut, right, why, prompt, id, steps] = row;
  const words = (at) => (at < 0 ? "" : data.texts[at]);
  return { status: data.statuses[status], verdict: verdict < 0 ? null : data.verdicts[verdict], margin,
           text: words(text), cut, right, why: words(why), prompt: words(prompt), id: words(id),
           steps: (steps || []).map(([name, said]) => [words(name), words(said)]) };
}

const verdictWords = (verdict) => (verdict === null ? "none" : data.words[verdict] || verdict.replace(/_/g, " "));

function flipOf(index) {
  const now = answer(index, state.arm), before = answer(index, state.against);
  if (!now || !before || now.right < 0 || before.right < 0) return "";
  if (now.right === before.right) return now.verdict === before.verdict ? "" : "changed";
  return now.right ? "fixed" : "broken";
}

function say(words) {
  byId("said").textContent = words;
}
