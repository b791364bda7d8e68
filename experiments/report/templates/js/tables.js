/* Copies of the tables, which come with the page in three forms; charts as SVG files; what is folded away. */
async function copy(name, words) {
  const area = byId("copied");
  area.value = words;
  try {
    await navigator.clipboard.writeText(words);
    say(`table copied as ${name}`);
  } catch {
    byId("copy").showModal(); /* a page from disk may not reach the clipboard everywhere: select it for the reader */
    area.select();
  }
}

function offerTables() {
  for (const table of document.querySelectorAll("main table[data-copies]")) {
    const bar = el("p", { class: "copy small" }, "copy as ");
    for (const [name, words] of Object.entries(JSON.parse(table.dataset.copies))) {
      bar.append(el("button", { type: "button", text: name, onclick: () => copy(name, words) }), " ");
    }
    table.closest(".wide").after(bar);
  }
}

/* A table that is wider than its place can be scrolled with the keyboard too. */
function reachWide() {
  for (const place of document.querySelectorAll(".wide")) {
    const wide = place.scrollWidth > place.clientWidth;
    for (const [name, value] of [["tabindex", "0"], ["role", "group"], ["aria-label", "a wide table"]]) {
      if (wide) place.setAttribute(name, value);
      else place.removeAttribute(name);
    }
  }
}

function offerCharts() {
  for (const figure of document.querySelectorAll("main figure")) {
    const image = figure.querySelector('img[src^="data:image/svg+xml"]');
    if (!image) continue;
    const link = el("a", { href: image.getAttribute("src"), download: `${figure.dataset.name || "figure"}.svg`, text: "save as SVG" });
    figure.querySelector("figcaption").append(" ", link);
  }
}

/* Every "How to read this" at once: opened where any is shut, else shut. */
function toggleHelp() {
  const all = [...document.querySelectorAll("details.how")], shut = all.some((one) => !one.open);
  for (const one of all) one.open = shut;
  say(shut ? "every “How to read this” is open" : "every “How to read this” is shut");
}

function listenFolds() {
  reachWide();
  addEventListener("resize", reachWide);
  document.addEventListener("toggle", reachWide, true);
  for (const button of document.querySelectorAll("[data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
  /* A link to what is folded away opens it. */
  const unfold = () => {
    const wanted = location.hash.startsWith("#case=") ? null : document.getElementById(location.hash.slice(1));
    if (wanted && wanted.tagName === "DETAILS") wanted.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();
  let unfolded = []; /* paper has no triangles to click; the screen gets its own back */
  addEventListener("beforeprint", () => {
    for (const image of document.images) image.decoding = "sync"; /* what was folded until now is there at once */
    const wanted = "details.fold:not(#run details), #arms details:not(.how), #refusals details:not(.how)";
    unfolded = [...document.querySelectorAll(wanted)].filter((part) => !part.open);
    for (const part of unfolded) part.open = true;
  });
  addEventListener("afterprint", () => { for (const part of unfolded) part.open = false; });
}
