/** The model picker in the header, how full its context is, and which models are in memory. */

import { load, readModels } from "./api.js";
import { $, asCount, make, makeButton } from "./dom.js";

/** Show how many tokens of the context a conversation takes, as the server counted them. */
export function showFill({ messages }, model) {
  const stats = messages.findLast((one) => one.stats?.prompt_tokens > 0)?.stats;
  const fill = $("fill");
  fill.hidden = !(stats && model?.n_ctx);
  if (fill.hidden) return;
  const used = asCount(stats.prompt_tokens + stats.tokens);
  fill.textContent = `${used} of ${asCount(model.n_ctx)}`;
  fill.title = `The conversation has ${used} tokens; the model reads at most ${asCount(model.n_ctx)}.`;
}

/** Show the names of the models; `choose` is called with the id that the user picks. */
export function showModels(models, current, choose) {
  const [picker, name] = [$("model"), $("model-name")];
  picker.replaceChildren(...models.map((model) => {
    const option = make("option", "", model.id);
    option.value = model.id;
    option.selected = model.id === current.id;
    return option;
  }));
  picker.onchange = () => choose(picker.value);
  name.textContent = name.title = current.id;
  picker.parentElement.hidden = models.length < 2;
  name.hidden = models.length > 1;
}

/** Load a model, or unload it; return what is to be said about it. */
async function turn({ id, loaded }) {
  try {
    await load(id, { unloads: loaded });
  } catch (error) {
    return error.message;
  }
  if (!loaded) return "Loaded.";
  const stays = (await readModels()).find((one) => one.id === id)?.loaded;
  return stays ? "The server keeps this model in memory." : "Unloaded. A message loads it again.";
}

/** List the models, each with a button to load or to unload it; `read` reads the list again. */
export function showMemory(models, read) {
  $("memory").replaceChildren(...models.map((model) => {
    const row = make("li");
    const text = `${model.loaded ? "Unload" : "Load"} ${model.id}`;
    const button = makeButton(text, async () => {
      button.disabled = true;
      $("memory-told").textContent = model.loaded ? "Unloading …" : "Loading …";
      const told = await turn(model);
      await read();
      $("memory-told").textContent = told;
      const at = models.indexOf(model); // the list may be another one now
      $("memory").children[at]?.querySelector("button").focus();
    });
    row.append(make("span", "", model.loaded ? "In memory" : "Not in memory"), button);
    return row;
  }));
}
