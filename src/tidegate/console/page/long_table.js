// A table of any length of which only the visible rows exist: 500 queues cost what a screenful costs.
//
// Rows have one height, so where a row stands follows from its number; two empty rows hold the place of
// those above and below. A row that stays visible keeps its element, so focus and hover stay where they are.

import { h, mark } from "./element.js";

const SPARE_ROWS = 6;

/** columns: {title, name, number, sort(row), make(cell) → update(row)}; `keyOf` tells rows apart. */
export class LongTable {
  #columns;
  #keyOf;
  #rows = [];
  #ordered = [];
  #filter = () => true;
  #sorted;
  #shown = new Map();
  #height = 34;
  #above = h("tr", { class: "gap", "aria-hidden": "true" }, h("td", {}));
  #below = h("tr", { class: "gap", "aria-hidden": "true" }, h("td", {}));
  #body = h("tbody");
  #heads = [];
  #scheduled = false;
  #isMeasured = false;
  element;

  constructor({ caption, columns, keyOf, sorted, signal }) {
    this.#columns = columns;
    this.#keyOf = keyOf;
    this.#sorted = sorted;
    this.#body.append(this.#above, this.#below);
    this.element = h("table", { class: "long" }, h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, columns.map((column, number) => this.#head(column, number)))), this.#body);
    addEventListener("scroll", () => this.#soon(), { passive: true, signal });
    addEventListener("resize", () => { this.#height = 0; this.#soon(); }, { signal });
    this.#showSorting();
  }

  /** What is there now. */
  set rows(rows) {
    this.#rows = rows;
    this.arrange();
  }

  set filter(filter) {
    this.#filter = filter;
    this.arrange(true);
  }

  get visibleCount() { return this.#ordered.length; }

  /** Filter and sort anew. While somebody points at a row or is in one, none jumps away. */
  arrange(anew = false) {
    const rows = this.#rows.filter(this.#filter);
    const isHeld = !anew && (this.#body.matches(":hover") || this.#body.contains(document.activeElement));
    if (isHeld) {
      const places = new Map(this.#ordered.map((row, place) => [this.#keyOf(row), place]));
      const placeOf = (row) => places.get(this.#keyOf(row)) ?? Infinity;
      rows.sort((one, other) => { const by = placeOf(one) - placeOf(other); return Number.isNaN(by) ? 0 : by; });
    } else {
      const { column, down } = this.#sorted;
      const valueOf = this.#columns[column].sort;
      const sign = down ? -1 : 1;
      rows.sort((one, other) => sign * compare(valueOf(one), valueOf(other)) || compare(this.#keyOf(one), this.#keyOf(other)));
    }
    this.#ordered = rows;
    mark(this.element, "aria-rowcount", String(rows.length + 1));
    this.#draw();
  }

  #soon() {
    if (this.#scheduled) return;
    this.#scheduled = true;
    requestAnimationFrame(() => { this.#scheduled = false; this.#draw(); });
  }

  #draw() {
    const top = this.#body.getBoundingClientRect().top;
    const height = this.#height || 34;
    const first = Math.max(0, Math.floor(-top / height) - SPARE_ROWS);
    const last = Math.max(0, Math.min(this.#ordered.length, Math.ceil((innerHeight - top) / height) + SPARE_ROWS));
    const wanted = this.#ordered.slice(Math.min(first, last), last);
    const keys = new Set(wanted.map(this.#keyOf));
    const free = [];
    for (const [key, line] of this.#shown) {
      if (!keys.has(key)) { free.push(line); this.#shown.delete(key); }
    }
    let before = this.#above;
    wanted.forEach((row, index) => {
      const key = this.#keyOf(row);
      let line = this.#shown.get(key);
      if (!line) {
        line = free.pop() ?? this.#line();
        this.#shown.set(key, line);
      }
      mark(line.element, "aria-rowindex", String(first + index + 2));
      for (const update of line.updates) update(row);
      if (before.nextSibling !== line.element) before.after(line.element);
      before = line.element;
    });
    for (const line of free) line.element.remove();
    this.#above.firstChild.style.height = `${Math.min(first, last) * height}px`;
    this.#below.firstChild.style.height = `${(this.#ordered.length - last) * height}px`;
    this.#measure();
  }

  #measure() {
    if (this.#height && this.#isMeasured) return;
    const height = this.#shown.values().next().value?.element.getBoundingClientRect().height;
    if (!height) return;
    this.#isMeasured = true;
    if (Math.abs(height - this.#height) > 0.5) { this.#height = height; this.#soon(); }
  }

  #line() {
    const updates = [];
    const cells = this.#columns.map((column) => {
      const cell = h(column.isHeader ? "th" : "td", { class: classOf(column), scope: column.isHeader ? "row" : null });
      updates.push(column.make(cell));
      return cell;
    });
    return { element: h("tr", {}, cells), updates };
  }

  #head(column, number) {
    const button = h("button", { type: "button", class: "sort", onclick: () => this.#sortBy(number) }, column.title);
    const head = h("th", { scope: "col", class: classOf(column) }, button);
    this.#heads.push(head);
    return head;
  }

  #sortBy(column) {
    const { column: before, down } = this.#sorted;
    this.#sorted = { column, down: column === before ? !down : Boolean(this.#columns[column].number) };
    this.#showSorting();
    this.arrange(true);
  }

  #showSorting() {
    this.#heads.forEach((head, number) => {
      if (number === this.#sorted.column) head.setAttribute("aria-sort", this.#sorted.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }
}

function classOf(column) {
  return [column.name, column.number ? "number" : ""].filter(Boolean).join(" ");
}

/** What is not known comes first, as the smallest. */
function compare(one, other) {
  const a = one ?? -Infinity;
  const b = other ?? -Infinity;
  return a < b ? -1 : a > b ? 1 : 0;
}

/** A column that shows a text. */
export function textColumn(title, name, textOf, options = {}) {
  return {
    title, name, ...options,
    make(cell) {
      let before;
      return (row) => {
        const text = textOf(row);
        if (text !== before) { cell.textContent = text; before = text; }
      };
    },
  };
}
