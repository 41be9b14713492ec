/** The list of conversations: open, rename, delete. */

import { $, make, makeButton } from "./dom.js";
import { titleOf } from "./conversations.js";

let shown = []; // what the list was made of

/**
 * Show the conversations. A list that is the same is left alone: answers that grow are kept often,
 * and a new row would take the focus, or a click, from its user.
 *
 * @param {object[]} conversations the last changed one first
 * @param {string} current id of the one that is open
 * @param {Map<string, object>} runs by id: those that are being answered
 * @param {{open: Function, rename: Function, remove: Function}} actions take a conversation
 */
export function showList(conversations, current, runs, actions) {
  const place = $("conversations");
  const state = [current, ...conversations.flatMap((one) => [one, titleOf(one), runs.has(one.id)])];
  const isSame = state.length === shown.length && state.every((one, i) => one === shown[i]);
  if (isSame && !place.querySelector("li:empty")) return;
  shown = state;
  const focused = document.activeElement.closest?.("#conversations li");
  const at = focused ? [...focused.children].indexOf(document.activeElement) : -1;
  const rows = conversations.map((one) => rowOf(one, one.id === current, runs.has(one.id), actions));
  place.replaceChildren(...rows);
  if (at >= 0) rows.find((row) => row.dataset.id === focused.dataset.id)?.children[at].focus();
  $("no-conversations").hidden = rows.length > 0;
}

function rowOf(conversation, isCurrent, isAnswering, actions) {
  const row = make("li", isCurrent ? "current" : "");
  row.dataset.id = conversation.id;
  const title = titleOf(conversation);
  const open = makeButton(title, () => actions.open(conversation), { name: "open" });
  open.title = title;
  if (isCurrent) open.setAttribute("aria-current", "page");
  const rename = makeButton(`Rename: ${title}`, () => edit(row, conversation, actions),
    { icon: "edit" });
  const remove = makeButton(`Delete: ${title}`, () => actions.remove(conversation),
    { icon: "delete" });
  row.append(open, rename, remove);
  if (isAnswering) {
    const mark = make("span", "answering");
    mark.id = `answering-${conversation.id}`;
    mark.title = mark.ariaLabel = "Answering";
    mark.role = "img";
    open.setAttribute("aria-describedby", mark.id);
    row.append(mark);
  }
  return row;
}

/** Replace a row by a field for its title; Enter keeps the new one, Escape the old one. */
function edit(row, conversation, actions) {
  const field = make("input");
  field.value = titleOf(conversation);
  field.maxLength = 80;
  field.setAttribute("aria-label", "Title");
  let isDone = false;
  const finish = (title, focus) => {
    if (isDone) return;
    isDone = true;
    row.replaceChildren();
    actions.rename(conversation, title.trim());
    if (focus) document.querySelector(`[data-id="${conversation.id}"] button`)?.focus();
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.isComposing) finish(field.value, true);
    if (event.key === "Escape") {
      event.stopPropagation();
      event.preventDefault(); // keep the list open on small screens
      finish(titleOf(conversation), true);
    }
  });
  field.addEventListener("blur", () => finish(field.value, false));
  row.replaceChildren(field);
  field.focus();
  field.select();
}
