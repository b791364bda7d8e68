/* Tables as Markdown, CSV and LaTeX; charts as SVG files; the help drawer. */
const text = (node) => node.textContent.replace(/\s+/g, " ").trim();
/* Lines of cells; one that spans several columns is followed by empty ones, so that every line has as many. */
const grid = (table) => [...table.rows].map((line) => [...line.cells].flatMap((one) => [text(one), ...Array(one.colSpan - 1).fill("")]));

const IN_LATEX = { "−": "$-$", "′": "$'$", "–": "--", "…": "\\dots{}", "×": "$\\times$", "Δ": "$\\Delta$", "α": "$\\alpha$",
                   "β": "$\\beta$" };

const FORMS = {
  Markdown: (lines) => lines.map((line, at) => `| ${line.map((value) => value.replace(/[\\|<]/g, "\\$&")).join(" | ")} |`
    + (at ? "" : `\n|${" --- |".repeat(line.length)}`)).join("\n"),
  CSV: (lines) => lines.map((line) => line.map(cell).join(",")).join("\r\n"),
  LaTeX: (lines) => {
    const escaped = (value) => value.replace(/[\\&%$#_{}~^]/g, (sign) => ({ "\\": "\\textbackslash{}", "~": "\\textasciitilde{}",
      "^": "\\textasciicircum{}" }[sign] || `\\${sign}`))
      .replace(/[−′–…×Δαβ]/g, (sign) => IN_LATEX[sign]); /* by a function: in a string "$'" would be what follows the sign */
    const rows = lines.map((line) => `${line.map(escaped).join(" & ")} \\\\`);
    return [`\\begin{tabular}{l${"r".repeat(Math.max(0, lines[0].length - 1))}}`, "\\toprule", rows[0], "\\midrule",
      ...rows.slice(1), "\\bottomrule", "\\end{tabular}"].join("\n");
  },
};

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
  for (const table of document.querySelectorAll("main table")) {
    const bar = el("p", { class: "copy small" }, "copy as ");
    for (const [name, form] of Object.entries(FORMS)) {
      bar.append(el("button", { type: "button", text: name, onclick: () => copy(name, form(grid(table))) }), " ");
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
