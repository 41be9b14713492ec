/** Search over chats: which ones have all the words, and where. */

import { make } from "./dom.js";

const BEFORE = 20; // characters shown before a word that was found
const AFTER = 60;

/**
 * Return the conversations that have all words of a query in their title or texts, each with the
 * text around the first word in a message: `{one, found}`; `found` is null for a match of titles
 * alone, and for an empty query.
 *
 * @param {(conversation: object) => string} titleOf
 */
export function search(conversations, query, titleOf) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return conversations.flatMap((one) => {
    const texts = words.length ? one.messages.flatMap(textsOf) : [];
    const all = [titleOf(one), ...texts].map((text) => text.toLowerCase());
    if (!words.every((word) => all.some((text) => text.includes(word)))) return [];
    const found = words.flatMap((word) => texts.map((text) => around(text, word)));
    return [{ one, found: found.find(Boolean) ?? null }];
  });
}

function textsOf({ content, files = [] }) {
  return [content, ...files.flatMap(({ name, text }) => [name, text])];
}

function around(text, word) {
  const at = text.toLowerCase().indexOf(word);
  if (at < 0) return null;
  const end = at + word.length;
  const from = Math.max(0, at - BEFORE);
  return [`${from ? "…" : ""}${text.slice(from, at)}`, text.slice(at, end),
    text.slice(end, end + AFTER)];
}

/** Return a line with the text that was found. */
export function foundLine([before, word, after]) {
  const line = make("small");
  line.append(before, make("mark", "", word), after);
  return line;
}
