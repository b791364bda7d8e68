/* What is worth keeping: the numbers, a picture, the address. */
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
