"use strict";
// The page is whole without this script; it adds sorting, values under the pointer, the choice of colours, and print.
(() => {
  const root = document.documentElement;
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  // A file opened from disk may have no storage: the choice then lasts as long as the page.
  const remember = (value) => { try { localStorage.setItem("mcit-theme", value); } catch { /* no storage */ } };
  const recall = () => { try { return localStorage.getItem("mcit-theme"); } catch { return null; } };
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches;
  const chosen = recall();
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;

  function addTheme() {
    const button = document.getElementById("theme");
    const label = () => { button.textContent = isDark() ? "Light" : "Dark"; };
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      remember(root.dataset.theme);
      label();
    });
    prefersDark.addEventListener("change", label);
    label();
  }

  function addUnfold() {
    const button = document.getElementById("unfold");
    const folds = all("details");
    button.addEventListener("click", () => {
      const open = folds.some((fold) => !fold.open);
      folds.forEach((fold) => { fold.open = open; });
      button.textContent = open ? "Fold all" : "Unfold all";
    });
    let closed = [];
    addEventListener("beforeprint", () => {
      closed = folds.filter((fold) => !fold.open && !fold.classList.contains("source"));
      closed.forEach((fold) => { fold.open = true; });
    });
    addEventListener("afterprint", () => { closed.forEach((fold) => { fold.open = false; }); });
  }

  // Numbers largest first, words from A; a second click turns the order, a third restores the first. Blanks stay last.
  function compare(column, ascending) {
    const key = (row) => {
      const cell = row.cells[column];
      const number = cell.dataset.value === undefined ? null : Number(cell.dataset.value);
      return { number, text: cell.textContent.trim() };
    };
    return (left, right) => {
      const a = key(left), b = key(right);
      if (!a.text || !b.text) return (a.text ? 0 : 1) - (b.text ? 0 : 1);
      if ((a.number === null) !== (b.number === null)) return a.number === null ? 1 : -1;
      const words = () => a.text.localeCompare(b.text, undefined, { numeric: true });
      const order = a.number === null ? words() : a.number - b.number;
      return ascending ? order : -order;
    };
  }

  function addSorting(table) {
    const body = [...table.tBodies].pop(), original = [...body.rows], heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const numeric = original.some((row) => row.cells[column].dataset.value !== undefined);
      const orders = numeric ? ["descending", "ascending", "none"] : ["ascending", "descending", "none"];
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const order = orders[(orders.indexOf(head.getAttribute("aria-sort")) + 1) % 3];
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", order);
        body.append(...(order === "none" ? original : [...original].sort(compare(column, order === "ascending"))));
      });
    });
  }

  function describeCell(cell) {
    const table = cell.closest("table"), column = cell.cellIndex, row = cell.parentNode;
    const heads = table.tHead.rows[0].cells, task = heads[column].textContent;
    const after = `after ${row.cells[0].textContent}`;
    if (cell.classList.contains("total")) return `A_t ${after}: ${cell.textContent} %`;
    const learned = table.tBodies[0].rows[column - 1].cells[column].textContent;
    const kept = cell.style.getPropertyValue("--kept");
    const parts = [`${task} ${after}: ${cell.textContent} %`];
    const later = row.sectionRowIndex >= column;
    if (later) parts.push(`${learned} % when learned`);
    const what = table.dataset.floor === "zero" ? "learned" : "above chance";
    if (later && cell.dataset.lost) parts.push(`${cell.dataset.lost} % of what was ${what} is lost`);
    if (!kept && table.tFoot) parts.push(`it was never ${what}`);
    return parts.join("; ");
  }

  function addTips() {
    const tip = document.createElement("div");
    tip.id = "tip";
    tip.setAttribute("role", "tooltip");
    tip.hidden = true;
    document.body.append(tip);
    all(".chart [title]").forEach((mark) => { mark.dataset.tip = mark.title; mark.removeAttribute("title"); });
    const show = (mark, text) => {
      tip.textContent = text;
      tip.hidden = false;
      const box = mark.getBoundingClientRect(), width = tip.offsetWidth, height = tip.offsetHeight;
      const left = Math.min(Math.max(8, box.left + box.width / 2 - width / 2), root.clientWidth - width - 8);
      const top = box.top - height - 8 < 4 ? box.bottom + 8 : box.top - height - 8;
      tip.style.left = `${left}px`;
      tip.style.top = `${top}px`;
    };
    const light = (mark) => {
      all(".lit").forEach((lit) => lit.classList.remove("lit"));
      const chart = mark && mark.closest(".chart");
      if (!chart) return;
      const series = all(`[data-series="${mark.dataset.series}"]`, chart);
      [chart, ...series].forEach((one) => one.classList.add("lit"));
    };
    document.addEventListener("pointerover", (event) => {
      const cell = event.target.closest(".matrix tbody td"), mark = event.target.closest("[data-tip]");
      light(event.target.closest("[data-series]"));
      if (mark) show(mark, mark.dataset.tip);
      else if (cell && cell.textContent) show(cell, describeCell(cell));
      else tip.hidden = true;
    });
    addEventListener("scroll", () => { tip.hidden = true; }, true);
  }

  function addColours() {
    all("input[name=colour]").forEach((choice) => choice.addEventListener("change", () => {
      root.dataset.colour = choice.value;
    }));
  }

  // A link to something folded away unfolds it.
  function followHash() {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    for (let fold = target; fold; fold = fold.parentElement) if (fold.tagName === "DETAILS") fold.open = true;
    if (target) target.scrollIntoView();
  }

  document.addEventListener("DOMContentLoaded", () => {
    addTheme();
    addUnfold();
    all("table.sortable").forEach(addSorting);
    addTips();
    addColours();
    followHash();
    addEventListener("hashchange", followHash);
    root.dataset.ready = "yes";
  });
})();
