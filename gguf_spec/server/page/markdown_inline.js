/**
 * Markdown inside of a line: code, emphasis, links. Everything becomes text nodes and elements of
 * a fixed set; markup in the text stays text. Images are not loaded. The time is about linear in
 * the length of any text, because each search that fails is remembered.
 */

import { make } from "./dom.js";
import { renderMath } from "./math.js";

const MAX_DEPTH = 8; // levels of emphasis inside of emphasis
const MAX_LABEL = 300; // characters of the text of a link
const MAX_TEXT = 20000; // longer texts are shown as they are
const MAX_URL = 2000;
const SCHEMES = new Set(["http:", "https:", "mailto:"]);
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const SPECIAL = /[\\`*_~[!<h$]/g; // characters that may begin something other than text
const WORD = /[\p{L}\p{N}]/u;

/**
 * Append a text in Markdown to an element.
 *
 * @param {number} depth levels of emphasis around the text
 * @param {boolean} links whether it may hold links: a link may not hold others
 */
export function appendInline(parent, text, depth = 0, links = true) {
  if (depth > MAX_DEPTH || text.length > MAX_TEXT) {
    parent.append(text);
    return;
  }
  const reader = new Reader(text, depth, links);
  let plain = ""; // text that is not appended yet
  let at = 0;
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text)?.index ?? text.length;
    plain += text.slice(at, next);
    at = next;
    if (at === text.length) break;
    const found = reader.read(at);
    if (!found) {
      plain += text[at];
      at += 1;
    } else if (typeof found.node === "string") {
      plain += found.node;
      at = found.end;
    } else {
      parent.append(plain, found.node);
      plain = "";
      at = found.end;
    }
  }
  if (plain) parent.append(plain);
}

/** Return the address if a link may lead there; null for scripts, files and relative addresses. */
export function safeUrl(text) {
  try {
    const url = new URL(text);
    return SCHEMES.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** Reads what begins at a position of a text; remembers searches that failed. */
class Reader {
  constructor(text, depth, links) {
    this.text = text;
    this.depth = depth;
    this.links = links;
    this.failed = new Set(); // delimiters without an end in the rest of the text
    this.spans = findCode(text);
  }

  /** Return `{node, end}`, or null where nothing but a character of text begins. */
  read(at) {
    switch (this.text[at]) {
      case "\\":
        return this.math(at, "\\(", "\\)") ?? this.math(at, "\\[", "\\]") ?? this.escape(at);
      case "$":
        return this.math(at, "$$", "$$") ?? this.dollars(at);
      case "`":
        return this.code(at);
      case "!":
        return this.text[at + 1] === "[" ? this.link(at + 1, true) : null;
      case "[":
        return this.link(at, false);
      case "<":
        return this.angle(at);
      case "h":
        return this.bareUrl(at);
      default:
        return this.emphasis(at);
    }
  }

  escape(at) {
    const next = this.text[at + 1];
    return next && PUNCTUATION.test(next) ? { node: next, end: at + 2 } : null;
  }

  /** Read a formula between two delimiters. */
  math(at, open, close) {
    const from = at + open.length;
    if (!this.text.startsWith(open, at) || this.failed.has(close)) return null;
    const end = this.text.indexOf(close, from);
    if (end < 0) this.failed.add(close);
    if (end <= from) return null;
    const node = renderMath(this.text.slice(from, end).trim(), open !== "\\(");
    return { node, end: end + close.length };
  }

  /** Read `$x$`, but not two amounts of money: no blank inside of the signs, no digit behind. */
  dollars(at) {
    if (this.failed.has("$") || !/[^\s$]/.test(this.text[at + 1] ?? " ")) return null;
    const end = this.text.indexOf("$", at + 1);
    if (end < 0) this.failed.add("$");
    if (end < 0 || /\s/.test(this.text[end - 1]) || /[\d$]/.test(this.text[end + 1] ?? " ")) return null;
    return { node: renderMath(this.text.slice(at + 1, end), false), end: end + 1 };
  }

  code(at) {
    const span = this.spans.get(at);
    if (span) return { node: make("code", "", span.content), end: span.end };
    const end = endOfRun(this.text, at);
    return { node: this.text.slice(at, end), end };
  }

  link(at, isImage) {
    const close = this.links ? this.closingBracket(at) : -1;
    if (close < 0 || this.text[close + 1] !== "(") return null;
    const target = readTarget(this.text, close + 2);
    const href = target && safeUrl(target.url);
    if (!href) return null;
    const label = this.text.slice(at + 1, close);
    const node = makeLink(href, isImage ? `${label || "image"} (image, not loaded)` : "");
    if (!isImage) appendInline(node, label, this.depth + 1, false);
    return { node, end: target.end };
  }

  closingBracket(at) {
    const last = Math.min(this.text.length, at + MAX_LABEL);
    let open = 0;
    for (let i = at; i < last; i += 1) {
      const span = this.spans.get(i);
      if (span) i = span.end - 1;
      else if (this.text[i] === "\\") i += 1;
      else if (this.text[i] === "[") open += 1;
      else if (this.text[i] === "]" && --open === 0) return i;
    }
    return -1;
  }

  /** Read `<https://...>`, or `<br>`, which models write into tables. */
  angle(at) {
    const inside = /^<(?:(br) ?\/?|((?:https?:|mailto:)[^\s<>]{1,2000}))>/i;
    const match = inside.exec(this.text.slice(at, at + MAX_URL + 2));
    if (!match) return null;
    const end = at + match[0].length;
    if (match[1]) return { node: make("br"), end };
    const href = this.links && safeUrl(match[2]);
    return href ? { node: makeLink(href, match[2]), end } : null;
  }

  bareUrl(at) {
    if (!this.links || !this.text.startsWith("http", at)) return null;
    if (WORD.test(this.text[at - 1] ?? " ")) return null;
    const match = /^https?:\/\/[^\s<>"`\\]+/.exec(this.text.slice(at, at + MAX_URL));
    if (!match) return null;
    const shown = withoutPunctuation(match[0]);
    const href = safeUrl(shown);
    return href && { node: makeLink(href, shown), end: at + shown.length };
  }

  emphasis(at) {
    const sign = this.text[at];
    const end = endOfRun(this.text, at);
    const length = end - at;
    const rest = { node: this.text.slice(at, end), end };
    const opens = length <= (sign === "~" ? 2 : 3) && (sign !== "~" || length === 2);
    if (!opens || !/\S/.test(this.text[end] ?? " ")) return rest;
    if (sign === "_" && WORD.test(this.text[at - 1] ?? " ")) return rest;
    const close = this.closing(sign, length, end);
    if (close < 0) return rest;
    const inner = make(sign === "~" ? "del" : length === 1 ? "em" : "strong");
    appendInline(inner, this.text.slice(end, close), this.depth + 1, this.links);
    if (length < 3) return { node: inner, end: close + length };
    const both = make("em");
    both.append(inner);
    return { node: both, end: close + length };
  }

  /** Return where the delimiter that ends an emphasis begins; -1 if nothing ends it. */
  closing(sign, length, from) {
    const key = sign.repeat(length);
    if (this.failed.has(key)) return -1;
    for (let i = from; i < this.text.length; i += 1) {
      const span = this.spans.get(i);
      if (span) i = span.end - 1;
      else if (this.text[i] === "\\") i += 1;
      else if (this.text[i] === sign) {
        const end = endOfRun(this.text, i);
        const fits = length === 1 ? (end - i) % 2 === 1 : end - i >= length;
        const after = sign === "_" && WORD.test(this.text[end] ?? " ");
        if (fits && !after && /\S/.test(this.text[i - 1])) return end - length;
        i = end - 1;
      }
    }
    this.failed.add(key);
    return -1;
  }
}

