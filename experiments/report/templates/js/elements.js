/* Small helpers that the report and the page of task=explore share. Text only ever becomes textContent. */
const byId = (id) => document.getElementById(id);

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "text") node.textContent = value;
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

/* A custom property of the page: its colours are written once, in experiments/report/colours.py. */
const property = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/* Two decimals with a true minus sign; a rounded zero carries no sign. */
function signed(value) {
  if (value === null) return "–";
  const size = Math.abs(value).toFixed(2);
  return Number(size) === 0 ? size : (value < 0 ? "−" : "+") + size;
}

function download(name, type, text) {
  const link = el("a", { download: name, href: URL.createObjectURL(new Blob([text], { type })) });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
