/** The box to write in, with the files that go with the message. */

import { readFile } from "./attached.js";
import { $, asSize, make, makeButton, makeImage } from "./dom.js";

const MAX_FILES = 20;
const LONG = 2000; // characters of a pasted text that becomes a file

/** The form at the bottom of the page. */
export class Composer {
  /** @param {{send, attached, problem, notice: Function}} actions */
  constructor(actions) {
    this.files = [];
    this.reading = 0; // calls that read files now
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
    if (this.reading) {
      this.actions.problem("The files are still being read.");
      return;
    }
    const files = this.files.map(({ name, text, image }) => ({ name, text, ...(image && { image }) }));
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

  /** Add files to the message; those that cannot be used are refused by name. */
  async attach(files) {
    const [refused, notes] = [[], []];
    this.reading += 1;
    this.show();
    for (const file of files) {
      try {
        if (this.files.length >= MAX_FILES) throw "too many files";
        const added = await readFile(file);
        this.files.push(added);
        if (added.note) notes.push(added.note);
      } catch (error) {
        refused.push(`${file.name}: ${String(error.message ?? error).replace(/\.$/, "")}.`);
      }
    }
    this.reading -= 1;
    this.show();
    if (notes.length) this.actions.notice(notes.join(" "));
    if (refused.length) this.actions.problem(refused.join(" "));
    else this.actions.attached(this.files);
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

  show() {
    const items = this.files.map((file) => {
      const item = make("li", "", file.name);
      if (file.image) item.prepend(makeImage(file));
      item.append(make("small", "", asSize(file.size)),
        makeButton(`Remove ${file.name}`, () => this.remove(file), { icon: "close" }));
      return item;
    });
    if (this.reading) items.push(make("li", "reading", "Reading …"));
    $("files").replaceChildren(...items);
  }
}
