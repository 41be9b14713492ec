/** Errors, each with something to do about it. */

import { charsPerToken, shortened } from "./context.js";
import { titleOf } from "./conversations.js";
import { $ } from "./dom.js";
import { exportAll } from "./menu.js";
import { showNotice, showTrouble } from "./notices.js";

/** Show an error; `retry` does again what failed. */
export async function explain(page, trouble, retry) {
  if (trouble.code === "model_not_found") await page.readModels();
  const actions = [["Try again", retry]];
  if (trouble.status === 401) {
    $("ask-key").hidden = false;
    $("key").focus();
    actions.length = 0;
  } else if (trouble.code === "context_length_exceeded") {
    actions.splice(0, 1, ["Shorten the message", () => shorten(page)]);
  }
  const isPrompt = ["input", "prompt"].includes(trouble.param);
  if (isPrompt && page.settings.values.system.trim()) {
    actions.push(["Send without the system prompt", () => {
      page.settings.set({ system: "" });
      page.answerAgain();
    }]);
  }
  showTrouble(trouble.message, actions);
}

/** Cut the last question to what fits into the context, and answer it. */
function shorten(page) {
  const { messages } = page.conversation;
  const last = messages.pop();
  const now = [last.content, ...(last.files ?? []).map((file) => file.text)].join("").length;
  const room = page.settings.room(page.model) ?? Infinity;
  const chars = Math.min(0.7 * now, 0.8 * room * charsPerToken(messages));
  messages.push(shortened(last, Math.floor(chars)));
  page.ask();
  showNotice("The end of your message was cut, so that the model can read it.");
}

/** Say once that the storage takes nothing more. */
export function tellNotKept(page) {
  if (page.hasTold) return;
  page.hasTold = true;
  const oldest = page.kept.list().findLast((one) => one !== page.conversation);
  const actions = [["Export all", () => exportAll(page.kept.list())]];
  if (oldest) {
    actions.push([`Delete the oldest: ${titleOf(oldest)}`, () => {
      page.leave(oldest);
      page.kept.remove(oldest.id);
      page.keep();
    }]);
  }
  showNotice("This browser keeps nothing more: its storage is full or switched off. The newest \
messages will be gone when the page is closed.", actions);
}

/** Return whether the model sees the images of a message; if not, name one that does. */
export function canSee(page, { files = [] }) {
  const images = files.filter((file) => file.image);
  if (!images.length || page.model?.sees !== false) return true;
  const other = page.models.find((one) => one.sees);
  const use = () => page.choose(other.id);
  const hint = other ? `${other.id} can.` : "No model of this server is known to do so.";
  showTrouble(`${page.model.id} cannot see images. ${hint}`, other ? [[`Use ${other.id}`, use]] : []);
  return false;
}
