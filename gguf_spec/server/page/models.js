/** The model picker in the header, and how full its context is. */

import { $, asCount, make } from "./dom.js";

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
