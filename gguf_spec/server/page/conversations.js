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

/**
 * Put a question and what follows it aside, and show another version: one of its `others`, each a
 * question with what follows, or a new one. The version that is shown belongs at `place`.
 *
 * @param {number | object} version number of one of all versions, or a new question
 */
export function turnQuestion(messages, at, version) {
  const [{ others = [], place = others.length, ...question }, ...tail] = messages.splice(at);
  const all = others.toSpliced(place, 0, [question, ...tail]);
  const isNew = typeof version !== "number";
  const number = isNew ? all.length : version;
  const [shown, ...rest] = isNew ? [version] : all[number];
  const kept = isNew ? all : all.toSpliced(number, 1);
  messages.push({ ...shown, others: kept, place: number }, ...rest);
}

/** Show another version of an answer, which has its old one put aside, with what followed. */
export function rewrite(messages, answer, content) {
  const at = questionBefore(messages, answer);
  putAside(messages, at);
  const { stats: _, ...kept } = answer;
  messages.push({ ...kept, content, marks: [], finish: "edited" });
}

/**
 * Remove a question with its answer, or an answer alone. Of several versions this one goes, with
 * what follows it, and the one before it is shown.
 */
export function removeMessage(messages, message) {
  const at = messages.indexOf(message);
  if (message.role === "assistant") {
    const before = questionBefore(messages, message);
    const { tails = [], shown = 0 } = messages[before];
    if (!tails.length) messages.splice(at, 1);
    else {
      messages.splice(at);
      const number = Math.max(0, shown - 1);
      turnTo(messages, before, number);
    }
  } else if (message.others?.length) {
    const { others, place } = message;
    const number = Math.max(0, place - 1);
    const [question, ...rest] = others[number];
    messages.splice(at, Infinity,
      { ...question, others: others.toSpliced(number, 1), place: number }, ...rest);
  } else messages.splice(at, messages[at + 1]?.role === "assistant" ? 2 : 1);
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

  /** Return the conversations: the pinned ones first, and the last changed ones. */
  list() {
    const isPinned = (one) => Number(one.pinned === true);
    return [...this.kept.values()].sort((one, other) =>
      isPinned(other) - isPinned(one) || other.updated - one.updated);
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
    ...(value.pinned === true && { pinned: true }),
  };
}

/** Whether each answer but the first message follows a question; questions may follow each other. */
const alternates = (messages, first) => messages.length && !messages.includes(null)
  && messages[0].role === first
  && messages.every((one, i) => !i || one.role === "user" || messages[i - 1].role === "user");
const isCall = (one) => isText(one?.name) && isText(one.arguments)
  && ["string", "undefined"].includes(typeof one.output);
const isStep = (one) => isText(one?.content) && Array.isArray(one.calls) && one.calls.every(isCall);
const MAX_DEPTH = 8; // of answers that were put aside within others

const IMAGE = /^data:image\/(png|jpeg|gif|bmp);base64,[A-Za-z0-9+/]+=*$/;

function readFile({ name, text, image }) {
  return isText(image) && IMAGE.test(image) ? { name, text: "", image } : { name, text };
}

function readMessage(value, depth = 0) {
  if (!value || !["user", "assistant"].includes(value.role) || !isText(value.content)) return null;
  const message = { role: value.role, content: value.content };
  if (value.role === "user") {
    const files = Array.isArray(value.files) ? value.files : [];
    const read = files.filter((one) => isText(one?.name) && isText(one.text));
    if (read.length) message.files = read.map(readFile);
    for (const [name, at, first] of [["tails", "shown", "assistant"], ["others", "place", "user"]]) {
      const aside = Array.isArray(value[name]) && depth < MAX_DEPTH ? value[name] : [];
      const read = aside.filter(Array.isArray).map((some) =>
        some.map((one) => readMessage(one, depth + 1))).filter((some) => alternates(some, first));
      if (!read.length) continue;
      message[name] = read;
      message[at] = isCount(value[at]) ? Math.min(value[at], read.length) : 0;
    }
    return message;
  }
  for (const name of ["reasoning", "finish", "model", "seed"]) {
    if (isText(value[name])) message[name] = value[name];
  }
  if (Array.isArray(value.steps) && value.steps.length && value.steps.every(isStep)) {
    message.steps = value.steps.map(({ content, calls }) => ({ content, calls: calls.map(
      ({ name, arguments: given, output, state }) => ({ name, arguments: given,
        ...(output !== undefined && { output, state: state === "denied" ? state : "called" }) })) }));
  }
  if (Array.isArray(value.marks) && value.marks.every(isCount)) message.marks = value.marks;
  if (value.stats && typeof value.stats === "object") {
    const known = STATS.filter((name) => isNumber(value.stats[name]));
    message.stats = Object.fromEntries(known.map((name) => [name, value.stats[name]]));
  }
  return message;
}
