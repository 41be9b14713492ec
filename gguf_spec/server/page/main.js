/** The chat page: what happens when its user does something. */

import { readModels, setKey } from "./api.js";
import { Composer } from "./composer.js";
import { Conversations, currentId, newConversation, putAside, questionBefore, removeMessage,
  rewrite, runningIds, setCurrentId, setRunningIds, titleOf, turnBack, turnQuestion, turnTo } from "./conversations.js";
import { $, announce, goToEnd, isAtEnd, keepingTheEnd, plural } from "./dom.js";
import { openDrawer } from "./drawer.js";
import { connectKeys } from "./keys.js";
import { connectMenu } from "./menu.js";
import { summaryOf } from "./message.js";
import { showFill, showMemory, showModels } from "./models.js";
import { clearNotices, showNotice, showTrouble } from "./notices.js";
import { Run } from "./running.js";
import { SettingsForm } from "./settings.js";
import { connectSearch, showList } from "./sidebar.js";
import { Thread } from "./thread.js";
import { Permissions, Tools } from "./tools.js";
import { canSee, explain, tellNotKept } from "./troubles.js";

const SAVE_MS = 1000; // milliseconds between saves while an answer streams

class Page {
  constructor() {
    this.kept = new Conversations();
    this.models = [];
    this.runs = new Map(); // id of a conversation -> its answer that is being written
    this.troubles = new WeakMap(); // conversation -> error that came while another was open
    this.requests = new WeakMap(); // message -> the fields it was asked with
    this.settings = new SettingsForm((isKept) => isKept || tellNotKept(this));
    Object.assign(this, { tools: new Tools(), permissions: new Permissions() });
    this.thread = new Thread({
      again: (message) => this.answerAgain(message),
      turn: (message, number) => this.turn(message, number),
      edit: (message, text) => this.edit(message, text),
      remove: (message) => this.removeOne(message),
      goOn: () => this.send({ content: "Continue." }),
      why: (message) => openDrawer(message, this.requests.get(message)),
    });
    this.composer = new Composer({
      send: (message) => this.send(message),
      attached: (files) => canSee(this, { files }),
      problem: showTrouble,
      notice: showNotice,
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
      explain(this, error, () => this.readModels());
      return;
    }
    $("ask-key").hidden = true;
    clearNotices();
    this.tools.read();
    this.showModel();
    this.show();
    for (const id of [this.conversation.id, ...runningIds()]) this.takeUp(this.kept.get(id));
  }

  showModel() {
    showModels(this.models, this.model, (id) => this.choose(id));
    this.settings.about(this.model);
    showMemory(this.models, () => this.readModels());
  }

  choose(id) {
    this.settings.set({ model: id });
    this.showModel();
    clearNotices();
    canSee(this, this.composer);
  }

  // ---- questions and answers

  /** Add a question and answer it; return whether that could begin. */
  send(message) {
    if (this.run || !this.canAsk() || !canSee(this, message)) return false;
    const { messages } = this.conversation;
    const last = messages.at(-1);
    if (last?.role === "user" && !turnBack(messages)) removeMessage(messages, last); // not answered
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

  get run() {
    return this.runs.get(this.conversation.id);
  }

  /** Answer the last question of the conversation; that goes on while others are open. */
  ask() {
    const { conversation, settings, model } = this;
    const asked = { fields: settings.fields(model), system: settings.values.system,
      room: settings.room(model), sees: model.sees,
      tools: settings.values.tools && model.calls ? this.tools.fields() : {} };
    conversation.updated = Date.now();
    this.follow(new Run(conversation, asked, this));
  }

  /** Go on with an answer that this tab began before it was loaded again, or another tab. */
  takeUp(conversation) {
    if (!conversation?.running || this.runs.has(conversation.id) || !this.models.length) return;
    this.follow(new Run(conversation, null, this));
  }

  async follow(run) {
    const { conversation } = run;
    this.troubles.delete(conversation);
    this.runs.set(conversation.id, run);
    this.save(conversation);
    this.show();
    const trouble = await run.run();
    if (run.isLeft) return;
    this.runs.delete(conversation.id);
    turnBack(conversation.messages);
    this.save(conversation);
    if (conversation !== this.conversation) {
      if (trouble) this.troubles.set(conversation, trouble);
      announce(`${trouble ? "No answer" : "The answer is there"}: ${titleOf(conversation)}`);
      return;
    }
    keepingTheEnd(() => this.show());
    if (trouble) explain(this, trouble, () => this.answerAgain());
    else if (run.answer) {
      const { message } = run.answer;
      announce(`Answer: ${message.content} ${summaryOf(message)}.`);
    }
  }

  begun(run) {
    const { answer, conversation } = run;
    if (answer.fields) this.requests.set(answer.message, answer.fields);
    if (conversation !== this.conversation) return;
    announce(conversation.start ? "Answering. Old messages are left out." : "Answering.");
    keepingTheEnd(() => this.show());
  }

  /** Show and keep what an answer has so far. */
  moved(run, isStep = false) {
    if (run === this.run) keepingTheEnd(() => this.thread.draw(run.answer));
    if (!isStep && performance.now() - run.saved < SAVE_MS) return;
    run.saved = performance.now();
    this.save(run.conversation);
  }

  /** End the running answer of a conversation at once, without waiting for the server. */
  leave(conversation = this.conversation, { keeps = true } = {}) {
    const run = this.runs.get(conversation.id);
    if (!run) return;
    run.leave();
    this.permissions.end(run.conversation, false);
    this.runs.delete(conversation.id);
    if (keeps) this.save(conversation);
    this.showRunning();
  }

  /** Answer the question before a message again, or the last one; the earlier answer is kept. */
  answerAgain(message = null) {
    if (!this.canAsk()) return;
    const { messages } = this.conversation;
    if (!canSee(this, messages[questionBefore(messages, message)])) return;
    this.changeAnswer(message, putAside);
    this.ask();
  }

  changeAnswer(message, change, number) {
    const { messages } = this.conversation;
    this.change(messages[questionBefore(messages, message)], change, number);
  }

  /** Change the messages from one on. */
  change(message, change, number) {
    this.leave();
    clearNotices();
    const { messages, start } = this.conversation;
    const at = messages.indexOf(message);
    change(messages, at, number);
    if (start > at || start >= messages.length) this.conversation.start = 0;
    this.keep();
    this.show();
  }

  edit(message, content) {
    if (message.role === "assistant") {
      this.change(message, (messages) => rewrite(messages, message, content));
      return;
    }
    if (!this.canAsk() || !canSee(this, message)) return;
    const { role, files } = message;
    this.change(message, (messages, at) =>
      turnQuestion(messages, at, { role, content, ...(files && { files }) }));
    this.ask();
  }

  /** Show another version of a question, or of an answer. */
  turn(message, number) {
    if (message.role === "user") this.change(message, turnQuestion, number);
    else this.changeAnswer(message, turnTo, number);
  }

  /** Remove a message; offer to undo that. */
  removeOne(message) {
    this.leave();
    const { conversation } = this;
    const before = structuredClone({ messages: conversation.messages, start: conversation.start });
    this.change(message, (messages) => removeMessage(messages, message));
    if (!conversation.messages.length) this.kept.remove(conversation.id);
    this.showList();
    announce("Message deleted.");
    showNotice("Message deleted.", [["Undo", () => {
      this.leave(conversation);
      Object.assign(conversation, before);
      this.save(conversation);
      if (conversation === this.conversation) this.show();
    }]]);
  }

  // ---- conversations

  open(conversation) {
    clearNotices();
    this.conversation = conversation;
    setCurrentId(conversation.id);
    $("sidebar").hidePopover(); // on small screens
    this.show();
    this.showList();
    goToEnd();
    const trouble = this.troubles.get(conversation);
    this.troubles.delete(conversation);
    this.takeUp(conversation);
    if (trouble) explain(this, trouble, () => this.answerAgain());
    if (!matchMedia("(pointer: coarse)").matches) this.composer.focus();
    this.permissions.show(conversation);
  }

  openNew() {
    $("search").value = "";
    this.open(newConversation());
    announce("New chat.");
  }

  rename(conversation, title) {
    if (title !== titleOf(conversation)) {
      conversation.title = title;
      if (!this.kept.save(conversation)) tellNotKept(this);
    }
    this.showList();
  }

  /** Keep a conversation at the top of the list, or no more. */
  pin(conversation) {
    conversation.pinned = !conversation.pinned;
    this.save(conversation);
  }

  remove(conversation) {
    this.leave(conversation);
    if (conversation === this.conversation) this.openNew();
    this.kept.remove(conversation.id);
    this.showList();
    showNotice(`Deleted: ${titleOf(conversation)}`, [["Undo", () => {
      this.kept.save(conversation);
      this.open(conversation);
    }]]);
  }

  /** Keep the open conversation, which its user changed: it becomes the first of the list. */
  keep() {
    this.conversation.updated = Date.now();
    this.save(this.conversation);
  }

  save(conversation) {
    if (this.kept.save(conversation)) this.hasTold = false;
    else tellNotKept(this);
    this.showList();
  }

  add(conversations) {
    for (const one of conversations) if (!this.kept.save(one)) tellNotKept(this);
    this.open(conversations[0]);
    showNotice(`${plural(conversations.length, "chat")} imported.`);
  }

  removeAll() {
    const before = this.kept.list();
    for (const one of before) this.leave(one);
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
    this.thread.show(this.conversation, this.model?.n_ctx, this.run);
    this.showRunning();
    showFill(this.conversation, this.model);
    document.title = `${titleOf(this.conversation)} – gguf-spec`;
  }

  showList() {
    if ($("conversations").querySelector("input")) return; // a title is being changed
    showList(this.kept.list(), this.conversation.id, this.runs, $("search").value, {
      open: (one) => this.open(one),
      rename: (one, title) => this.rename(one, title),
      pin: (one) => this.pin(one),
      remove: (one) => this.remove(one),
    });
  }

  /** Show the button to stop while the open conversation is being answered. */
  showRunning() {
    const isRunning = Boolean(this.run);
    const from = isRunning ? $("send") : $("stop"); // the focused button is hidden next
    const moves = document.activeElement === from;
    $("send").hidden = isRunning;
    $("stop").hidden = !isRunning;
    if (moves) (isRunning ? $("stop") : $("prompt")).focus({ preventScroll: true });
  }

  listen() {
    $("new").addEventListener("click", () => this.openNew());
    $("stop").addEventListener("click", () => this.run?.stop());
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
    connectSearch(() => this.showList());
    connectKeys({
      create: () => this.openNew(),
      remove: () => this.conversation.messages.length && this.remove(this.conversation),
      write: () => this.composer.focus(),
      stop: () => this.run?.stop(),
    });
    document.addEventListener("scroll", () => ($("down").hidden = isAtEnd()), { passive: true });
    addEventListener("pagehide", () => {
      for (const { conversation } of this.runs.values()) this.save(conversation);
      setRunningIds([...this.runs.keys()]);
    });
    addEventListener("storage", (event) => this.takeOver(event));
  }

  /** Show what another tab changed. */
  takeOver(event) {
    const id = this.kept.idOf(event);
    if (!id) return;
    if (event.newValue === null) this.leave({ id }, { keeps: false });
    this.kept.follow(event, this.runs.has(id));
    if (id === this.conversation.id && !this.run) {
      this.conversation = this.kept.get(id) ?? newConversation();
      this.show();
      this.takeUp(this.conversation);
    }
    this.showList();
  }
}

new Page();
