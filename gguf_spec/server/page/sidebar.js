/** The list of conversations: open, rename, delete. */

import { $, announce, make, makeButton, plural } from "./dom.js";
import { titleOf } from "./conversations.js";
import { foundLine, search } from "./search.js";

let shown = []; // what the list was made of

/**
 * Show the conversations. A list that is the same is left alone: answers that grow are kept often,
 * and a new row would take the focus, or a click, from its user.
 *
 * @param {object[]} conversations the last changed one first
 * @param {string} current id of the one that is open
 * @param {Map<string, object>} runs by id: those that are being answered
 * @param {string} query only those that have its words are shown
 * @param {{open, pin, rename, remove: Function}} actions take a conversation
 */
export function showList(conversations, current, runs, query, actions) {
  const place = $("conversations");
  const hits = search(conversations, query, titleOf);
  const facts = hits.flatMap(({ one, found }) =>
    [one, titleOf(one), runs.has(one.id), one.pinned === true, found?.join("\n")]);
  const state = [current, conversations.length > 0, ...facts];
  const isSame = state.length === shown.length && state.every((one, i) => one === shown[i]);
  if (isSame && !place.querySelector("li:empty")) return;
  shown = state;
  const focused = document.activeElement.closest?.("#conversations li");
  const at = focused ? [...focused.children].indexOf(document.activeElement) : -1;
  const rows = hits.map((hit) => rowOf(hit, current, runs, actions));
  place.replaceChildren(...rows);
  if (at >= 0) rows.find((row) => row.dataset.id === focused.dataset.id)?.children[at].focus();
  $("no-conversations").hidden = conversations.length > 0;
  $("no-hits").hidden = rows.length > 0 || !conversations.length;
}

function rowOf({ one: conversation, found }, current, runs, actions) {
  const isCurrent = conversation.id === current;
  const row = make("li", isCurrent ? "current" : "");
  row.dataset.id = conversation.id;
  const title = titleOf(conversation);
  const open = makeButton(title, () => actions.open(conversation), { name: "open" });
  open.title = title;
  if (found) open.append(foundLine(found));
  if (isCurrent) open.setAttribute("aria-current", "page");
  const rename = makeButton(`Rename: ${title}`, () => edit(row, conversation, actions),
    { icon: "edit" });
  const remove = makeButton(`Delete: ${title}`, () => actions.remove(conversation),
    { icon: "delete" });
  const pin = makeButton(`Pin: ${title}`, () => actions.pin(conversation), { icon: "pin" });
  pin.setAttribute("aria-pressed", String(conversation.pinned === true));
  row.append(open, pin, rename, remove);
  if (runs.has(conversation.id)) {
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

/** Connect the field to search; `changed` is called when what it holds has changed. */
export function connectSearch(changed) {
  const field = $("search");
  field.addEventListener("input", () => {
    changed();
    announce(plural($("conversations").childElementCount, "chat"));
  });
  field.addEventListener("keydown", (event) => {
    const first = $("conversations").querySelector(".open");
    if (event.key === "Enter" && field.value && !event.isComposing) first?.click();
    if (event.key !== "Escape") return;
    event.stopPropagation(); // it stops no answer
    if (!field.value) {
      $("prompt").focus({ preventScroll: true });
      return;
    }
    event.preventDefault(); // keep the list open on small screens
    field.value = "";
    changed();
  });
}

/** Go to the field to search; the list is shown if it is hidden. */
export function openSearch() {
  if (!$("sidebar").checkVisibility()) $("sidebar").showPopover();
  $("search").focus();
  $("search").select();
}

/** Show or hide the list: it is beside the conversation, or above it on small screens. */
export function turnSidebar() {
  const sidebar = $("sidebar");
  if (sidebar.matches(":popover-open")) sidebar.hidePopover();
  else if (!matchMedia("(min-width: 60rem)").matches) sidebar.showPopover();
  else if (document.body.classList.toggle("alone")) $("prompt").focus({ preventScroll: true });
}
