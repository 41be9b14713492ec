"""Ray Data: a callable class that answers the rows of a batch."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gguf_spec import Completion, Sampling
from gguf_spec.errors import GgufSpecError, InvalidOptionError
from gguf_spec.options import SAMPLING

if TYPE_CHECKING:
    from gguf_spec import LLM


def load_on_node(model: str | Path | None, pull: bool, options: Mapping[str, Any]) -> LLM:
    """Load a model in a Ray actor; the thread count follows the CPUs of the actor.

    Args:
        model: As for `gguf_spec.load`.
        pull: Download the model first if it is not on this node.
        options: Other arguments of `gguf_spec.load`.
    """
    import ray

    from gguf_spec import load

    if pull and model is not None:
        from gguf_spec import pull as download

        download(str(model), models_file=options.get("models_file"))
    threads = None  # the whole CPUs of this actor, at least one
    if ray.is_initialized():
        resources = ray.get_runtime_context().get_assigned_resources()
        threads = max(1, int(resources["CPU"])) if "CPU" in resources else None
    return load(model, **{"threads": threads, **options})


_SEED_BYTES = 4


class Generate:
    """Answers the rows of a Ray Data set; each actor loads the model once.

        ds.map_batches(
            Generate,
            fn_constructor_kwargs={"model": "smollm2", "sampling": {"max_tokens": 100}},
            compute=ray.data.ActorPoolStrategy(size=2),
            num_cpus=2,
            batch_size=16,
        )

    A row has a `prompt`, which is continued, or `messages` for the chat template. Columns with the
    names of fields of `Sampling` set these for the row; empty values leave the default. A JSON
    schema is given as a text.

    The rows get the columns `text`, `reasoning`, `finish_reason`, `prompt_tokens`,
    `completion_tokens`, `seed` and `error`. A row that cannot be answered has the reason in
    `error`, the finish reason `error` and an empty text; for all others `error` is empty.

    A row without a seed gets one from `seed` and its content. A row that is computed again, because
    an actor or its node was lost, therefore has the same text. Rows with the same content have the
    same text; a column with a number, or `seed`, makes them differ.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        sampling: Sampling | Mapping[str, Any] | None = None,
        seed: int = 0,
        pull: bool = False,
        **options: Any,
    ) -> None:
        """Load the model.

        Args:
            model: As for `gguf_spec.load`. Each node must have the file, unless `pull` is set.
            sampling: Sampling options, or some fields of them; the others are those of the model.
            seed: Number that decides the seeds of rows without one.
            pull: Download the model on a node that lacks it.
            options: Other arguments of `gguf_spec.load`, such as `parallel`. `threads` defaults to
                the CPUs of the actor.

        Raises:
            InvalidOptionError: An option has a value that is not allowed.
            ModelError, StoreError: The model cannot be found or loaded.
        """
        given: dict[str, Any] = {}
        if not isinstance(sampling, Sampling):
            given = dict(sampling or {})
            for name in given:
                if name not in SAMPLING:
                    raise InvalidOptionError("sampling", name, "fields of Sampling")
            Sampling(**given)  # before the model is loaded
        self._llm = load_on_node(model, pull, options)
        if not isinstance(sampling, Sampling):
            sampling = replace(self._llm.sampling, **given)
        self._sampling, self._seed = sampling, seed

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the rows of a batch in Ray Data's format `numpy`, in their order.

        With `parallel` above 1 the rows of a batch share passes.
        """
        columns = {name: [_plain(value) for value in values] for name, values in batch.items()}
        n = len(next(iter(columns.values()), ()))
        requests = [
            # Without gaps: whether a column is there depends on the other rows of a block.
            self._request({name: one[i] for name, one in columns.items() if one[i] is not None})
            for i in range(n)
        ]
        good = [one for one in requests if not isinstance(one, GgufSpecError)]
        results = iter(self._llm.generate_many([one for one, _ in good], [one for _, one in good]))
        ends = [one if isinstance(one, GgufSpecError) else next(results) for one in requests]
        answers = [_written(end) for end in ends]
        found = {name: [answer[name] for answer in answers] for name in _ANSWER}
        return {**batch, **found}

    def _request(
        self, row: dict[str, Any]
    ) -> tuple[str | list[dict[str, Any]], Sampling] | GgufSpecError:
        """Return prompt and options of a row, or why it has none."""
        try:
            prompt, sampling = _prompt(row), replace(self._sampling, **_fields(row))
        except GgufSpecError as error:
            return error
        if sampling.seed is None:
            content = json.dumps([self._seed, row], sort_keys=True, default=repr).encode()
            digest = hashlib.sha256(content).digest()
            sampling = replace(sampling, seed=int.from_bytes(digest[:_SEED_BYTES], "big"))
        return prompt, sampling


_ANSWER: dict[str, Any] = {
    "text": "",
    "reasoning": "",
    "finish_reason": "error",
    "prompt_tokens": 0,
    "completion_tokens": 0,
    "seed": 0,
    "error": "",
}


def _written(done: Completion | GgufSpecError) -> dict[str, Any]:
    if isinstance(done, GgufSpecError):
        return _ANSWER | {"error": f"{done.message} {done.hint}".strip()}
    return _ANSWER | {
        "text": done.text,
        "reasoning": done.reasoning,
        "finish_reason": done.finish_reason,
        "prompt_tokens": done.stats.n_prompt,
        "completion_tokens": done.stats.n_generated,
        "seed": done.seed,
    }


def _prompt(row: Mapping[str, Any]) -> str | list[dict[str, Any]]:
    """Return the prompt or the messages of a row."""
    prompt, messages = row.get("prompt"), row.get("messages")
    if (prompt is None) == (messages is None):
        raise InvalidOptionError("prompt", prompt, "given, or messages, but not both")
    if messages is None:
        if not isinstance(prompt, str):
            raise InvalidOptionError("prompt", prompt, "a text")
        return prompt
    if not (isinstance(messages, list) and all(isinstance(one, dict) for one in messages)):
        raise InvalidOptionError("messages", messages, "a list of messages")
    # A table gives each message the fields of all, empty where it has none.
    return [{name: value for name, value in one.items() if value is not None} for one in messages]


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling fields of a row."""
    found = {name: row[name] for name in SAMPLING if name in row}
    for name, value in found.items():
        if SAMPLING[name].type == "integer" and isinstance(value, float) and value.is_integer():
            found[name] = int(value)  # a table with gaps has no integers
    if isinstance(biases := found.get("logit_bias"), dict):  # a table has texts as keys
        found["logit_bias"] = {
            int(token) if isinstance(token, str) and token.isdecimal() else token: bias
            for token, bias in biases.items()
            if bias is not None
        }
    return found


def _plain(value: Any) -> Any:
    """Return a value of a table without numpy's types; None for a gap."""
    if hasattr(value, "tolist"):  # an array or a number of numpy
        value = value.tolist()
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_plain(one) for one in value]
    return value
