/** The list of conversations: open, rename, delete. */

import { $, make, makeButton } from "./dom.js";
import { titleOf } from "./conversations.js";

/**
 * Show the conversations.
 *
 * @param {object[]} conversations the last changed one first
 * @param {string} current id of the one that is open
 * @param {{open: Function, rename: Function, remove: Function}} actions take a conversation
 */
export function showList(conversations, current, actions) {
  const rows = conversations.map((one) => rowOf(one, one.id === current, actions));
  $("conversations").replaceChildren(...rows);
  $("no-conversations").hidden = rows.length > 0;
}

function rowOf(conversation, isCurrent, actions) {
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
