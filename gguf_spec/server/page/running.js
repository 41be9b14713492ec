/** Answers that are being written. Each goes on while another conversation is open. */

import { Answer } from "./answer.js";
import { countTokens } from "./api.js";
import { firstThatFits, startLater, toRequest, withoutImages } from "./context.js";
import { MOST_ROUNDS } from "./tools.js";

const DRAW_MS = 40; // milliseconds between updates of the page while an answer streams
const RESULT_CHARS = 1.5; // of a tool's result, for each token that messages may have

/** The answer to the last question of a conversation, from the first request to its end. */
export class Run {
  /**
   * @param {object} conversation
   * @param {{fields, system: string, room: number | null, sees: boolean, tools} | null} asked what
   *   is sent with it, of which `tools` may come later; null to take up the answer that goes on in
   *   the server
   * @param {{begun, moved, save: Function, tools: Tools}} page called with this run: a request begins, the
   *   answer has grown; and with a conversation that must be kept
   */
  constructor(conversation, asked, page) {
    Object.assign(this, { conversation, asked, page });
    this.answer = null;
    this.isStopped = false;
    this.isLeft = false;
    this.timer = 0;
    this.saved = performance.now();
    this.stopped = new Promise((done) => { this.wake = done; });
  }

  /** Answer, with the calls of tools that the answer needs; return the error that ended it. */
  async run() {
    if (!this.asked) {
      const trouble = await this.stream(null);
      if (!this.isLeft && this.answer.calls.length) this.endStep();
      return trouble;
    }
    const { asked } = this;
    const tools = await Promise.race([asked.tools, this.stopped]);
    for (let n = 0; !this.isStopped; n += 1) {
      const more = n < MOST_ROUNDS || !tools.tools ? tools : { ...tools, tool_choice: "none" };
      const trouble = await this.ask({ ...asked.fields, ...more });
      if (trouble || this.isStopped || !this.answer.calls.length) return trouble;
      await this.callTools();
    }
    return null;
  }

  /** Call the tools that the answer asks for, one after the other, until it is stopped. */
  async callTools() {
    const { asked: { room } } = this;
    const most = Math.max(500, Math.floor(RESULT_CHARS * (room ?? 1e6)));
    const calls = this.endStep();
    for (const call of calls) {
      if (this.isStopped) return;
      await Promise.race([this.page.tools.callAllowed(this.page, this, call, most), this.stopped]);
      if (call.output === undefined) delete call.state;
      if (!this.isLeft) this.page.moved(this, true);
    }
  }

  endStep() {
    const calls = this.answer.endStep();
    this.place();
    this.page.moved(this, true);
    return calls;
  }

  /** Ask; leave out old turns as long as it says that it is too much; return the error. */
  async ask(fields) {
    const { conversation, asked: { system, room, sees } } = this;
    const count = (messages) => countTokens(fields.model, messages);
    let start = await firstThatFits(conversation, system, room, count);
    let trouble = null;
    while (start !== null && !this.isStopped) {
      conversation.start = start;
      const shown = sees === false ? withoutImages(conversation) : conversation;
      const input = toRequest(shown, system);
      trouble = await this.stream({ ...fields, input, background: true });
      const isTooLong = trouble?.code === "context_length_exceeded";
      start = isTooLong ? startLater(conversation) : null;
    }
    return trouble;
  }

  async stream(fields) {
    const { conversation } = this;
    const last = conversation.messages.at(-1);
    const goesOn = fields && last === this.answer?.message ? last : null;
    const answer = new Answer(fields, () => this.progress(), fields ? "" : conversation.running,
      goesOn);
    if (!fields && last.steps) answer.message.steps = last.steps;
    this.answer = answer;
    this.page.begun(this);
    const trouble = await answer.run();
    clearTimeout(this.timer);
    this.timer = 0;
    if (this.isLeft) return null;
    if (trouble?.status !== 401) delete conversation.running; // it needs the key, and goes on
    if ((trouble || answer.message.finish === "stopped") && answer.isEmpty) {
      if (conversation.messages.at(-1) === answer.message) conversation.messages.pop();
    } else this.place();
    // The server does not know it any more: what was kept of it stays.
    return !fields && trouble?.status === 404 ? null : trouble;
  }

  /** Let the answer be the last message; one that is taken up replaces what was kept of it. */
  place() {
    const { answer: { message }, conversation: { messages } } = this;
    if (messages.at(-1) === message) return;
    if (messages.at(-1).role === "assistant") messages.pop();
    messages.push(message);
  }

  progress() {
    if (this.isLeft) return;
    const { answer, conversation } = this;
    if (!answer.isEmpty) this.place();
    if (answer.id && conversation.running !== answer.id) {
      conversation.running = answer.id; // a page that is loaded meanwhile takes it up
      this.page.save(conversation);
    }
    this.timer ||= setTimeout(() => {
      this.timer = 0;
      if (!this.isLeft) this.page.moved(this);
    }, DRAW_MS);
  }

  /** End the answer; what it has so far is kept. */
  stop() {
    this.isStopped = true;
    this.wake({});
    this.answer?.stop();
  }

  /** End the answer at once: from now on the conversation is not changed. */
  leave() {
    this.isLeft = true;
    delete this.conversation.running;
    this.stop();
  }
}
