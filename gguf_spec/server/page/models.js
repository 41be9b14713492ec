/** The model picker in the header. */

import { $, make } from "./dom.js";

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
