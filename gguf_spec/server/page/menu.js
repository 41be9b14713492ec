/** The menu to export, import and delete chats. */

import { $ } from "./dom.js";
import { showTrouble } from "./notices.js";
import { download, fileName, fromJson, toJson, toMarkdown } from "./transfer.js";

const JSON_TYPE = "application/json";

/**
 * Connect the entries of the menu.
 *
 * @param {{current: () => object, all: () => object[], add: (list: object[]) => void,
 *   removeAll: () => void}} chats
 */
export function connectMenu(chats) {
  const exportCurrent = (ending, write, type) => {
    const conversation = chats.current();
    if (!conversation.messages.length) showTrouble("This chat is empty.");
    else download(fileName(conversation, ending), write(conversation), type);
  };
  const entries = {
    "export-markdown": () => exportCurrent("md", toMarkdown, "text/markdown"),
    "export-json": () => exportCurrent("json", (one) => toJson([one]), JSON_TYPE),
    "export-all": () => exportAll(chats.all()),
    "open-import": () => $("import").click(),
    "delete-all": chats.removeAll,
  };
  for (const [id, act] of Object.entries(entries)) {
    $(id).addEventListener("click", () => {
      $("menu").hidePopover();
      act();
    });
  }
  $("import").addEventListener("change", async () => {
    const [file] = $("import").files;
    if (!file) return;
    const conversations = fromJson(await file.text());
    $("import").value = "";
    if (conversations.length) chats.add(conversations);
    else showTrouble(`${file.name} holds no chats.`);
  });
}

export function exportAll(conversations) {
  download("chats.json", toJson(conversations), JSON_TYPE);
}
