/** The messages of the open conversation on the page. */

import { $, asCount, make, plural } from "./dom.js";
import { AnswerView, QuestionView } from "./message.js";

/** Shows a conversation. Each message keeps its elements as long as it is there. */
export class Thread {
  /** @param {{again, turn, edit, remove, goOn, why}} actions take a message; `edit` a
   *   text and `turn` a number as well */
  constructor(actions) {
    this.actions = actions;
    this.views = new WeakMap(); // message -> view
    this.place = $("thread");
    this.pending = $("pending"); // offers to answer a question that has no answer
    $("answer").addEventListener("click", () => actions.again());
  }

  /**
   * Show a conversation.
   *
   * @param {number | null} nCtx context of the model, in tokens; null if not known
   * @param {{answer: object | null}} [run] of its answer that is being written
   */
  show({ messages, start }, nCtx, run) {
    const written = run?.answer?.message;
    // An answer that is taken up is read from its beginning, in place of what was kept of it.
    const kept = messages.at(-1)?.role === "assistant" ? messages.slice(0, -1) : messages;
    const shown = written && !messages.includes(written) ? [...kept, written] : messages;
    const places = shown.map((message, i) => {
      const view = this.viewOf(message);
      if (message === written) this.draw(run.answer);
      else view.end?.(i === shown.length - 1, shown[i - 1]);
      return view.place;
    });
    if (start > 0) places.splice(start, 0, dividerOf(start, nCtx));
    this.replace(places);
    $("empty").hidden = messages.length > 0;
    this.pending.hidden = Boolean(run) || messages.at(-1)?.role !== "user";
  }

  /** Show what an answer has so far. */
  draw(answer) {
    this.viewOf(answer.message).write(answer.state);
  }

  /** Show these elements; those at the beginning that are there already are not moved. */
  replace(places) {
    const { children } = this.place;
    let same = 0;
    while (same < places.length && children[same] === places[same]) same += 1;
    while (children.length > same) this.place.lastChild.remove();
    this.place.append(...places.slice(same));
  }

  viewOf(message) {
    if (!this.views.has(message)) this.views.set(message, this.makeView(message));
    return this.views.get(message);
  }

  makeView(message) {
    const { again, turn, edit, remove, goOn, why } = this.actions;
    const own = { edit: (text) => edit(message, text), remove: () => remove(message),
      turn: (number) => turn(message, number) };
    if (message.role === "user") return new QuestionView(message, own);
    return new AnswerView(message, { ...own, again: () => again(message), goOn,
      why: () => why(message) });
  }
}

function dividerOf(n, nCtx) {
  const room = nCtx ? ` of ${asCount(nCtx)} tokens` : "";
  const text = `The model no longer sees the ${plural(n, "message")} above: its context${room} is \
full.`;
  return make("p", "divider", text);
}
