/** What of a conversation is sent: the model reads only so many tokens at once. */

import { itemsOf } from "./tools.js";

const DEFAULT_CHARS = 3; // characters of a token, before the server has counted any
const IMAGE_CHARS = 3000; // of a text with about as many tokens as an image
const REFILL = 0.7; // share of the room that is used after old turns were left out
const SURE = 0.5; // share of the room up to which an estimate needs no count

/** Return the messages to send, as items of OpenAI's Responses API. */
export function toRequest(conversation, system) {
  const sent = [];
  for (const { role, ...message } of conversation.messages.slice(conversation.start)) {
    const content = role === "user" ? contentOf(message) : message.content;
    sent.push(...itemsOf(message.steps, sent.length));
    if (message.steps && !content) continue;
    const last = sent.at(-1);
    // An answer between two questions was removed: models want turns.
    if (last?.role === role) last.content = joined(last.content, content);
    else sent.push({ role, content });
  }
  return system.trim() ? [{ role: "system", content: system }, ...sent] : sent;
}

function joined(one, other) {
  if (typeof one === "string" && typeof other === "string") return `${one}\n\n${other}`;
  const parts = (content) => (typeof content === "string" ? [{ type: "input_text", text: content }] : content);
  return [...parts(one), ...parts(other)];
}

/** Return what the model reads of a question: its files, then its text. */
function contentOf({ content, files = [] }) {
  const images = files.filter((file) => file.image);
  const texts = files.filter((file) => !file.image);
  const parts = texts.map((file) => `File ${file.name}:\n${fenced(file.text)}`);
  const text = [...parts, content].filter(Boolean).join("\n\n");
  if (!images.length) return text;
  const seen = images.map(({ image }) => ({ type: "input_image", image_url: image }));
  return [...seen, { type: "input_text", text }];
}

/** Return the messages of a conversation without their images, which its model cannot see. */
export function withoutImages({ start, messages }) {
  return { start, messages: messages.map((message) => (message.files?.some((file) => file.image)
    ? { ...message, files: message.files.map((file) => (file.image ? UNSEEN(file) : file)) }
    : message)) };
}
const UNSEEN = ({ name }) => ({ name, text: "(an image, which you cannot see)" });

/** Return a text as a code block, whose fence is longer than any in the text. */
export function fenced(text) {
  const runs = text.match(/`+/g) ?? [];
  const longest = runs.reduce((most, run) => Math.max(most, run.length), 2);
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
}

export function charsOf(messages) {
  return messages.reduce((sum, { content, output, arguments: given }) =>
    sum + charsIn(content ?? output ?? given) + 16, 0);
}

function charsIn(content) {
  if (typeof content === "string") return content.length;
  return content.reduce((sum, { text }) => sum + (text?.length ?? IMAGE_CHARS), 0);
}

/**
 * Return the index of the first message to send, so that the conversation and the answer fit into
 * the context. Old turns are left out from the beginning, never the last question, and only if the
 * server counted too many tokens.
 *
 * @param {number} room tokens for the messages; null if it is not known
 * @param {(messages: object[]) => Promise<number | null>} count their tokens; null if that failed
 */
export async function firstThatFits(conversation, system, room, count) {
  const { messages } = conversation;
  const chars = (start) => charsOf(toRequest({ ...conversation, start }, system));
  let { start } = conversation;
  let perToken = charsPerToken(messages);
  if (room === null || chars(start) / perToken <= SURE * room) return start;
  const counted = await count(toRequest(conversation, system));
  if (counted) perToken = chars(start) / counted;
  const tokens = (from) => chars(from) / perToken;
  if (tokens(start) <= room) return start;
  while (start < lastQuestion(messages) && tokens(start) > REFILL * room) {
    start = nextQuestion(messages, start);
  }
  return start;
}

/** Return where to start after the server said that the messages are too long; null if nowhere. */
export function startLater({ messages, start }) {
  const last = lastQuestion(messages);
  if (start >= last) return null;
  const half = start + Math.ceil((last - start) / 2);
  return messages[half].role === "user" ? half : Math.min(last, half + 1);
}

/** Characters of a token in this conversation, as the server counted its last prompt. */
export function charsPerToken(messages) {
  const stats = messages.findLast((one) => one.stats?.prompt_tokens > 0)?.stats;
  if (!stats?.chars) return DEFAULT_CHARS;
  return Math.min(6, Math.max(0.5, stats.chars / stats.prompt_tokens));
}

function lastQuestion(messages) {
  return messages.findLastIndex((one) => one.role === "user");
}

function nextQuestion(messages, from) {
  const next = messages.findIndex((one, i) => i > from && one.role === "user");
  return next < 0 ? from : next;
}

/** Return a question whose texts have about so many characters: the longest ones are cut. */
export function shortened(message, chars) {
  const texts = [message.content, ...(message.files ?? []).map((file) => file.text)];
  for (;;) {
    const excess = texts.reduce((sum, text) => sum + text.length, 0) - chars;
    const isLonger = (i, best) => texts[i].length > texts[best].length;
    const longest = texts.reduce((best, _, i) => (isLonger(i, best) ? i : best), 0);
    if (excess <= 0 || texts[longest].length < 8) break;
    const others = texts.filter((_, i) => i !== longest).map((text) => text.length);
    const left = Math.max(texts[longest].length - excess, Math.max(0, ...others) >> 1, 4);
    if (left >= texts[longest].length) break;
    texts[longest] = texts[longest].slice(0, left);
  }
  const [content, ...files] = texts;
  const cut = { ...message, content };
  if (message.files) cut.files = message.files.map((file, i) => ({ ...file, text: files[i] }));
  return cut;
}
