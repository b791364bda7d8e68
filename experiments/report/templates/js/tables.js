/* Copies of the tables, which come with the page in three forms; charts as SVG files; the help drawer. */
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

function offerCharts() {
  for (const figure of document.querySelectorAll("main figure")) {
    const image = figure.querySelector('img[src^="data:image/svg+xml"]');
    if (!image) continue;
    const link = el("a", { href: image.getAttribute("src"), download: `${figure.dataset.name || "figure"}.svg`, text: "save as SVG" });
    figure.querySelector("figcaption").append(" ", link);
  }
}

function listenHelp() {
  for (const button of document.querySelectorAll("[data-open]")) {
    button.addEventListener("click", () => byId(button.dataset.open).showModal());
  }
  for (const button of document.querySelectorAll("[data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
  let unfolded = []; /* paper has no triangles to click; the screen gets its own back */
  addEventListener("beforeprint", () => {
    unfolded = [...document.querySelectorAll("details.print, #arms details, #paired details, #refusals details")].filter((part) => !part.open);
    for (const part of unfolded) part.open = true;
  });
  addEventListener("afterprint", () => { for (const part of unfolded) part.open = false; });
}
