"use strict";
(() => {
  const says = document.getElementById("says");
  if (says) says.hidden = false;
  const SIGNS = {0: "within its budget", 1: "more than its budget", 9: "not a number", "-": "not shown"};
  const told = (cell) => {
    const title = cell.querySelector("title");
    if (title) return title.textContent;
    const sign = [...cell.classList].find((name) => /^s.$/.test(name)).slice(1);
    const how = SIGNS[sign] || `10^${2 * sign - 2} budgets or more`;
    return `token ${cell.dataset.token}: ${how}`;
  };
  const cells = (map) => [...map.querySelectorAll("[role=gridcell]")];
  const focused = (map, cell) => {
    const before = map.querySelector("[role=gridcell][tabindex='0']");
    if (before) before.setAttribute("tabindex", "-1");
    cell.setAttribute("tabindex", "0");
  };
  const tell = (cell) => {
    if (!cell) return;
    const text = told(cell);
    if (!cell.querySelector("title")) cell.setAttribute("aria-label", text);
    if (says) says.textContent = text;
  };
  const begin = (map) => {
    const first = map.querySelector("[role=gridcell]:is(.s1,.s2,.s3,.s4,.s5,.s6,.s7,.s8,.s9)") || map.querySelector("[role=gridcell]");
    if (first) focused(map, first);
    map.addEventListener("pointerover", (event) => tell(event.target.closest("[role=gridcell]")));
    map.addEventListener("focusin", (event) => tell(event.target.closest("[role=gridcell]")));
    map.addEventListener("keydown", (event) => {
      const here = event.target.closest("[role=gridcell]");
      const every = cells(map);
      const rows = [...map.querySelectorAll("[role=row]")];
      const at = every.indexOf(here);
      const row = rows.indexOf(here && here.closest("[role=row]"));
      const column = row < 0 ? 0 : cells(rows[row]).indexOf(here);
      const in_row = (number) => {
        const its = rows[number] ? cells(rows[number]) : [];
        return its[Math.min(column, its.length - 1)];
      };
      const next = {
        ArrowRight: every[at + 1],
        ArrowLeft: every[at - 1],
        ArrowDown: in_row(row + 1),
        ArrowUp: in_row(row - 1),
        Home: every[0],
        End: every[every.length - 1],
      }[event.key];
      if (!next) return;
      event.preventDefault();
      focused(map, next);
      next.setAttribute("tabindex", "0");
      next.focus();
    });
  };
  for (const map of document.querySelectorAll("svg.tokens")) begin(map);
  tell(document.querySelector("details.map [role=gridcell][tabindex='0']"));
  // What was left out of the file for its size is drawn like the first map, with other signs.
  for (const details of document.querySelectorAll("details.map")) {
    details.addEventListener("toggle", () => {
      const place = details.querySelector(".undrawn");
      const model = document.querySelector("details.map svg.tokens");
      if (!details.open || !place || !model) return;
      const map = model.cloneNode(true);
      map.setAttribute("aria-label", details.dataset.key);
      for (const cell of map.querySelectorAll("[data-token]")) {
        cell.setAttribute("class", `cell s${details.dataset.signs[cell.dataset.token]}`);
      }
      const scroll = document.createElement("div");
      scroll.className = "scroll";
      scroll.append(map);
      place.replaceWith(scroll);
      begin(map);
    });
  }
  for (const button of document.querySelectorAll("button[data-copies]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copies).textContent;
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        const field = document.createElement("textarea");
        field.value = text;
        document.body.append(field);
        field.select();
        document.execCommand("copy");
        field.remove();
      }
      button.textContent = "Copied";
    });
  }
})();
