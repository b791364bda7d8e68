/* People's verdicts: marked here, kept in this browser, exported as the CSV that task=rejudge reads. */
const LABELS_KEY = `forestlens labels ${data.run}`;
const labels = new Map();
try {
  for (const [key, value] of Object.entries(JSON.parse(localStorage.getItem(LABELS_KEY) || "{}"))) labels.set(key, value);
} catch { /* no storage from this place: labels last as long as the page */ }

const labelKey = (index, arm) => JSON.stringify([cases[index].id, arm]);
const labelledCase = (index) => data.arms.some((arm) => labels.has(labelKey(index, arm)));

function setLabel(index, arm, verdict) {
  if (verdict) labels.set(labelKey(index, arm), verdict);
  else labels.delete(labelKey(index, arm));
  try {
    localStorage.setItem(LABELS_KEY, JSON.stringify(Object.fromEntries(labels)));
  } catch { /* as above */ }
  countLabels();
}

function countLabels() {
  byId("labelled").textContent = labels.size ? `${labels.size} labelled` : "nothing labelled yet";
  byId("export").disabled = !labels.size;
}

function labeller(index, arm) {
  const given = answer(index, arm), said = labels.get(labelKey(index, arm)) || "";
  const group = el("div", { class: "labeller", role: "group", "aria-label": `your verdict on ${arm}` });
  const redraw = (pressed) => {
    const fresh = labeller(index, arm);
    group.replaceWith(fresh);
    fresh.querySelector(pressed).focus(); /* the keyboard stays where it was */
  };
  const right = el("button", { type: "button", class: "mark-right", "aria-pressed": String(said !== "" && said === given.verdict),
    disabled: !data.labels.includes(given.verdict), text: "verdict is right",
    onclick: () => { setLabel(index, arm, said === given.verdict ? "" : given.verdict); redraw(".mark-right"); } });
  const wrong = el("select", { class: "mark-wrong", "aria-label": `the verdict of ${arm} should be` },
    el("option", { value: "", text: "it should be …" }),
    ...data.labels.filter((verdict) => verdict !== given.verdict)
      .map((verdict) => el("option", { value: verdict, text: verdictWords(verdict) })));
  wrong.value = said && said !== given.verdict ? said : "";
  wrong.addEventListener("change", () => { setLabel(index, arm, wrong.value); redraw(".mark-wrong"); });
  group.append(right, wrong);
  return group;
}

/* A spreadsheet takes a cell that begins so for a formula; the importer takes the apostrophe away again. */
const cell = (value) => `"${(/^'*[=+\-@\t\r＝＋－＠]/.test(value) ? `'${value}` : value).replace(/"/g, '""')}"`;

function labelsAsCsv() {
  const lines = [["id", "annotator", "label", "judged"]];
  const who = byId("annotator").value.trim() || "reader";
  for (const [key, verdict] of labels) {
    const [id, arm] = JSON.parse(key);
    const index = cases.findIndex((one) => one.id === id), given = index < 0 ? null : answer(index, arm);
    if (given) lines.push([given.id, who, verdict, given.verdict || ""]);
  }
  return lines.map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
}

function listenLabels() {
  byId("export").addEventListener("click", () => download("labels.csv", "text/csv", labelsAsCsv()));
  countLabels();
}
