/** Requests to the server. Addresses are relative: the page may be served below a path. */

import { LOCAL, SESSION, readItem, writeItem } from "./storage.js";

const KEY = "gguf-spec-key"; // the key is forgotten with the tab
let key = readItem(SESSION, KEY);
const TOKEN = "gguf-spec.tools";
let token = takeToken();

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

/** Return the token for tools, which the printed address of the page has behind #. */
function takeToken() {
  const [, given] = location.hash.match(/^#tools=([\w-]+)$/) ?? [];
  if (!given) return readItem(LOCAL, TOKEN);
  writeItem(LOCAL, TOKEN, given);
  history.replaceState(null, "", location.pathname + location.search);
  return given;
}

async function request(path, options = {}, type = "application/json") {
  const headers = { "Content-Type": type, ...options.headers };
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
    sees: one.architecture ? one.architecture.input_modalities.includes("image") : null,
    loaded: one.loaded,
    calls: one.capabilities?.includes("tools") ?? true,
  }));
}

/** Return the text of a PDF file, with the number of its pages. */
export async function readPdf(file) {
  const options = { method: "POST", body: file };
  return (await request("v1/documents/text", options, "application/pdf")).json();
}

const withToken = (body) => ({ method: "POST", body: JSON.stringify(body),
  headers: token ? { Authorization: `Bearer ${token}` } : {} });

/** Return the tools that the server offers, with notes about its tool servers. */
export async function readTools() {
  if (!token && !key) return { data: [], notes: [], offered: false }; // it would offer none
  return (await request("page/tools", withToken({}))).json();
}

/** Call a tool; return what came of it as text. */
export async function callTool(call) {
  return (await (await request("page/tools/call", withToken(call))).json()).output;
}

/** Load a model, or unload it. */
export async function load(model, { unloads = false } = {}) {
  const body = JSON.stringify({ model, stream: false, ...(unloads && { keep_alive: 0 }) });
  await request("api/generate", { method: "POST", body });
}

const textOf = (content) =>
  typeof content === "string" ? content : content.map((part) => part.text ?? "").join("");
const asMessage = ({ role, content, output, arguments: given }) =>
  ({ role: role ?? (output === undefined ? "assistant" : "user"),
    content: textOf(content ?? output ?? given) });

/** Return the number of tokens of the texts of messages; null if the server does not say it. */
export async function countTokens(model, messages) {
  const texts = messages.map(asMessage);
  const [first, ...others] = texts;
  const isSystem = first.role === "system";
  const body = isSystem ? { system: first.content, messages: others } : { messages: texts };
  const options = { method: "POST", body: JSON.stringify({ model, ...body }) };
  const response = await request("v1/messages/count_tokens", options).catch(() => null);
  return response ? (await response.json()).input_tokens : null;
}

const ANSWERS = "v1/responses";
const LAST = /^response\.(completed|incomplete|cancelled)$/;
const WAITS_MS = [200, 1000, 3000, 9000]; // before an answer that broke off is taken up again
const FAILED = 200; // status of an error that came as the last event
const BROKEN = "The answer broke off. Is gguf-spec serve still running?";

/**
 * Ask for an answer; call `take` with each event of it. Where the connection breaks, an answer in
 * the background is taken up again.
 *
 * @param {object | null} fields of the request; null to take up the answer with an id
 * @param {string} [id] of an answer that was begun before
 */
export async function streamAnswer(fields, signal, take, id = "") {
  let next = 0; // number of the event that comes next
  const read = (event) => {
    id ||= event.response?.id ?? "";
    next = event.sequence_number + 1;
    take(event);
    return LAST.test(event.type);
  };
  const body = fields && JSON.stringify({
    ...fields,
    stream: true,
    return_progress: true,
    store: Boolean(fields.background),
    stream_options: { include_speculation: true },
  });
  const ask = () => request(ANSWERS, { method: "POST", body, signal });
  if (await readStream(await (fields ? ask() : takeUp(id, 0, signal)), read)) return;
  const goesOn = id && fields?.background !== false;
  for (const wait of goesOn ? WAITS_MS : []) {
    await new Promise((done) => { setTimeout(done, wait); });
    signal.throwIfAborted();
    try {
      if (await readStream(await takeUp(id, next, signal), read)) return;
    } catch (error) {
      if (error.name === "AbortError" || error.status === FAILED) throw error;
      if (error.status) break;
    }
  }
  throw new Trouble(BROKEN);
}

/**
 * Return the events of an answer from a number on; all of it as one if they are forgotten. One that
 * the server does not know is no error there, which a browser would tell its console.
 */
async function takeUp(id, next, signal) {
  const query = `stream=true&starting_after=${next - 1}&optional=true`;
  const told = await request(`${ANSWERS}/${id}?${query}`, { signal });
  if (told.headers.get("Content-Type")?.startsWith("text/event-stream")) return told;
  const response = await told.json();
  if (response.status === "gone") throw new Trouble(BROKEN, { status: 404 });
  const event = { type: `response.${response.status}`, response, sequence_number: next };
  return new Response(`data: ${JSON.stringify(event)}\n\n`);
}

/** End an answer in the background. */
export function cancelAnswer(id) {
  request(`${ANSWERS}/${id}/cancel`, { method: "POST", keepalive: true }).catch(() => {});
}

/** Read the events of a stream; return whether the last one was there. */
async function readStream(response, take) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const part = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      return { done: true };
    });
    if (part.done) return false;
    const events = (rest + part.value).split("\n\n");
    rest = events.pop();
    for (const event of events) if (readEvent(event, take)) return true;
  }
}

/** Read one event of a stream; return whether it was the last one. */
function readEvent(text, take) {
  const event = JSON.parse(text.slice(text.indexOf("data: ") + "data: ".length));
  if (event.type === "response.failed") {
    throw asTrouble(event.response.error, "The server failed.", FAILED);
  }
  return event.type !== "ping" && take(event);
}
