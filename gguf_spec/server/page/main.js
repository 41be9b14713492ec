/** The chat page: what happens when its user does something. */

import { Answer } from "./answer.js";
import { countTokens, readModels, setKey } from "./api.js";
import { Composer } from "./composer.js";
import { charsPerToken, firstThatFits, shortened, startLater, toRequest } from "./context.js";
import { Conversations, currentId, newConversation, putAside, questionBefore, setCurrentId,
  titleOf, turnBack, turnTo } from "./conversations.js";
import { $, announce, goToEnd, isAtEnd, keepingTheEnd, plural } from "./dom.js";
import { openDrawer } from "./drawer.js";
import { connectMenu, exportAll } from "./menu.js";
import { summaryOf } from "./message.js";
import { showFill, showModels } from "./models.js";
import { clearNotices, showNotice, showTrouble } from "./notices.js";
import { SettingsForm } from "./settings.js";
import { showList } from "./sidebar.js";
import { Thread } from "./thread.js";

const DRAW_MS = 40; // milliseconds between updates of the page while an answer streams
const SAVE_MS = 1000; // milliseconds between saves while an answer streams

class Page {
  constructor() {
    this.kept = new Conversations();
    this.models = [];
    this.answer = null; // the running one
    this.requests = new WeakMap(); // message -> the fields it was asked with
    this.settings = new SettingsForm((isKept) => isKept || this.tellNotKept());
    this.thread = new Thread({
      again: (message) => this.answerAgain(message),
      turn: (message, number) => this.changeAnswer(message, turnTo, number),
      edit: (message, text) => this.edit(message, text),
      goOn: () => this.send({ content: "Continue." }),
      why: (message) => openDrawer(message, this.requests.get(message)),
    });
    this.composer = new Composer({
      send: (message) => this.send(message),
      problem: (text) => showTrouble(text),
    });
    this.listen();
    this.open(this.kept.get(currentId()) ?? newConversation());
    this.readModels();
  }

  get model() {
    return this.models.find((one) => one.id === this.settings.values.model) ?? this.models[0];
  }

  // ---- the server

  async readModels() {
    try {
      this.models = await readModels();
    } catch (error) {
      this.explain(error, () => this.readModels());
      return;
    }
    $("ask-key").hidden = true;
    clearNotices();
    this.showModel();
    this.show();
  }

  showModel() {
    showModels(this.models, this.model, (id) => {
      this.settings.set({ model: id });
      this.showModel();
    });
    this.settings.about(this.model);
  }

  // ---- questions and answers

  /** Add a question and answer it; return whether that could begin. */
  send(message) {
    if (this.answer || !this.canAsk()) return false;
    const { messages } = this.conversation;
    if (messages.at(-1)?.role === "user" && !turnBack(messages)) messages.pop(); // never answered
    messages.push({ role: "user", ...message });
    clearNotices();
    this.show();
    goToEnd();
    this.ask();
    return true;
  }

  canAsk() {
    const wrong = this.settings.wrongField();
    if (wrong) {
      this.settings.openAt(wrong);
      showTrouble(`${wrong.labels[0].textContent.trim()}: ${wrong.validationMessage}`);
    } else if (!this.model) this.readModels();
    return !wrong && this.model;
  }

  /** Answer the last question of the conversation. */
  async ask() {
    const { conversation, settings, model } = this;
    const { system } = settings.values;
    const fields = settings.fields(model);
    const count = (messages) => countTokens(model.id, messages);
    conversation.start = await firstThatFits(conversation, system, settings.room(model), count);
    if (conversation !== this.conversation || this.answer) return; // the user went elsewhere
    this.keep();
    let trouble;
    do {
      this.show();
      trouble = await this.stream({ ...fields, messages: toRequest(conversation, system) });
      if (trouble?.code !== "context_length_exceeded" || conversation !== this.conversation) break;
      const start = startLater(conversation);
      if (start === null) break;
      conversation.start = start;
    } while (trouble);
    if (turnBack(conversation.messages)) {
      this.kept.save(conversation);
      if (conversation === this.conversation) this.show();
    }
    if (!trouble || conversation !== this.conversation) return;
    if (trouble.code === "model_not_found") await this.readModels();
    this.explain(trouble, () => this.answerAgain());
  }

