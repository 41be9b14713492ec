/** Elements of one message of a conversation. */

import { wasFaster } from "./answer.js";
import { asCount, asSpeed, copyFrom, inSeconds, make, makeButton, makeImage, plural } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { elementsOf } from "./tools.js";

/** What both kinds of messages have: their text can be copied and changed, and they deleted. */
class MessageView {
  /** @param {{edit: (text: string) => void, remove, turn: Function}} actions */
  constructor(message, actions, kind, name) {
    this.message = message;
    this.actions = actions;
    this.place = make("article", `message ${kind}`);
    this.place.setAttribute("aria-label", name);
    this.title = make("h2", "unseen", name);
    this.tools = make("div", "tools");
  }

  /** Show what can be done with it, and its versions: `shown` of `n`. */
  fillTools(more, shown, n) {
    const { message: { content }, actions, tools } = this;
    tools.replaceChildren(
      makeButton("Copy", (button) => copyFrom(button, content), { icon: "copy" }),
      ...more,
      makeButton("Edit", () => this.edit(), { icon: "edit", name: "change" }),
      makeButton("Delete", actions.remove, { icon: "delete" }),
    );
    if (n > 1) tools.append(turnerOf(shown, n, actions.turn, this.title.textContent));
  }

  /** Show a field to change the text. */
  edit() {
    const before = [...this.place.childNodes];
    const form = make("form", "edit");
    const field = make("textarea");
    field.value = this.message.content;
    field.setAttribute("aria-label", this.fieldName);
    const row = make("div", "row");
    const close = () => {
      this.place.replaceChildren(...before);
      this.place.querySelector(".change").focus({ preventScroll: true });
    };
    row.append(makeButton("Cancel", close), make("button", "main", this.verb));
    form.append(field, row);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (!field.value.trim() && !this.message.files) return;
      close(); // as it was: it stays as another version
      this.actions.edit(field.value);
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && this.isShort) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    this.place.replaceChildren(this.title, ...filesOf(this.message), form);
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }
}

/** A question, with its files. */
export class QuestionView extends MessageView {
  fieldName = "Your message";
  verb = "Send";
  isShort = true; // Enter sends it

  constructor(message, actions) {
    super(message, actions, "question", "You");
    this.place.append(this.title, ...filesOf(message));
    if (message.content) this.place.append(make("p", "asked", message.content));
    this.place.append(this.tools);
    const { others = [], place = 0 } = message;
    this.fillTools([], place, others.length + 1);
  }
}

function filesOf({ files = [] }) {
  return files.map((file) => {
    const { name, text, image } = file;
    if (image) {
      const figure = make("figure", "image");
      figure.append(makeImage(file), make("figcaption", "", name));
      return figure;
    }
    const place = make("details", "file");
    place.append(make("summary", "", `${name} (${plural(text.split("\n").length, "line")})`));
    const body = make("pre", "", text);
    body.tabIndex = 0;
    place.append(body);
    return place;
  });
}

/** An answer, complete or while it streams. */
export class AnswerView extends MessageView {
  fieldName = "The answer";
  verb = "Save";
  isShort = false;

  /** @param {{edit, remove, again, goOn, why: () => void, turn: (number) => void}} actions */
  constructor(message, actions) {
    super(message, actions, "answer", "Answer");
    this.thinking = make("details", "thinking");
    this.thinking.append(make("summary", "", "Thinking"), make("div", "thought"));
    this.thinking.hidden = true;
    this.steps = make("div", "steps");
    this.markdown = new MarkdownView();
    this.cost = make("p", "cost");
    this.place.append(this.title, this.thinking, this.steps, this.markdown.place, this.cost, this.tools);
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
    this.drawSteps();
    this.markdown.show(content);
  }

  /** Show the calls of tools, unless they are the same: one of them may be open. */
  drawSteps() {
    const { steps = [] } = this.message;
    const drawn = JSON.stringify(steps.map(({ calls }) => calls.map(({ state }) => state ?? null)));
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.steps.replaceChildren(...elementsOf(steps));
  }

  /** Show the whole answer to a question, with what can be done with it. */
  end(isLast, { tails = [], shown = 0 } = {}) {
    const state = `${isLast} ${shown}/${tails.length}`;
    if (this.state === state) return; // already shown
    this.state = state;
    this.place.setAttribute("aria-busy", "false");
    this.draw();
    this.cost.textContent = summaryOf(this.message);
    const again = makeButton("Answer again", this.actions.again, { icon: "again" });
    this.fillTools([again], shown, tails.length + 1);
    if (isLast && this.message.finish === "length" && this.message.content) {
      this.tools.append(makeButton("Continue", this.actions.goOn));
    }
    if (wasFaster(this.message)) {
      this.tools.append(makeButton("Why is it fast?", this.actions.why, { name: "why" }));
    }
  }
}

/** Return the buttons to the versions before and behind one of several. */
function turnerOf(shown, n, turn, name) {
  const noun = name === "Answer" ? "answer" : "version";
  const place = make("span", "turner");
  const add = (text, icon, number) => {
    const button = makeButton(text, () => turn(number), { icon });
    button.disabled = number < 0 || number >= n;
    place.append(button);
  };
  add(`Earlier ${noun}`, "before", shown - 1);
  place.append(make("span", "", `${shown + 1} / ${n}`));
  add(`Later ${noun}`, "behind", shown + 1);
  return place;
}

/** Return a line about an answer: its length, its speed, and why it ended where it did. */
export function summaryOf({ content, finish, stats = {} }) {
  const told = [];
  if (!content) told.push("No text");
  if (finish === "length") told.push("ended at the limit of its length");
  if (finish === "stopped" || finish === "edited") told.push(finish);
  if (stats.tokens) told.push(`${asCount(stats.tokens)} tokens`);
  if (stats.tokens_per_s) told.push(`${asSpeed(stats.tokens_per_s)} tokens/s`);
  const line = told.join(" · ");
  return line.charAt(0).toUpperCase() + line.slice(1);
}
