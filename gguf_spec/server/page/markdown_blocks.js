/**
 * Markdown, blocks: a text becomes a list of plain objects, one for each paragraph, heading, list,
 * quotation, table, rule or piece of code. Each holds the lines that it came from.
 */

const MAX_DEPTH = 8; // levels of lists and quotations inside of others; deeper ones stay text
const MAX_LINES = 60; // of a formula
const FENCE = /^ {0,3}(`{3,}|~{3,})([^\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const QUOTE = /^ {0,3}>/;
const ITEM = /^([ \t]*)([-*+]|\d{1,9}[.)])(?:[ \t]+(?=\S)|[ \t]*$)/;
const COLUMN = /^:?-+:?$/;

/** Return the blocks of a text. */
export function parseBlocks(text) {
  return parse(text.replaceAll("\r\n", "\n").split("\n"), 0);
}

function parse(lines, depth) {
  const blocks = [];
  const readers = depth < MAX_DEPTH ? [...LEAVES, quotation, list] : LEAVES;
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    let block = null;
    for (const read of readers) {
      block = read(lines, at, depth);
      if (block) break;
    }
    block ??= paragraph(lines, at, depth);
    block.source = lines.slice(at, block.end).join("\n");
    blocks.push(block);
    at = block.end;
  }
  return blocks;
}

const LEAVES = [code, math, heading, rule, table];

function code(lines, at) {
  const open = FENCE.exec(lines[at]);
  if (!open || (open[1][0] === "`" && open[2].includes("`"))) return null;
  const indent = indentOf(lines[at]);
  const body = [];
  let end = at + 1;
  let closed = false;
  while (end < lines.length && !closed) {
    closed = isClosing(lines[end], open[1]);
    if (!closed) body.push(outdent(lines[end], indent));
    end += 1;
  }
  const language = open[2].trim().split(/\s/, 1)[0].slice(0, 40);
  return { kind: "code", language, text: body.join("\n"), end };
}

/** Read a formula of its own, between `$$` or `\\[` and `\\]`, over several lines or in one. */
function math(lines, at) {
  const open = /^ {0,3}(\$\$|\\\[)/.exec(lines[at]);
  if (!open) return null;
  const close = open[1] === "$$" ? "$$" : "\\]";
  const text = [lines[at].slice(open[0].length)];
  for (let end = at + 1; ; end += 1) {
    const last = text.at(-1).trimEnd();
    if (last.endsWith(close)) {
      text[text.length - 1] = last.slice(0, -close.length);
      return { kind: "math", text: text.join("\n").trim(), end };
    }
    if (end - at > MAX_LINES || last.includes(close) || !lines[end]?.trim()) return null;
    text.push(lines[end]);
  }
}

function isClosing(line, fence) {
  const trimmed = line.trim();
  return indentOf(line) < 4 && trimmed.length >= fence.length && isAll(trimmed, fence[0]);
}

function isAll(text, sign) {
  for (const one of text) if (one !== sign) return false;
  return true;
}

function heading(lines, at) {
  const match = HEADING.exec(lines[at]);
  if (!match) return null;
  let text = lines[at].slice(match[0].length).trim();
  let last = text.length;
  while (text[last - 1] === "#") last -= 1;
  if (last === 0 || /\s/.test(text[last - 1])) text = text.slice(0, last).trim();
  return { kind: "heading", level: match[1].length, text, end: at + 1 };
}

function rule(lines, at) {
  return RULE.test(lines[at]) ? { kind: "rule", end: at + 1 } : null;
}

function table(lines, at) {
  if (!lines[at].includes("|") || !lines[at + 1]?.includes("-")) return null;
  const marks = cellsOf(lines[at + 1]);
  const head = cellsOf(lines[at]);
  if (marks.length !== head.length || !marks.every((one) => COLUMN.test(one))) return null;
  const aligned = marks.map((one) =>
    one.endsWith(":") ? (one.startsWith(":") ? "center" : "end") : "start",
  );
  const rows = [];
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) {
    const cells = cellsOf(lines[end]);
    rows.push(head.map((_, i) => cells[i] ?? ""));
    end += 1;
  }
  return { kind: "table", head, aligned, rows, end };
}

/** Split a row of a table; `\|` and bars in code do not end a cell. */
function cellsOf(line) {
  const cells = [];
  let cell = "";
  let inCode = false;
  const text = line.trim().replace(/^\|/, "");
  for (let i = 0; i < text.length; i += 1) {
    if (text[i] === "`") inCode = !inCode;
    if (text[i] === "\\" && text[i + 1] === "|") {
      cell += "|";
      i += 1;
    } else if (text[i] === "|" && !inCode) {
      cells.push(cell.trim());
      cell = "";
    } else cell += text[i];
  }
  if (cell.trim()) cells.push(cell.trim());
  return cells;
}

