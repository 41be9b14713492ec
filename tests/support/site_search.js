// Prints, for each line of stdin, what the search of a built site shows: pages, each with its sections, best first.
// The theme's worker and the site's own script run as they do in a browser.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const site = process.argv[2];
const workers = path.join(site, "assets", "javascripts", "workers");
const name = fs.readdirSync(workers).find((one) => /^search\..*\.js$/.test(one));
let answer, listen;
class Worker {
  postMessage(data) {
    listen({ data });
  }
}
const page = {
  Worker,
  console,
  addEventListener: (_, call) => (listen = call),
  postMessage: (message) => answer(message),
};
page.self = page;
vm.createContext(page);
for (const file of [path.join(workers, name), path.join(site, "search.js")])
  vm.runInContext(fs.readFileSync(file, "utf8"), page);
const worker = new page.Worker();
const ask = (message) => new Promise((done) => ((answer = done), worker.postMessage(message)));

(async () => {
  const index = JSON.parse(fs.readFileSync(path.join(site, "search", "search_index.json"), "utf8"));
  await ask({ type: 0, data: { ...index, options: { suggest: false } } });
  for (const query of fs.readFileSync(0, "utf8").split("\n").filter(Boolean)) {
    const { data } = await ask({ type: 2, data: query });
    console.log(JSON.stringify(data.items.map((item) => item.map((one) => one.location))));
  }
})();
