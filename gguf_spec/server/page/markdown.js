/** Show a text in Markdown as elements. Nothing of the text becomes markup, nothing is loaded. */

import { copyFrom, make, makeButton } from "./dom.js";
import { appendCode } from "./highlight.js";
import { parseBlocks } from "./markdown_blocks.js";
import { appendInline } from "./markdown_inline.js";
import { renderMath } from "./math.js";

/** Shows a text that grows; what is already there stays, so that it can be selected and copied. */
export class MarkdownView {
  constructor() {
    this.place = make("div", "text");
    this.sources = []; // source of each block that is shown
  }

  show(text) {
    const blocks = parseBlocks(text);
    let same = 0;
    while (same < blocks.length && blocks[same].source === this.sources[same]) same += 1;
    while (this.place.childNodes.length > same) this.place.lastChild.remove();
    for (const block of blocks.slice(same)) this.place.append(render(block));
    this.sources = blocks.map((block) => block.source);
  }
}

function render(block) {
  return RENDERERS[block.kind](block);
}

const RENDERERS = {
  paragraph: (block) => inline("p", block.text),
  // The page itself has headings of the levels 1 and 2.
  heading: (block) => inline(`h${Math.min(6, block.level + 2)}`, block.text),
  rule: () => make("hr"),
  code: renderCode,
  math: (block) => withMath(block.text),
  quotation: (block) => withBlocks(make("blockquote"), block.blocks),
  list: renderList,
  table: renderTable,
};

function inline(tag, text) {
  const element = make(tag);
  appendInline(element, text);
  return element;
}

function withBlocks(element, blocks) {
  element.append(...blocks.map(render));
  return element;
}

function renderCode({ language, text }) {
  const place = make("figure", "code");
  const head = make("figcaption", "", language || "text");
  head.append(makeButton("Copy", (button) => copyFrom(button, text)));
  const body = make("pre");
  body.tabIndex = 0; // wide code can be scrolled with the keyboard
  body.setAttribute("role", "group");
  body.setAttribute("aria-label", `Code, ${language || "text"}`);
  const code = make("code");
  appendCode(code, language, text);
  body.append(code);
  place.append(head, body);
  return place;
}

function withMath(text) {
  const place = make("div", "table"); // a wide one can be scrolled
  place.tabIndex = 0;
  place.append(renderMath(text, true));
  return place;
}

function renderList({ start, items }) {
  const place = make(start === null ? "ul" : "ol");
  if (start !== null && start !== 1) place.start = start;
  for (const blocks of items) place.append(renderItem(blocks));
  return place;
}

function renderItem([first, ...rest]) {
  const item = make("li");
  if (first?.kind === "paragraph") {
    const box = /^\[([ xX])\] /.exec(first.text);
    if (box) item.append(box[1] === " " ? "☐ " : "☑ ");
    appendInline(item, box ? first.text.slice(4) : first.text);
  } else if (first) item.append(render(first));
  return withBlocks(item, rest);
}

function renderTable({ head, aligned, rows }) {
  const table = make("table");
  const addRow = (part, tag, cells) => {
    const row = part.insertRow();
    cells.forEach((text, i) => {
      const cell = inline(tag, text);
      if (tag === "th") cell.scope = "col";
      cell.classList.add(aligned[i]);
      row.append(cell);
    });
  };
  addRow(table.createTHead(), "th", head);
  const body = table.createTBody();
  for (const cells of rows) addRow(body, "td", cells);
  const place = make("div", "table");
  place.tabIndex = 0;
  place.setAttribute("role", "group");
  place.setAttribute("aria-label", "Table");
  place.append(table);
  return place;
}