function quotation(lines, at, depth) {
  if (!QUOTE.test(lines[at])) return null;
  const inner = [];
  let end = at;
  while (end < lines.length && lines[end].trim()) {
    const quoted = QUOTE.exec(lines[end]);
    if (!quoted && begins(lines, end)) break;
    inner.push(quoted ? lines[end].slice(quoted[0].length).replace(/^ /, "") : lines[end]);
    end += 1;
  }
  return { kind: "quotation", blocks: parse(inner, depth + 1), end };
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  if (!first) return null;
  const base = indentOf(lines[at]);
  const sign = first[2].at(-1); // another sign begins another list
  const items = [];
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    if (!item || item[2].at(-1) !== sign || indentOf(lines[end]) > base + 1) break;
    const body = [lines[end].slice(item[0].length)];
    const stop = endOfItem(lines, end + 1, base);
    const indent = Math.max(item[0].length, base + 2);
    for (const line of lines.slice(end + 1, stop)) body.push(outdent(line, indent));
    while (body.length > 1 && !body.at(-1).trim()) body.pop();
    items.push(parse(body, depth + 1));
    end = stop;
    while (end < lines.length && !lines[end].trim()) end += 1;
  }
  const number = Number.parseInt(first[2], 10);
  return { kind: "list", start: Number.isNaN(number) ? null : number, items, end };
}

/** Return the first line after an item: one that is not indented, and begins something new. */
function endOfItem(lines, from, base) {
  let end = from;
  let afterBlank = false;
  for (; end < lines.length; end += 1) {
    const blank = !lines[end].trim();
    const inside = indentOf(lines[end]) >= base + 2;
    if (!blank && !inside && (afterBlank || begins(lines, end))) break;
    afterBlank = blank;
  }
  while (end > from && !lines[end - 1].trim()) end -= 1;
  return end;
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !begins(lines, end, depth)) end += 1;
  const text = lines.slice(at, end).join("\n").trimEnd();
  return { kind: "paragraph", text: text.replace(/^\n+/, ""), end };
}

/** Return whether a block other than a paragraph begins in a line. */
function begins(lines, at, depth = 0) {
  const line = lines[at];
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line)) return true;
  if (depth < MAX_DEPTH && (QUOTE.test(line) || ITEM.test(line))) return true;
  return table(lines.slice(at, at + 2), 0) !== null;
}

/** Return the number of columns of white space that a line begins with; a tab has four. */
function indentOf(line) {
  let columns = 0;
  for (const one of line) {
    if (one === " ") columns += 1;
    else if (one === "\t") columns += 4;
    else break;
  }
  return columns;
}

/** Remove at most so many columns of white space from the beginning of a line. */
function outdent(line, most) {
  let [columns, at] = [0, 0];
  while (at < line.length && columns < most && (line[at] === " " || line[at] === "\t")) {
    columns += line[at] === "\t" ? 4 : 1;
    at += 1;
  }
  return line.slice(at);
}
