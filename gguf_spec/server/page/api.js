/** Requests to the server. Addresses are relative: the page may be served below a path. */

import { SESSION, readItem, writeItem } from "./storage.js";

const KEY = "gguf-spec-key"; // the key is forgotten with the tab
let key = readItem(SESSION, KEY);

/** Error whose message is shown to the user. */
export class Trouble extends Error {
  /**
   * @param {string} message
   * @param {{status?: number, code?: string, param?: string}} details of the server's error
   */
  constructor(message, { status = 0, code = "", param = "" } = {}) {
    super(message);
    Object.assign(this, { status, code, param });
  }
}

export function setKey(given) {
  key = given;
  writeItem(SESSION, KEY, given);
}

async function request(path, options = {}) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (error instanceof TypeError && key && !isHeader(key)) throw keyTrouble();
    throw new Trouble("The server does not answer. Is gguf-spec serve still running?");
  }
  if (response.ok) return response;
  if (response.status === 401) throw keyTrouble();
  const told = await response.json().catch(() => null);
  throw asTrouble(told?.error, `The server answered ${response.status}.`, response.status);
}

const isHeader = (text) => /^[\x21-\x7e]+$/.test(text);

function keyTrouble() {
  const fact = key ? "This is not the server's API key." : "This server needs an API key.";
  return new Trouble(`${fact} Enter it below.`, { status: 401 });
}

function asTrouble(error, otherwise, status = 0) {
  const { message, code, param } = error ?? {};
  return new Trouble(typeof message === "string" ? message : otherwise, { status, code, param });
}

/** Return the models that the server has. */
export async function readModels() {
  const told = await (await request("v1/models")).json();
  return told.data.map((one) => ({
    id: one.id,
    n_ctx: one.context_length ?? null,
    max_tokens: one.max_tokens ?? null,
    draft: one.draft ?? null,
    speculates: one.speculation === true,
    notes: one.notes ?? [],
  }));
}

/** Return the number of tokens of messages; null if the server does not say it. */
export async function countTokens(model, messages) {
  const [first, ...others] = messages;
  const body = first.role === "system" ? { system: first.content, messages: others } : { messages };
  const options = { method: "POST", body: JSON.stringify({ model, ...body }) };
  const response = await request("v1/messages/count_tokens", options).catch(() => null);
  return response ? (await response.json()).input_tokens : null;
}

/** Send a chat request; call `take` with each piece of the answer. */
export async function streamChat(fields, signal, take) {
  const body = JSON.stringify({
    ...fields,
    stream: true,
    return_progress: true,
    stream_options: { include_usage: true, include_speculation: true },
  });
  const response = await request("v1/chat/completions", { method: "POST", body, signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const part = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      return { done: true };
    });
    if (part.done) {
      throw new Trouble("The answer broke off. Is gguf-spec serve still running?");
    }
    const events = (rest + part.value).split("\n\n");
    rest = events.pop();
    for (const event of events) if (readEvent(event, take)) return;
  }
}

/** Read one event of a stream; return whether it was the last one. */
function readEvent(event, take) {
  if (!event.startsWith("data: ")) return false;
  const data = event.slice("data: ".length);
  if (data === "[DONE]") return true;
  const piece = JSON.parse(data);
  if (piece.error) throw asTrouble(piece.error, "The server failed.");
  take(piece);
  return false;
}
