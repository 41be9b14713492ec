/** The box to write in, with the text files that go with the message. */

import { $, asCount, asSize, make, makeButton } from "./dom.js";

const MAX_FILES = 20;
const MAX_BYTES = 1 << 20; // of one file; models read far less
const LONG = 2000; // characters of a pasted text that becomes a file

/** The form at the bottom of the page. */
export class Composer {
  /** @param {{send: Function, problem: (text: string) => void}} actions */
  constructor(actions) {
    this.files = [];
    this.field = $("prompt");
    this.actions = actions;
    $("write").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    $("starters").addEventListener("click", ({ target }) => {
      if (target.localName === "button") this.begin(`${target.textContent} `);
    });
    this.field.addEventListener("keydown", (event) => this.pressed(event));
    $("attach").addEventListener("click", () => $("file").click());
    $("file").addEventListener("change", () => {
      this.attach([...$("file").files]);
      $("file").value = "";
    });
    document.addEventListener("dragover", (event) => {
      if (event.dataTransfer.types.includes("Files")) event.preventDefault();
    });
    document.addEventListener("drop", (event) => {
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.attach([...event.dataTransfer.files]);
    });
    this.field.addEventListener("paste", (event) => {
      const { files } = event.clipboardData;
      const text = event.clipboardData.getData("text/plain");
      if (!files.length && text.length < LONG) return;
      event.preventDefault();
      if (files.length) this.attach([...files]);
      else this.attachText(text);
    });
  }

  pressed(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    if (matchMedia("(pointer: coarse)").matches) return; // a touch keyboard has no Shift Enter
    event.preventDefault();
    this.send();
  }

  send() {
    const content = this.field.value;
    if (!content.trim() && !this.files.length) return;
    const files = this.files.map(({ name, text }) => ({ name, text }));
    if (this.actions.send(files.length ? { content, files } : { content })) this.clear();
  }

  /** Put the beginning of a message before what is written. */
  begin(text) {
    this.field.value = text + this.field.value;
    this.field.focus();
    this.field.setSelectionRange(text.length, text.length);
  }

  clear() {
    this.field.value = "";
    this.files = [];
    this.show();
  }

  focus() {
    this.field.focus({ preventScroll: true });
  }

  /** Add files to the message; those that are no text are refused by name. */
  async attach(files) {
    const refused = [];
    for (const file of files) {
      const told = this.files.length < MAX_FILES ? await this.read(file) : "too many files";
      if (told) refused.push(`${file.name}: ${told}.`);
    }
    this.show();
    if (refused.length) this.actions.problem(refused.join(" "));
    this.focus();
  }

  /** Add a text that was pasted as a file; offer to put it into the message all the same. */
  async attachText(text) {
    const before = this.files.length;
    const names = new Set(this.files.map((file) => file.name));
    let name = "pasted.txt";
    for (let n = 2; names.has(name); n += 1) name = `pasted-${n}.txt`;
    await this.attach([new File([text], name)]);
    const added = this.files[before];
    if (!added) return;
    const told = `The long text is attached as ${name}.`;
    this.actions.notice(told, [["Put it into the message", () => {
      if (!this.files.includes(added)) return; // it was sent or removed
      this.remove(added);
      const { selectionStart, selectionEnd } = this.field;
      this.field.setRangeText(text, selectionStart, selectionEnd, "end");
    }]]);
  }

  remove(file) {
    this.files = this.files.filter((one) => one !== file);
    this.show();
    this.focus();
  }

  async read(file) {
    if (file.size > MAX_BYTES) return `larger than ${asCount(MAX_BYTES >> 10)} KiB`;
    try {
      const bytes = await file.arrayBuffer();
      const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
      if (text.includes("\0")) return "not a text file";
      if (!text.trim()) return "empty";
      this.files.push({ name: file.name, text, size: file.size });
      return "";
    } catch {
      return "not a text file in UTF-8";
    }
  }

  show() {
    $("files").replaceChildren(...this.files.map((file) => {
      const item = make("li", "", file.name);
      item.append(make("small", "", asSize(file.size)),
        makeButton(`Remove ${file.name}`, () => this.remove(file), { icon: "close" }));
      return item;
    }));
  }
}
