/** Tools of the server: which there are, the question before each call, and what came of it. */

import { callTool, readTools } from "./api.js";
import { titleOf } from "./conversations.js";
import { $, announce, make } from "./dom.js";
import { showNotice } from "./notices.js";

/** Rounds of calls for one question; then the model has to answer with what it has. */
export const MOST_ROUNDS = 8;
const DENIED = "The user did not allow this call.";
const STATES = { asked: "Asks to call", calling: "Calling", called: "Called", denied: "Denied" };
const NOT_MADE = "This call was not made.";
// Characters that change how others are shown; the user must see what would be sent.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** The tools that the server offers to the page. */
export class Tools {
  constructor() {
    this.list = [];
    this.ready = Promise.resolve();
  }

  /** Ask the server for them, and show them in the settings. */
  read() {
    this.ready = readTools().then(({ data, notes, offered }) => {
      this.list = data;
      $("tools-row").hidden = !offered;
      const servers = [...new Set(data.map(({ server }) => server))];
      const namesOf = (one) => data.filter(({ server }) => server === one).map(({ name }) => name);
      $("tools-list").replaceChildren(
        ...servers.map((one) => make("li", "", `${one}: ${namesOf(one).join(", ")}`)),
        ...notes.map((note) => make("li", "note", shownAs(note))));
    }).catch(() => { this.list = []; });
  }

  /** Call a tool for an answer, if its user allows it. Another chat than the open one asks when it is opened. */
  async callAllowed(page, run, call, most) {
    const { conversation } = run;
    call.state = "asked";
    page.moved(run, true);
    const answer = page.permissions.ask(conversation, call, this.serverOf(call.name));
    page.permissions.show(page.conversation);
    if (conversation !== page.conversation) {
      const told = `A tool is asked for: ${titleOf(conversation)}`;
      announce(told);
      showNotice(told, [["Show", () => page.open(conversation)]]);
    }
    const isAllowed = await answer;
    if (run.isStopped) return;
    if (isAllowed) call.state = "calling";
    page.moved(run, true);
    await this.call(call, isAllowed, most);
  }

  /** Return them as fields of a request, once they are known; none if there are none. */
  async fields() {
    await this.ready;
    const tools = this.list.map(({ server: _, ...tool }) => ({ type: "function", ...tool }));
    return tools.length ? { tools } : {};
  }

  /** Call a tool that the user allowed, or not; the call keeps what came of it. */
  async call(call, isAllowed, most) {
    const { name, arguments: given } = call;
    const told = () => callTool({ name, arguments: given, most }).catch((error) => error.message);
    const output = isAllowed ? await told() : DENIED;
    Object.assign(call, { output, state: isAllowed ? "called" : "denied" });
  }

  serverOf(name) {
    return this.list.find((one) => one.name === name)?.server ?? "";
  }
}

/** The questions before calls. Each chat has its own; that of the open one is shown. */
export class Permissions {
  constructor() {
    this.asked = new Map(); // conversation -> {call, server, done}
    this.place = $("ask-tool");
    $("allow").addEventListener("click", () => this.place.close("allow"));
    $("deny").addEventListener("click", () => this.place.close("deny"));
    this.place.addEventListener("close", () => {
      if (this.place.open) return; // with the question of another chat
      const { shown } = this;
      this.shown = null;
      if (shown) this.end(shown, this.place.returnValue === "allow");
    });
  }

  /** Ask whether a tool may be called. */
  ask(conversation, call, server) {
    return new Promise((done) => this.asked.set(conversation, { call, server, done }));
  }

  /** Show the question of a conversation, if it has one, and no other. */
  show(conversation) {
    if (this.shown === conversation) return;
    this.shown = null;
    if (this.place.open) this.place.close();
    const question = this.asked.get(conversation);
    if (!question) return;
    this.shown = conversation;
    this.place.returnValue = "";
    $("ask-tool-name").textContent = shownAs(question.call.name);
    $("ask-tool-server").textContent = shownAs(question.server);
    $("ask-tool-arguments").textContent = shownAs(indented(question.call.arguments));
    this.place.showModal();
    $("ask-tool-title").focus(); // no key that is being typed answers
    announce(`The model asks to call ${question.call.name}.`);
  }

  /** End the question of a conversation. */
  end(conversation, isAllowed) {
    const question = this.asked.get(conversation);
    this.asked.delete(conversation);
    question?.done(isAllowed);
    if (this.shown === conversation) this.show(null);
  }
}

/** Return the items of a request for rounds of calls: texts, calls and their results. */
export function itemsOf(steps = [], at) {
  return steps.flatMap(({ content, calls }, i) => [
    ...(content ? [{ role: "assistant", content }] : []),
    ...calls.map(({ name, arguments: given }, n) =>
      ({ type: "function_call", call_id: `call_${at}_${i}_${n}`, name, arguments: given })),
    ...calls.map(({ output = NOT_MADE }, n) =>
      ({ type: "function_call_output", call_id: `call_${at}_${i}_${n}`, output })),
  ]);
}

/** Return elements for the rounds of calls of an answer. */
export function elementsOf(steps = []) {
  return steps.flatMap(({ content, calls }) => [
    ...(content ? [make("p", "said", content)] : []),
    ...calls.map(({ name, arguments: given, output, state }) => {
      const place = make("details", "call");
      const told = STATES[state] ?? "Not called";
      place.append(make("summary", "", `${told}: ${shownAs(name)}`), make("pre", "", shownAs(given)));
      if (output !== undefined) place.append(make("pre", "output", shownAs(output)));
      for (const pre of place.querySelectorAll("pre")) pre.tabIndex = 0;
      return place;
    }),
  ]);
}

/** Return a text in which characters that hide or turn others are written as escapes. */
export function shownAs(text) {
  return text.replace(HIDDEN, (one) => `\\u${one.codePointAt(0).toString(16).padStart(4, "0")}`);
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text || "{}"), null, 2);
  } catch {
    return text;
  }
}