/** Return the code spans of a text: start -> `{end, content}`. */
function findCode(text) {
  const spans = new Map();
  const missing = new Set(); // lengths of backtick runs that do not occur again
  let at = text.indexOf("`");
  while (at >= 0) {
    const isEscaped = text[at - 1] === "\\" && text[at - 2] !== "\\";
    const end = endOfRun(text, at);
    const close = isEscaped || missing.has(end - at) ? -1 : findRun(text, end, end - at);
    if (close < 0) {
      if (!isEscaped) missing.add(end - at);
      at = text.indexOf("`", end);
    } else {
      const content = text.slice(end, close);
      const padded = content.startsWith(" ") && content.endsWith(" ") && content.trim();
      const stop = close + end - at;
      spans.set(at, { end: stop, content: padded ? content.slice(1, -1) : content });
      at = text.indexOf("`", stop);
    }
  }
  return spans;
}

function findRun(text, from, length) {
  let at = text.indexOf("`", from);
  while (at >= 0) {
    const end = endOfRun(text, at);
    if (end - at === length) return at;
    at = text.indexOf("`", end);
  }
  return -1;
}

function endOfRun(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) end += 1;
  return end;
}

/** Read the address and the optional title of a link, up to its closing parenthesis. */
function readTarget(text, at) {
  const rest = text.slice(at, at + MAX_URL);
  const angled = /^\s?<([^<>\n]*)>/.exec(rest);
  const url = angled ? angled[1] : balanced(rest.trimStart());
  const before = angled ? angled[0].length : rest.length - rest.trimStart().length + url.length;
  const after = /^(?:\s+(?:"[^"]*"|'[^']*'))?\s?\)/.exec(rest.slice(before));
  return after && { url, end: at + before + after[0].length };
}

/** Return the beginning of a text up to a space or a parenthesis that it did not open. */
function balanced(text) {
  let open = 0;
  for (let i = 0; i < text.length; i += 1) {
    if (/\s/.test(text[i])) return text.slice(0, i);
    if (text[i] === "(") open += 1;
    if (text[i] === ")" && --open < 0) return text.slice(0, i);
  }
  return text;
}

function withoutPunctuation(url) {
  let end = url.length;
  while (/[.,;:!?'*_~\]]/.test(url[end - 1]) || (url[end - 1] === ")" && !url.includes("("))) {
    end -= 1;
  }
  return url.slice(0, end);
}

function makeLink(href, label) {
  const link = make("a", "", label);
  link.href = link.title = href;
  link.target = "_blank";
  link.rel = "noopener noreferrer nofollow";
  return link;
}
