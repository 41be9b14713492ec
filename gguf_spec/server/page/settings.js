/** Settings: the form in its dialog, and the fields of a request that they become. */

import { $, asCount, make } from "./dom.js";
import { LOCAL, parse, readItem, writeItem } from "./storage.js";

const KEY = "gguf-spec.settings";
const TEMPERATURES = { exact: 0, balanced: null, creative: 1.2 }; // null: what the server does
// Most tokens of an answer; never more than half of the context, so that a question always fits.
const LENGTHS = { short: 256, medium: 1024, long: 4096, fill: null };
const SAMPLING = ["top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty",
  "frequency_penalty"];
const NUMBERS = ["temperature", "max_tokens", "seed", ...SAMPLING];
const DEFAULTS = { system: "", manner: "balanced", answer: "medium", theme: "system", drafts: true,
  tools: true, model: "", ...Object.fromEntries(NUMBERS.map((name) => [name, ""])) };

/** The settings of the page. They are the same for all conversations. */
export class SettingsForm {
  /** @param {(kept: boolean) => void} changed called with whether the storage took a change */
  constructor(changed) {
    const kept = parse(readItem(LOCAL, KEY));
    this.values = { ...DEFAULTS };
    for (const name of Object.keys(DEFAULTS)) {
      if (typeof kept?.[name] === typeof DEFAULTS[name]) this.values[name] = kept[name];
    }
    this.changed = changed;
    this.form = $("settings-form");
    this.write();
    for (const kind of ["input", "change"]) this.form.addEventListener(kind, () => this.read());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    $("settings-default").addEventListener("click", () => {
      this.set({ ...DEFAULTS, model: this.values.model });
    });
  }

  /** Change settings, in the form as well. */
  set(values) {
    Object.assign(this.values, values);
    this.write();
    this.keep();
  }

  write() {
    const { elements } = this.form;
    for (const [name, value] of Object.entries(this.values)) {
      if (!elements[name]) continue;
      if (value === true || value === false) elements[name].checked = value;
      else elements[name].value = value;
    }
    this.show();
  }

  read() {
    const { elements } = this.form;
    for (const name of Object.keys(this.values)) {
      if (!elements[name]) continue;
      const { checked, type, value } = elements[name];
      this.values[name] = type === "checkbox" ? checked : value;
    }
    this.show();
    this.keep();
  }

  keep() {
    this.changed(writeItem(LOCAL, KEY, JSON.stringify(this.values)));
  }

  show() {
    const { theme } = this.values;
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }

  /** Return the first field with a number that cannot be used; null if all can. */
  wrongField() {
    return NUMBERS.map((name) => this.form.elements[name]).find((one) => !one.checkValidity());
  }

  /** Open the dialog at a field. */
  openAt(field) {
    field.closest("details").open = true;
    if (!$("settings").open) $("settings").showModal();
    field.focus();
  }

  /** Return the fields of a request, for a model. */
  fields(model) {
    const { values } = this;
    const fields = { model: model.id };
    const given = values.temperature;
    const temperature = given ? Number(given) : (TEMPERATURES[values.manner] ?? null);
    if (temperature !== null) fields.temperature = temperature;
    for (const name of SAMPLING) if (values[name]) fields[name] = Number(values[name]);
    // A seed of our own, so that an answer can be repeated exactly.
    fields.seed = values.seed ? Number(values.seed) : crypto.getRandomValues(new Uint32Array(1))[0];
    const most = this.mostTokens(model);
    if (most !== null) fields.max_tokens = most;
    if (model.speculates && !values.drafts) fields.speculation = "off";
    return fields;
  }

  /** Return the limit of tokens for an answer; null for none but the context. */
  mostTokens(model) {
    const { max_tokens: given, answer } = this.values;
    const length = LENGTHS[answer] ?? null;
    const half = model.n_ctx ? Math.max(1, Math.floor(model.n_ctx / 2)) : Infinity;
    const chosen = length === null ? Infinity : Math.min(length, half);
    const most = Math.min(given ? Number(given) : chosen, model.max_tokens ?? Infinity);
    return Number.isFinite(most) ? most : null;
  }

  /** Return how many tokens are left for the messages; null if it is not known. */
  room(model) {
    if (!model.n_ctx) return null;
    return model.n_ctx - Math.min(this.mostTokens(model) ?? Infinity, Math.ceil(model.n_ctx / 4));
  }

  /** Show the facts about a model. */
  about(model) {
    const facts = [`Model: ${model.id}`];
    if (model.n_ctx) facts.push(`It reads at most ${asCount(model.n_ctx)} tokens at once, ` +
      `about ${asCount(Math.round(model.n_ctx * 0.7))} words.`);
    if (model.draft) facts.push(`Draft model: ${model.draft}`);
    facts.push(...model.notes);
    $("about").replaceChildren(...facts.map((line) => make("li", "", line)));
    $("drafts-row").hidden = !model.speculates;
  }
}
