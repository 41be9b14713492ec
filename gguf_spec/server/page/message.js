/** Elements of one message of a conversation. */

import { wasFaster } from "./answer.js";
import { asCount, asSpeed, copyFrom, inSeconds, make, makeButton, plural } from "./dom.js";
import { MarkdownView } from "./markdown.js";

/** A question, with its files. */
export class QuestionView {
  /** @param {{edit: (text: string) => void}} actions */
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.place = make("article", "message question");
    this.place.setAttribute("aria-label", "You");
    this.show();
  }

  show() {
    const { message } = this;
    const tools = make("div", "tools");
    tools.append(
      makeButton("Copy", (button) => copyFrom(button, message.content), { icon: "copy" }),
      makeButton("Edit", () => this.edit(), { icon: "edit" }),
    );
    this.place.replaceChildren(make("h2", "unseen", "You"), ...filesOf(message));
    if (message.content) this.place.append(make("p", "asked", message.content));
    this.place.append(tools);
  }

  /** Show a field to change the question. */
  edit() {
    const form = make("form", "edit");
    const field = make("textarea");
    field.value = this.message.content;
    field.setAttribute("aria-label", "Your message");
    const row = make("div", "row");
    const save = make("button", "main", "Send");
    const close = () => {
      this.show();
      this.place.querySelector(".tools button:last-child").focus({ preventScroll: true });
    };
    row.append(makeButton("Cancel", close), save);
    form.append(field, row);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!field.value.trim() && !this.message.files) return;
      this.show(); // as it was, in case the change is undone
      this.actions.edit(field.value);
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    this.place.replaceChildren(make("h2", "unseen", "You"), ...filesOf(this.message), form);
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }
}

function filesOf({ files = [] }) {
  return files.map(({ name, text }) => {
    const place = make("details", "file");
    place.append(make("summary", "", `${name} (${plural(text.split("\n").length, "line")})`));
    const body = make("pre", "", text);
    body.tabIndex = 0;
    place.append(body);
    return place;
  });
}

/** An answer, complete or while it streams. */
export class AnswerView {
  /** @param {{again, goOn, why: () => void, turn: (number) => void}} actions */
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.place = make("article", "message answer");
    this.place.setAttribute("aria-label", "Answer");
    this.thinking = make("details", "thinking");
    this.thinking.append(make("summary", "", "Thinking"), make("div", "thought"));
    this.thinking.hidden = true;
    this.markdown = new MarkdownView();
    this.cost = make("p", "cost");
    this.tools = make("div", "tools");
    const title = make("h2", "unseen", "Answer");
    this.place.append(title, this.thinking, this.markdown.place, this.cost, this.tools);
  }

  /** Show the text so far, and a line about the state of the answer. */
  write(state) {
    this.place.setAttribute("aria-busy", "true");
    this.cost.textContent = state;
    this.draw();
  }

  draw() {
    const { content, reasoning, stats } = this.message;
    this.thinking.hidden = !reasoning;
    if (reasoning) {
      this.thinking.lastChild.textContent = reasoning;
      const time = stats?.thinking_ms ? `Thought for ${inSeconds(stats.thinking_ms)}` : "Thoughts";
      this.thinking.firstChild.textContent = content ? time : "Thinking";
    }
    this.markdown.show(content);
  }

  /** Show the whole answer to a question, with what can be done with it. */
  end(isLast, { tails = [], shown = 0 } = {}) {
    const state = `${isLast} ${shown}/${tails.length}`;
    if (this.state === state) return; // already shown
    this.state = state;
    this.place.setAttribute("aria-busy", "false");
    this.draw();
    this.cost.textContent = summaryOf(this.message);
    this.tools.replaceChildren(
      makeButton("Copy", (button) => copyFrom(button, this.message.content), { icon: "copy" }),
      makeButton("Answer again", this.actions.again, { icon: "again" }),
    );
    if (tails.length) this.tools.append(turnerOf(shown, tails.length + 1, this.actions.turn));
    if (isLast && this.message.finish === "length" && this.message.content) {
      this.tools.append(makeButton("Continue", this.actions.goOn));
    }
    if (wasFaster(this.message)) {
      this.tools.append(makeButton("Why is it fast?", this.actions.why, { name: "why" }));
    }
  }
}

/** Return the buttons to the answers before and behind one of several. */
function turnerOf(shown, n, turn) {
  const place = make("span", "turner");
  const add = (text, icon, number) => {
    const button = makeButton(text, () => turn(number), { icon });
    button.disabled = number < 0 || number >= n;
    place.append(button);
  };
  add("Earlier answer", "before", shown - 1);
  place.append(make("span", "", `${shown + 1} / ${n}`));
  add("Later answer", "behind", shown + 1);
  return place;
}

/** Return a line about an answer: its length, its speed, and why it ended where it did. */
export function summaryOf({ content, finish, stats = {} }) {
  const told = [];
  if (!content) told.push("No text");
  if (finish === "length") told.push("ended at the limit of its length");
  if (finish === "stopped") told.push("stopped");
  if (stats.tokens) told.push(`${asCount(stats.tokens)} tokens`);
  if (stats.tokens_per_s) told.push(`${asSpeed(stats.tokens_per_s)} tokens/s`);
  const line = told.join(" · ");
  return line.charAt(0).toUpperCase() + line.slice(1);
}
