/** Keys for the whole page, and the list of them. */

import { $, make } from "./dom.js";
import { openSearch, turnSidebar } from "./sidebar.js";

const IS_MAC = /Mac|iPhone|iPad/.test(navigator.platform);
const MAIN = IS_MAC ? "⌘" : "Ctrl";
// name of the action, keys, what it does; those without a name are handled in the field
const KEYS = [
  ["search", `${MAIN} K`, "Search the chats"],
  ["create", `${MAIN} Shift O`, "New chat"],
  ["remove", `${MAIN} Shift Backspace`, "Delete this chat"],
  ["sidebar", `${MAIN} B`, "Show or hide the chats"],
  ["write", "/", "Write a message"],
  ["list", "?", "Show these keys"],
  ["", "Enter", "Send the message"],
  ["", "Shift Enter", "Begin a new line"],
  ["stop", "Escape", "Stop the answer, close what is open"],
];

/**
 * Listen for the keys. Keys that write a character do nothing in a field, and neither does the one
 * to delete a chat in a field with text, where it deletes words.
 *
 * @param {{create, remove, write, stop: () => void}} actions
 */
export function connectKeys(actions) {
  const list = () => $("keys-list").showModal();
  const all = { ...actions, list, search: openSearch, sidebar: turnSidebar };
  document.addEventListener("keydown", (event) => {
    const entry = KEYS.find(([name, keys]) => name && keys === nameOf(event));
    if (!entry || event.isComposing || event.repeat) return;
    const isStop = entry[0] === "stop"; // the browser closes lists and dialogs with the same key
    if (document.querySelector(isStop ? "dialog[open], :popover-open" : "dialog[open]")) return;
    const field = event.target.closest("input, textarea, select");
    const isPlain = entry[1].length === 1;
    if (field && (isPlain || (entry[0] === "remove" && field.value))) return;
    event.preventDefault();
    all[entry[0]]();
  });
  $("open-keys").addEventListener("click", list);
  $("keys-content").replaceChildren(...KEYS.flatMap(([, keys, text]) => {
    const names = make("dt");
    names.append(...keys.split(" ").map((key) => make("kbd", "", key)));
    return [names, make("dd", "", text)];
  }));
}

/** Return the name of the keys that are pressed, as in the table. */
function nameOf({ key, code, ctrlKey, metaKey, altKey, shiftKey }) {
  if (altKey || (IS_MAC ? ctrlKey : metaKey)) return "";
  if (!(IS_MAC ? metaKey : ctrlKey)) return key;
  const isLatin = /^[ -~]+$/.test(key); // other layouts: by the place of the key
  const name = isLatin ? key : code.replace("Key", "");
  const shown = name.length === 1 ? name.toUpperCase() : name;
  return `${MAIN} ${shiftKey ? "Shift " : ""}${shown}`;
}
