/** Answers that are being written. Each goes on while another conversation is open. */

import { Answer } from "./answer.js";
import { countTokens } from "./api.js";
import { firstThatFits, startLater, toRequest } from "./context.js";

const DRAW_MS = 40; // milliseconds between updates of the page while an answer streams

/** The answer to the last question of a conversation, from the first request to its end. */
export class Run {
  /**
   * @param {object} conversation
   * @param {{fields: object, system: string, room: number | null}} asked what is sent with it
   * @param {{begun: Function, moved: Function}} page called with this run: a request begins, and
   *   the answer has grown
   */
  constructor(conversation, asked, page) {
    Object.assign(this, { conversation, asked, page });
    this.answer = null;
    this.isStopped = false;
    this.isLeft = false;
    this.timer = 0;
    this.saved = performance.now();
  }

  /** Ask; leave out old turns as long as it says that it is too much; return the error. */
  async run() {
    const { conversation, asked: { fields, system, room } } = this;
    const count = (messages) => countTokens(fields.model, messages);
    let start = await firstThatFits(conversation, system, room, count);
    let trouble = null;
    while (start !== null && !this.isStopped) {
      conversation.start = start;
      trouble = await this.stream({ ...fields, messages: toRequest(conversation, system) });
      const isTooLong = trouble?.code === "context_length_exceeded";
      start = isTooLong ? startLater(conversation) : null;
    }
    return trouble;
  }

  async stream(fields) {
    const answer = new Answer(fields, () => this.progress());
    this.answer = answer;
    this.page.begun(this);
    const trouble = await answer.run();
    clearTimeout(this.timer);
    this.timer = 0;
    if (this.isLeft) return null;
    const { messages } = this.conversation;
    if ((trouble || answer.message.finish === "stopped") && answer.isEmpty) {
      if (messages.at(-1) === answer.message) messages.pop();
    } else if (messages.at(-1) !== answer.message) messages.push(answer.message);
    return trouble;
  }

  progress() {
    if (this.isLeft) return;
    const { answer, conversation: { messages } } = this;
    if (!answer.isEmpty && messages.at(-1) !== answer.message) messages.push(answer.message);
    this.timer ||= setTimeout(() => {
      this.timer = 0;
      if (!this.isLeft) this.page.moved(this);
    }, DRAW_MS);
  }

  /** End the answer; what it has so far is kept. */
  stop() {
    this.isStopped = true;
    this.answer?.stop();
  }

  /** End the answer at once: from now on the conversation is not changed. */
  leave() {
    this.isLeft = true;
    this.stop();
  }
}
