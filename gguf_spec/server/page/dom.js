/** Small helpers for the elements of the page. Texts are only ever set as text, never as markup. */

export const $ = (id) => document.getElementById(id);

/** Create an element. */
export function make(tag, name = "", text = "") {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text) element.textContent = text;
  return element;
}

/** Create a button; with an icon, its text is only read by screen readers and shown as a hint. */
export function makeButton(text, act, { icon = "", name = "", shows = !icon } = {}) {
  const button = make("button", name);
  button.type = "button";
  if (icon) button.append(makeIcon(icon));
  if (shows) button.append(make("span", "", text));
  else button.setAttribute("aria-label", (button.title = text));
  button.addEventListener("click", () => act(button));
  return button;
}

/** Return the image of a file. */
export function makeImage({ name, image }) {
  const element = make("img");
  element.src = image;
  element.alt = name;
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** Return one of the icons that page.html defines as symbols. */
export function makeIcon(name) {
  const [svg, use] = ["svg", "use"].map((tag) => document.createElementNS(SVG, tag));
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "icon");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

export const inSeconds = (ms) =>
  ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
export const inPercent = (share) => `${Math.round(100 * share)} %`;
export const asSpeed = (speed) => (speed < 10 ? speed.toFixed(1) : asCount(Math.round(speed)));
export const asCount = (count) => Number(count).toLocaleString("en");
export const asTimes = (factor) => `${factor.toFixed(1)} times`;
export const asSize = (bytes) =>
  bytes < 1024 ? plural(bytes, "byte") : `${asCount(Math.round(bytes / 102.4) / 10)} KiB`;
export const plural = (n, noun) => `${asCount(n)} ${noun}${n === 1 ? "" : "s"}`;

/** Say something to screen readers; nothing of it is shown. */
export function announce(text) {
  $("told").textContent = text;
}

/** Change the page; keep its end in view if it was in view before. */
export function keepingTheEnd(change) {
  const follows = isAtEnd();
  change();
  if (follows) goToEnd();
}

export function isAtEnd() {
  const page = document.documentElement;
  return page.scrollHeight - page.scrollTop - page.clientHeight < 80;
}

export function goToEnd() {
  document.documentElement.scrollTop = document.documentElement.scrollHeight;
}

/** Copy a text to the clipboard; say on the button whether it worked. */
export async function copyFrom(button, text) {
  const done = (await copy(text)) ? "Copied" : "Not copied: the browser does not allow it";
  const label = button.querySelector("span");
  const before = label?.textContent ?? button.getAttribute("aria-label");
  const write = (shown) => {
    if (label) label.textContent = shown;
    else button.setAttribute("aria-label", (button.title = shown));
  };
  if (button.dataset.said) return;
  button.dataset.said = "yes";
  write(done);
  announce(`${done}.`);
  setTimeout(() => {
    write(before);
    delete button.dataset.said;
  }, 1500);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyFromField(text); // no clipboard on pages that come over plain HTTP
  }
}

function copyFromField(text) {
  const [field, before] = [make("textarea", "unseen"), document.activeElement];
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  before?.focus({ preventScroll: true });
  return done;
}
