/** An answer while it streams: what the server sends becomes a message and its statistics. */

import { charsOf } from "./context.js";
import { cancelAnswer, streamAnswer } from "./api.js";
import { asCount } from "./dom.js";

const SHOWN = 500; // tokens of a prompt; reading fewer takes a moment
const STOP_MS = 2000; // for which a stopped request waits for the id of its answer
const FINISH = { "response.incomplete": "length", "response.completed": "stop" };

/** Answer of the model. `message` has the format of stored messages. */
export class Answer {
  /**
   * @param {object | null} fields of the request, with its messages as `input`; null for an answer
   *   that was begun before
   * @param {() => void} changed called after each event
   * @param {string} [id] of an answer that was begun before
   * @param {object} [message] that it goes on with, after its calls
   */
  constructor(fields, changed, id = "", message = null) {
    this.fields = fields;
    this.changed = changed;
    this.id = id;
    this.aborter = new AbortController();
    this.began = performance.now();
    this.calls = []; // of tools, which the answer ends with
    this.message = message ?? { role: "assistant", content: "", marks: [], stats: {} };
    this.message.finish = "stopped";
    if (fields) Object.assign(this.message, { model: fields.model, seed: String(fields.seed) });
    this.stats = { tokens: 0, drafted: 0, accepted: 0, rounds: 0, ...this.message.stats,
      chars: fields ? charsOf(fields.input) : 0 };
    this.message.stats = this.stats;
  }

  /** Ask the server; return the error that ended the answer, or null. */
  run() {
    const stopped = new Promise((done) => { this.leave = () => done(null); });
    return Promise.race([this.ask(), stopped]);
  }

  async ask() {
    try {
      const { fields, aborter: { signal }, id } = this;
      await streamAnswer(fields, signal, (event) => this.take(event), id);
    } catch (error) {
      if (error.name !== "AbortError") return error;
    }
    return null;
  }

  /** End the answer, also in the server. */
  stop() {
    this.isStopped = true;
    this.message.finish = "stopped";
    this.leave();
    if (this.id || !this.fields.background) this.end();
    else setTimeout(() => this.end(), STOP_MS);
  }

  end() {
    if (this.id) cancelAnswer(this.id);
    this.aborter.abort();
  }

  get isEmpty() {
    const { content, reasoning, steps } = this.message;
    return !content && !reasoning && !steps;
  }

  /** A line about the state of the answer: its length, or how much of the prompt is read. */
  get state() {
    const { tokens } = this.stats;
    if (tokens) return `${asCount(tokens)} tokens`;
    const { total = 0, cache = 0, processed = 0 } = this.read ?? {};
    const shows = total - cache >= SHOWN && processed < total;
    if (!shows) return "Waiting for the first word …";
    return `Read ${asCount(processed)} of ${asCount(total)} tokens …`;
  }

  take({ type, response, delta, item, speculation, prompt_progress: read }) {
    const { message } = this;
    if (this.fields?.background !== false) this.id ||= response?.id ?? "";
    if (this.isStopped) {
      this.end();
      return;
    }
    if (type === "response.reasoning_text.delta") {
      message.reasoning = (message.reasoning ?? "") + delta;
    }
    if (type === "response.output_text.delta") this.addText(delta, speculation?.text ?? []);
    if (type === "response.output_item.done" && item.type === "function_call") this.calls.push(item);
    if (speculation) this.count(speculation);
    if (read) this.read = read;
    if (response) {
      message.model = response.model ?? message.model;
      if (response.usage) this.finish(response);
      message.finish = FINISH[type] ?? message.finish;
    }
    this.changed();
  }

  /** End with the calls that came: they are a step, and the message goes on behind it. */
  endStep() {
    const { message, calls } = this;
    const { content, steps = [] } = message;
    const asked = calls.map(({ name, arguments: given }) => ({ name, arguments: given }));
    Object.assign(message, { content: "", marks: [], steps: [...steps, { content, calls: asked }] });
    return asked;
  }

  addText(content, parts) {
    const { message } = this;
    if (message.reasoning && !message.content) {
      this.stats.thinking_ms = performance.now() - this.began;
    }
    message.content += content;
    // The parts are the same text, cut by where it comes from. Where they are not (the server held
    // some of it back, or it is a thought), all of the piece counts as written by the model.
    const same = parts.map(([text]) => text).join("") === content;
    for (const [text, accepted] of same ? parts : [[content, false]]) {
      addMark(message.marks, text.length, accepted);
    }
  }

  count({ tokens, drafted, accepted, rounds }) {
    if (this.fields) this.stats.first_ms ??= performance.now() - this.began;
    this.stats.tokens += tokens;
    this.stats.drafted += drafted;
    this.stats.accepted += accepted;
    this.stats.rounds += rounds;
  }

  finish({ usage: { input_tokens: promptTokens, speculation }, output = [], seed }) {
    const { message } = this;
    const texts = output.flatMap((item) => (item.type === "message" ? item.content : []));
    const whole = texts.map((part) => part.text).join("");
    if (whole && whole !== message.content) Object.assign(message, { content: whole, marks: [] });
    const calls = output.filter((item) => item.type === "function_call");
    if (calls.length > this.calls.length) this.calls = calls;
    if (!this.fields && seed !== undefined) message.seed = String(seed);
    this.stats.prompt_tokens = promptTokens;
    if (!speculation) return;
    this.stats.tokens_per_s = speculation.tokens_per_s;
    this.stats.speedup = speculation.speedup;
  }
}

/**
 * Add a piece of text to the marks of a message: lengths of text that are in turn written by the
 * model alone, and drafted and accepted. The first is the model's and may be 0.
 */
function addMark(marks, length, accepted) {
  if (!length) return;
  if (!marks.length) marks.push(0);
  const lastIsAccepted = marks.length % 2 === 0;
  if (lastIsAccepted === accepted) marks[marks.length - 1] += length;
  else marks.push(length);
}

/** Return the parts of a message's text: `[text, accepted]`; null if its marks are for another. */
export function partsOf({ content, marks = [] }) {
  let at = 0;
  const parts = marks.map((length, i) => {
    at += length;
    return [content.slice(at - length, at), i % 2 === 1];
  });
  return at === content.length ? parts : null;
}

/** Return whether drafting made an answer clearly faster. */
export function wasFaster({ stats, marks }) {
  return Boolean(marks?.length > 1 && stats?.accepted > 0 && stats.speedup >= 1.1);
}
