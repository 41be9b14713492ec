/** Export of conversations as Markdown and JSON, and import of such JSON. */

import { newConversation, readConversation, titleOf } from "./conversations.js";
import { fenced } from "./context.js";
import { make } from "./dom.js";
import { parse } from "./storage.js";

const FORMAT = "gguf-spec-conversations";

/** Return a conversation as Markdown. */
export function toMarkdown(conversation) {
  const parts = [`# ${titleOf(conversation)}`];
  for (const message of conversation.messages) {
    parts.push(message.role === "user" ? "## You" : `## ${message.model ?? "Answer"}`);
    for (const { name, text, image } of message.files ?? []) {
      parts.push(...(image ? [`Image \`${name}\``] : [`File \`${name}\`:`, fenced(text)]));
    }
    for (const { content, calls } of message.steps ?? []) {
      if (content) parts.push(content.trim());
      for (const { name, arguments: given, output = "" } of calls) {
        parts.push(`Tool \`${name}\`:`, fenced(given), fenced(output));
      }
    }
    if (message.content) parts.push(message.content.trim());
  }
  return `${parts.join("\n\n")}\n`;
}

/** Return conversations as JSON that `fromJson` reads. */
export function toJson(conversations) {
  const others = conversations.map(({ running: _, ...one }) => one);
  return `${JSON.stringify({ format: FORMAT, version: 1, conversations: others }, null, 2)}\n`;
}

/**
 * Return the conversations of a JSON text: an export of this page, or messages in OpenAI's format.
 * Each gets a new id, so that nothing is overwritten. Empty if the text holds none.
 */
export function fromJson(text) {
  const value = parse(text);
  if (!value) return [];
  const list = value.conversations ?? [Array.isArray(value) ? { messages: value } : value];
  if (!Array.isArray(list)) return [];
  return list.map(withoutSystem).map(readConversation).filter(Boolean)
    .map((one) => ({ ...one, id: newConversation().id, updated: one.updated || Date.now() }));
}

function withoutSystem(value) {
  if (!Array.isArray(value?.messages)) return null;
  const messages = value.messages.filter((one) => !["system", "developer"].includes(one?.role));
  return { ...value, messages, running: "" };
}

/** Let the browser save a text as a file. */
export function download(name, text, type) {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Return a file name made from the title of a conversation. */
export function fileName(conversation, ending) {
  const words = titleOf(conversation).toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? ["chat"];
  return `${words.join("-").slice(0, 50)}.${ending}`;
}
