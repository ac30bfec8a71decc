// What scrolls must be reachable by keyboard.
for (const box of document.querySelectorAll(".highlight pre")) {
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", "Code");
}
for (const table of document.querySelectorAll(".content table.docutils")) table.tabIndex = 0;

// The theme leaves out of its captions what a screen reader asks of a heading.
for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.setAttribute("aria-level", "2");

// Where there is no room beside the text, the source waits to be asked for.
if (!window.matchMedia("(min-width: 75em)").matches) {
  for (const source of document.querySelectorAll("details.beside")) source.open = false;
}
