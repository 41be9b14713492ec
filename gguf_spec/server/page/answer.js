/** An answer while it streams: what the server sends becomes a message and its statistics. */

import { charsOf } from "./context.js";
import { streamChat } from "./api.js";
import { asCount } from "./dom.js";

const SHOWN = 500; // tokens of a prompt; reading fewer takes a moment

/** Answer of the model. `message` has the format of stored messages. */
export class Answer {
  /**
   * @param {object} fields of the request, with its messages
   * @param {() => void} changed called after each piece
   */
  constructor(fields, changed) {
    this.fields = fields;
    this.changed = changed;
    this.aborter = new AbortController();
    this.began = performance.now();
    this.message = { role: "assistant", content: "", marks: [], finish: "stopped",
      model: fields.model, seed: String(fields.seed), stats: {} };
    this.stats = { tokens: 0, drafted: 0, accepted: 0, rounds: 0,
      chars: charsOf(fields.messages) };
    this.message.stats = this.stats;
  }

  /** Ask the server; return the error that ended the answer, or null. */
  async run() {
    try {
      await streamChat(this.fields, this.aborter.signal, (piece) => this.take(piece));
    } catch (error) {
      if (error.name !== "AbortError") return error;
    }
    return null;
  }

  stop() {
    this.aborter.abort();
  }

  get isEmpty() {
    return !this.message.content && !this.message.reasoning;
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

  take(piece) {
    const [choice] = piece.choices ?? [];
    if (choice?.delta) this.addText(choice.delta, piece.speculation?.text ?? []);
    if (piece.speculation) this.count(piece.speculation);
    if (choice?.finish_reason) this.message.finish = choice.finish_reason;
    if (piece.prompt_progress) this.read = piece.prompt_progress;
    if (piece.model) this.message.model = piece.model;
    if (piece.usage) this.finish(piece.usage);
    this.changed();
  }

  addText({ content, reasoning_content: reasoning }, parts) {
    const { message } = this;
    if (reasoning) message.reasoning = (message.reasoning ?? "") + reasoning;
    if (!content) return;
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

  count({ tokens, drafted, accepted }) {
    this.stats.first_ms ??= performance.now() - this.began;
    this.stats.tokens += tokens;
    this.stats.drafted += drafted;
    this.stats.accepted += accepted;
    this.stats.rounds += 1;
  }

  finish({ prompt_tokens: promptTokens, speculation }) {
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
