"use strict";
// The page is complete without this script; it makes tables sortable and unfolds everything for print.
document.addEventListener("DOMContentLoaded", () => {
  // Numbers go first and blanks last, whichever way the rest is sorted.
  const compare = (column, sign) => (left, right) => {
    const [a, b] = [left, right].map((row) => row.cells[column]);
    const [x, y] = [a, b].map((cell) => Number(cell.dataset.value ?? NaN));
    if (isNaN(x) && isNaN(y)) return sign * a.textContent.localeCompare(b.textContent, undefined, { numeric: true });
    return isNaN(x) - isNaN(y) || sign * (x - y);
  };

  function makeSortable(table) {
    const body = [...table.tBodies].pop();
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const order = head.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", order);
        body.append(...[...body.rows].sort(compare(column, order === "ascending" ? 1 : -1)));
      });
    });
  }

  document.querySelectorAll("table.sortable").forEach(makeSortable);
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((fold) => { fold.open = true; }));
  document.documentElement.dataset.ready = "yes";
});
