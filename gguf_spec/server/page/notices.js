/** Errors and notices above the box to write in, each with buttons for what can be done. */

import { $, announce, make, makeButton } from "./dom.js";

/** Show an error; actions are `[text, act]`. */
export function showTrouble(message, actions = []) {
  fill($("trouble"), message, actions);
  announce("");
}

/** Show a notice that goes away with the next message. */
export function showNotice(message, actions = []) {
  fill($("notice"), message, actions);
}

export function clearNotices() {
  $("trouble").replaceChildren();
  $("notice").replaceChildren();
}

function fill(place, message, actions) {
  const row = make("div", "actions");
  for (const [text, act] of actions) {
    row.append(makeButton(text, () => {
      place.replaceChildren();
      act();
    }));
  }
  row.append(makeButton("Dismiss", () => {
    place.replaceChildren();
    $("prompt").focus({ preventScroll: true });
  }, { icon: "close" }));
  place.replaceChildren(make("p", "", message), row);
}