  /** Run one request, and show its answer in the open conversation; return the error, if any. */
  async stream(fields) {
    const { conversation } = this;
    const { messages } = conversation;
    const answer = new Answer(fields, () => this.progress(answer));
    this.requests.set(answer.message, fields);
    this.view = this.thread.begin(answer.message);
    this.saved = performance.now();
    this.setRunning(answer);
    announce(conversation.start ? "Answering. Old messages are left out." : "Answering.");
    const trouble = await answer.run();
    if (this.answer !== answer) return null; // the user went elsewhere
    clearTimeout(this.timer);
    this.timer = 0;
    if ((trouble || answer.message.finish === "stopped") && answer.isEmpty) {
      if (messages.at(-1) === answer.message) messages.pop();
    } else if (messages.at(-1) !== answer.message) messages.push(answer.message);
    this.setRunning(null);
    this.keep();
    keepingTheEnd(() => this.show());
    if (!trouble) announce(`Answer: ${answer.message.content} ${summaryOf(answer.message)}.`);
    return trouble;
  }

  progress(answer) {
    if (this.answer !== answer) return;
    const { messages } = this.conversation;
    if (!answer.isEmpty && messages.at(-1) !== answer.message) messages.push(answer.message);
    this.timer ||= setTimeout(() => {
      this.timer = 0;
      if (this.answer !== answer) return;
      keepingTheEnd(() => {
        this.view.draw();
        this.view.cost.textContent = answer.state;
      });
      if (performance.now() - this.saved > SAVE_MS) this.keep();
    }, DRAW_MS);
  }

  /** End the running answer; what it has so far is kept. */
  stop() {
    this.answer?.stop();
  }

  /** End the running answer at once, without waiting for the server. */
  leave() {
    const { answer } = this;
    if (!answer) return;
    this.setRunning(null);
    answer.stop();
    this.keep();
  }

  /** Answer the question before a message again, or the last one; the earlier answer is kept. */
  answerAgain(message = null) {
    if (!this.canAsk()) return;
    this.changeAnswer(message, putAside);
    this.ask();
  }

  changeAnswer(message, change, number) {
    this.leave();
    clearNotices();
    const { messages, start } = this.conversation;
    const at = questionBefore(messages, message);
    change(messages, at, number);
    if (start > at) this.conversation.start = 0;
    this.keep();
    this.show();
  }

  edit(message, content) {
    if (!this.canAsk()) return;
    const { messages } = this.conversation;
    const { tails: _, shown: __, ...question } = { ...message, content }; // without its answers
    this.cut(messages.indexOf(message));
    messages.push(question);
    this.ask();
  }

  /** Remove the messages from an index on; offer to undo that. */
  cut(index) {
    this.leave();
    clearNotices();
    const { conversation } = this;
    const before = { messages: [...conversation.messages], start: conversation.start };
    const n = conversation.messages.splice(index).length;
    if (conversation.start >= index) conversation.start = 0;
    if (!n) return;
    showNotice(`${plural(n, "message")} replaced.`, [["Undo", () => {
      this.leave();
      conversation.messages.splice(0, Infinity, ...before.messages);
      conversation.start = before.start;
      this.kept.save(conversation);
      if (conversation === this.conversation) this.show();
    }]]);
  }

  // ---- errors, each with something to do about it

  explain(trouble, retry) {
    const actions = [["Try again", retry]];
    if (trouble.status === 401) {
      $("ask-key").hidden = false;
      $("key").focus();
      actions.length = 0;
    } else if (trouble.code === "context_length_exceeded") {
      actions.splice(0, 1, ["Shorten the message", () => this.shorten()]);
    }
    const isPrompt = ["messages", "prompt"].includes(trouble.param);
    if (isPrompt && this.settings.values.system.trim()) {
      actions.push(["Send without the system prompt", () => {
        this.settings.set({ system: "" });
        this.answerAgain();
      }]);
    }
    showTrouble(trouble.message, actions);
  }

  /** Cut the last question to what fits into the context, and answer it. */
  shorten() {
    const { messages } = this.conversation;
    const last = messages.pop();
    const now = [last.content, ...(last.files ?? []).map((file) => file.text)].join("").length;
    const room = this.settings.room(this.model) ?? Infinity;
    const chars = Math.min(0.7 * now, 0.8 * room * charsPerToken(messages));
    messages.push(shortened(last, Math.floor(chars)));
    this.ask();
    showNotice("The end of your message was cut, so that the model can read it.");
  }

