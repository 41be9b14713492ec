/** The drawer "Why is it fast?": which text was drafted, and the speeds of one answer. */

import { Answer, partsOf } from "./answer.js";
import { $, announce, asCount, asSpeed, asTimes, inPercent, inSeconds, make, makeButton }
  from "./dom.js";

/** Open the drawer for an answer. `repeat` is the request to measure with; null if it is lost. */
export function openDrawer(message, repeat) {
  const { stats } = message;
  const told = make("p", "", `Some words were proposed ahead, by a small model or from the text so \
far. The model checked several of them at once and kept only those that it accepted. Checking is \
faster than writing word by word.`);
  const text = make("div", "proposed");
  text.tabIndex = 0;
  text.setAttribute("role", "region");
  text.setAttribute("aria-label", "The answer, with accepted words underlined");
  for (const [part, accepted] of partsOf(message) ?? [[message.content, false]]) {
    if (part) text.append(make("span", accepted ? "drafted" : "", part));
  }
  const legend = make("p", "legend");
  legend.append(make("span", "drafted", "Green, underlined"), ": proposed, and accepted.");
  const place = $("why-content");
  place.replaceChildren(
    make("p", "headline", `About ${asTimes(stats.speedup)} as fast as word by word`),
    told, legend, text, numbersOf(stats));
  if (repeat) {
    const measured = make("div", "measured");
    measured.append(makeButton("Measure it: answer again, word by word", () => {
      measure(measured, message, repeat);
    }));
    place.append(measured);
  }
  $("why").showModal();
}

function numbersOf(stats) {
  const rows = [
    ["Speed", `${asSpeed(stats.tokens_per_s)} tokens/s`],
    ["Proposed", `${asCount(stats.drafted)} tokens`],
    ["Accepted", `${asCount(stats.accepted)} tokens, ${inPercent(stats.accepted / stats.drafted)}`],
    ["Tokens each time the model runs", (stats.tokens / stats.rounds).toFixed(2)],
    ["First word after", inSeconds(stats.first_ms)],
  ];
  const list = make("dl", "numbers");
  for (const [name, value] of rows.filter((row) => !row[1].includes("NaN"))) {
    const row = make("div");
    row.append(make("dt", "", name), make("dd", "", value));
    list.append(row);
  }
  return list;
}

/** Run the request without drafts; show both speeds, and whether the texts are the same. */
async function measure(place, message, repeat) {
  const line = make("p", "", "Answering, word by word …");
  const plain = new Answer({ ...repeat, speculation: "off", background: false }, () => {
    line.textContent = `Answering, word by word … ${asCount(plain.stats.tokens)} tokens`;
  });
  const stop = () => plain.stop();
  place.replaceChildren(line, makeButton("Stop", stop));
  place.lastChild.focus();
  $("why").addEventListener("close", stop, { once: true });
  const trouble = await plain.run();
  $("why").removeEventListener("close", stop);
  const speed = plain.stats.tokens_per_s;
  if (trouble || !speed) {
    line.textContent = trouble ? trouble.message : "Stopped.";
    const again = makeButton("Measure again", () => measure(place, message, repeat));
    place.replaceChildren(line, again);
    return;
  }
  const told = difference(message, plain.message);
  line.textContent = told;
  place.replaceChildren(line, barsOf(message.stats.tokens_per_s, speed));
  announce(told);
}

function difference(message, plain) {
  const times = message.stats.tokens_per_s / plain.stats.tokens_per_s;
  const n = sharedLength(message.content, plain.content);
  const same = message.content === plain.content;
  const text = same ? "the same text" : `the texts differ after ${asCount(n)} characters`;
  return `Measured: ${asTimes(times)} as fast, ${text}.`;
}

function sharedLength(one, other) {
  let n = 0;
  while (n < one.length && one[n] === other[n]) n += 1;
  return n;
}

function barsOf(drafted, plain) {
  const table = make("table", "bars");
  table.append(make("caption", "unseen", "Speeds for the same question"));
  for (const [name, speed] of [["As above", drafted], ["Word by word", plain]]) {
    const bar = make("div", speed === drafted ? "bar on" : "bar");
    bar.style.width = `${(100 * speed) / Math.max(drafted, plain)}%`;
    const [head, middle] = [make("th", "", name), make("td")];
    head.scope = "row";
    middle.setAttribute("aria-hidden", "true");
    middle.append(bar);
    const row = table.insertRow();
    row.append(head, middle, make("td", "", `${asSpeed(speed)} tokens/s`));
  }
  return table;
}
