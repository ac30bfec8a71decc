// What scrolls must be reachable by keyboard.
for (const box of document.querySelectorAll(".highlight pre")) {
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", "Code");
}
for (const table of document.querySelectorAll(".content table.docutils")) table.tabIndex = 0;

// Longer lines would be too small to read on a phone: they are wrapped.
for (const box of document.querySelectorAll(".highlight-text")) {
  const columns = Math.max(...box.textContent.split("\n").map((line) => line.length));
  if (columns <= 88) box.style.setProperty("--columns", columns);
}

// Long names in a table may be broken at their parts.
for (const name of document.querySelectorAll(".content table .pre")) {
  name.innerHTML = name.innerHTML.replace(/[._/]+(?=\w)|[a-z](?=[A-Z])/g, "$&<wbr>");
}

// A figure opens alone, where it can be made larger.
for (const image of document.querySelectorAll(".content img")) {
  if (image.closest("a")) continue;
  const link = document.createElement("a");
  link.href = image.src;
  image.replaceWith(link);
  link.append(image);
}

// The theme leaves out of its captions what a screen reader asks of a heading.
for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.setAttribute("aria-level", "2");

// Where there is no room beside the text, the source waits to be asked for.
if (!window.matchMedia("(min-width: 105em)").matches) {
  for (const source of document.querySelectorAll("details.beside")) source.open = false;
}
