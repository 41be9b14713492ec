/**
 * Conversations, kept in the local storage of the browser: one entry for each, so that saving one
 * does not write the others. What comes from outside (an import, the storage) is checked first.
 */

import { LOCAL, SESSION, keysOf, parse, readItem, removeItem, writeItem } from "./storage.js";

const PREFIX = "gguf-spec.chat.";
const CURRENT = "gguf-spec.current"; // of sessionStorage: each tab has its own
const RUNNING = "gguf-spec.running";
const MAX_TITLE = 80;

/** Create an empty conversation. */
export function newConversation() {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", updated: 0,
    start: 0, messages: [] };
}

/** Return the title of a conversation: its own, or the beginning of its first message. */
export function titleOf(conversation) {
  const first = conversation.messages[0];
  const text = conversation.title || first?.content.trim() || first?.files?.[0]?.name || "New chat";
  const line = text.split("\n", 1)[0];
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1)}…` : line;
}

/**
 * Put what follows a question aside, so that it can be answered again. The question has the `tails`
 * that are not shown, and at which place among them the `shown` one belongs.
 */
export function putAside(messages, at) {
  const tail = messages.splice(at + 1);
  const question = messages[at];
  const { tails = [], shown = tails.length } = question;
  question.tails = tail.length ? tails.toSpliced(shown, 0, tail) : tails;
  question.shown = question.tails.length;
}

/** Show one of the answers to a question, with what followed it. */
export function turnTo(messages, at, number) {
  const question = messages[at];
  putAside(messages, at);
  messages.push(...question.tails[number]);
  question.tails = question.tails.toSpliced(number, 1);
  question.shown = number;
}

/** Show the last answer that was put aside if the last question has none; return whether. */
export function turnBack(messages) {
  const { tails = [] } = messages.at(-1);
  if (tails.length) turnTo(messages, messages.length - 1, tails.length - 1);
  return tails.length > 0;
}

/** Return the index of the question before a message; without a message, of the last question. */
export function questionBefore(messages, message) {
  const before = message ? messages.indexOf(message) : messages.length;
  return messages.findLastIndex((one, i) => i < before && one.role === "user");
}

/** All conversations, in memory and in the storage. */
export class Conversations {
  constructor() {
    this.kept = new Map(); // id -> conversation
    this.read();
  }

  /** Read all conversations from the storage again; entries that are damaged are left out. */
  read() {
    for (const key of keysOf(LOCAL, PREFIX)) {
      const conversation = readConversation(parse(readItem(LOCAL, key)));
      if (conversation && key === PREFIX + conversation.id) {
        this.kept.set(conversation.id, conversation);
      }
    }
  }

  /** Return the conversations, the last changed one first. */
  list() {
    return [...this.kept.values()].sort((one, other) => other.updated - one.updated);
  }

  get(id) {
    return this.kept.get(id);
  }

  /** Keep a conversation; return whether the storage took it. An empty one is not kept. */
  save(conversation) {
    if (!conversation.messages.length) return true;
    this.kept.set(conversation.id, conversation);
    return writeItem(LOCAL, PREFIX + conversation.id, JSON.stringify(conversation));
  }

  remove(id) {
    this.kept.delete(id);
    removeItem(LOCAL, PREFIX + id);
  }

  removeAll() {
    for (const id of [...this.kept.keys()]) this.remove(id);
  }

  /** Return the id of the conversation that another tab changed; null for other entries. */
  idOf(event) {
    return event.key?.startsWith(PREFIX) ? event.key.slice(PREFIX.length) : null;
  }

  /** Take over what another tab changed: only the title of one that is being answered here. */
  follow(event, isAnswering) {
    const id = this.idOf(event);
    const conversation = readConversation(parse(event.newValue));
    if (isAnswering) this.get(id).title = conversation?.title ?? this.get(id).title;
    else if (conversation?.id === id) this.kept.set(id, conversation);
    else this.kept.delete(id);
  }
}

/** Return the id of the conversation that this tab showed last. */
export function currentId() {
  return readItem(SESSION, CURRENT);
}

export function setCurrentId(id) {
  writeItem(SESSION, CURRENT, id);
}

/** Return the ids of the conversations that this tab was answering when it was left. */
export function runningIds() {
  const ids = parse(readItem(SESSION, RUNNING));
  return Array.isArray(ids) ? ids : [];
}

export function setRunningIds(ids) {
  writeItem(SESSION, RUNNING, JSON.stringify(ids));
}

// ---- checks of what comes from outside

const isText = (value) => typeof value === "string";
const isId = (value) => isText(value) && /^[0-9]{1,10}-[0-9]{1,10}$/.test(value);
const isCount = (value) => Number.isSafeInteger(value) && value >= 0;
const isNumber = (value) => Number.isFinite(value) && value >= 0;
const STATS = ["tokens", "tokens_per_s", "speedup", "drafted", "accepted", "rounds", "chars",
  "prompt_tokens", "first_ms", "thinking_ms"];

/** Return a conversation with the known fields only; null for any other value. */
export function readConversation(value) {
  if (!value || typeof value !== "object" || !Array.isArray(value.messages)) return null;
  const messages = value.messages.map((one) => readMessage(one));
  if (!alternates(messages, "user")) return null;
  const running = isText(value.running) && /^resp_[0-9a-f]{32}$/.test(value.running);
  if (!running) turnBack(messages); // the page was left before a new answer began
  const start = isCount(value.start) && messages[value.start]?.role === "user" ? value.start : 0;
  return {
    id: isId(value.id) ? value.id : newConversation().id,
    title: isText(value.title) ? value.title.slice(0, MAX_TITLE) : "",
    updated: isCount(value.updated) ? value.updated : 0,
    start,
    messages,
    ...(running && { running: value.running }),
  };
}

const alternates = (messages, first) => messages.length && !messages.includes(null)
  && messages.every((one, i) => (one.role === "user") === ((i % 2 === 0) === (first === "user")));
const MAX_DEPTH = 8; // of answers that were put aside within others

function readMessage(value, depth = 0) {
  if (!value || !["user", "assistant"].includes(value.role) || !isText(value.content)) return null;
  const message = { role: value.role, content: value.content };
  if (value.role === "user") {
    const files = Array.isArray(value.files) ? value.files : [];
    const read = files.filter((one) => isText(one?.name) && isText(one.text));
    if (read.length) message.files = read.map(({ name, text }) => ({ name, text }));
    const aside = Array.isArray(value.tails) && depth < MAX_DEPTH ? value.tails : [];
    const tails = aside.filter(Array.isArray).map((tail) =>
      tail.map((one) => readMessage(one, depth + 1)));
    message.tails = tails.filter((tail) => alternates(tail, "assistant"));
    message.shown = isCount(value.shown) ? Math.min(value.shown, message.tails.length) : 0;
    if (!message.tails.length) { delete message.tails; delete message.shown; }
    return message;
  }
  for (const name of ["reasoning", "finish", "model", "seed"]) {
    if (isText(value[name])) message[name] = value[name];
  }
  if (Array.isArray(value.marks) && value.marks.every(isCount)) message.marks = value.marks;
  if (value.stats && typeof value.stats === "object") {
    const known = STATS.filter((name) => isNumber(value.stats[name]));
    message.stats = Object.fromEntries(known.map((name) => [name, value.stats[name]]));
  }
  return message;
}
