"use strict";

// A click on a column sorts its table, a second click reverses the order; empty cells stay last.

function compare(first, second) {
  if (isNaN(first) || isNaN(second)) return first.localeCompare(second);
  return first - second;
}

function sortTable(head, column, descending) {
  const body = head.closest("table").tBodies[0];
  const key = (row) => row.cells[column].dataset.key;
  const rows = [...body.rows];
  const full = rows.filter((row) => key(row) !== "");
  const empty = rows.filter((row) => key(row) === "");
  full.sort((first, second) => {
    const order = compare(key(first), key(second));
    return descending ? -order : order;
  });
  body.append(...full, ...empty);
}

for (const button of document.querySelectorAll(".sortable th button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement;
    const descending = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    sortTable(head, head.cellIndex, descending);
  });
}