  tellNotKept() {
    if (this.hasTold) return;
    this.hasTold = true;
    const oldest = this.kept.list().findLast((one) => one !== this.conversation);
    const actions = [["Export all", () => exportAll(this.kept.list())]];
    if (oldest) {
      actions.push([`Delete the oldest: ${titleOf(oldest)}`, () => {
        this.kept.remove(oldest.id);
        this.keep();
        this.showList();
      }]);
    }
    showNotice("This browser keeps nothing more: its storage is full or switched off. The newest \
messages will be gone when the page is closed.", actions);
  }

  // ---- conversations

  open(conversation) {
    this.leave();
    clearNotices();
    this.conversation = conversation;
    setCurrentId(conversation.id);
    $("sidebar").hidePopover(); // on small screens
    this.show();
    this.showList();
    goToEnd();
    if (!matchMedia("(pointer: coarse)").matches) this.composer.focus();
  }

  openNew() {
    this.open(newConversation());
    announce("New chat.");
  }

  rename(conversation, title) {
    if (title !== titleOf(conversation)) {
      conversation.title = title;
      if (!this.kept.save(conversation)) this.tellNotKept();
    }
    this.showList();
  }

  remove(conversation) {
    if (conversation === this.conversation) this.openNew();
    this.kept.remove(conversation.id);
    this.showList();
    showNotice(`Deleted: ${titleOf(conversation)}`, [["Undo", () => {
      this.kept.save(conversation);
      this.open(conversation);
    }]]);
  }

  keep() {
    const { conversation } = this;
    this.saved = performance.now();
    conversation.updated = Date.now();
    if (this.kept.save(conversation)) this.hasTold = false;
    else this.tellNotKept();
    this.showList();
  }

  add(conversations) {
    for (const one of conversations) if (!this.kept.save(one)) this.tellNotKept();
    this.open(conversations[0]);
    showNotice(`${plural(conversations.length, "chat")} imported.`);
  }

  removeAll() {
    const before = this.kept.list();
    this.openNew();
    this.kept.removeAll();
    this.showList();
    showNotice(`${plural(before.length, "chat")} deleted.`, [["Undo", () => {
      for (const one of before) this.kept.save(one);
      this.showList();
    }]]);
  }

  // ---- display

  show() {
    this.thread.show(this.conversation, this.model?.n_ctx);
    showFill(this.conversation, this.model);
    document.title = `${titleOf(this.conversation)} – gguf-spec`;
  }

  showList() {
    if ($("conversations").querySelector("input")) return; // a title is being changed
    showList(this.kept.list(), this.conversation.id, {
      open: (one) => this.open(one),
      rename: (one, title) => this.rename(one, title),
      remove: (one) => this.remove(one),
    });
  }

  setRunning(answer) {
    this.answer = answer;
    const from = answer ? $("send") : $("stop"); // the focused button is hidden next
    const moves = document.activeElement === from;
    $("send").hidden = Boolean(answer);
    $("stop").hidden = !answer;
    if (moves) (answer ? $("stop") : $("prompt")).focus({ preventScroll: true });
  }

  listen() {
    $("new").addEventListener("click", () => this.openNew());
    $("stop").addEventListener("click", () => this.stop());
    $("down").addEventListener("click", goToEnd);
    $("open-settings").addEventListener("click", () => $("settings").showModal());
    for (const close of document.querySelectorAll("dialog .close")) {
      close.addEventListener("click", () => close.closest("dialog").close());
    }
    $("ask-key").addEventListener("submit", (event) => {
      event.preventDefault();
      setKey($("key").value.trim());
      $("key").value = "";
      this.readModels().then(() => $("ask-key").hidden && this.composer.focus());
    });
    connectMenu({
      current: () => this.conversation,
      all: () => this.kept.list(),
      add: (conversations) => this.add(conversations),
      removeAll: () => this.removeAll(),
    });
    document.addEventListener("keydown", (event) => {
      const isBusy = document.querySelector("dialog[open], :popover-open");
      if (event.key === "Escape" && !isBusy) this.stop();
    });
    document.addEventListener("scroll", () => ($("down").hidden = isAtEnd()), { passive: true });
    addEventListener("pagehide", () => this.answer && this.keep());
    addEventListener("storage", (event) => this.follow(event));
  }

  /** Show what another tab changed. */
  follow(event) {
    const id = this.kept.follow(event);
    if (id === this.conversation.id && !this.answer) {
      this.conversation = this.kept.get(id) ?? newConversation();
      this.show();
    }
    if (id) this.showList();
  }
}

new Page();
