#!/usr/bin/env python3
"""Change a copy of the package in one place at a time, and report whether the tests or `gguf-spec verify` notice it.

    .venv/bin/python scripts/checks/plant_bugs.py control                # nothing is changed: all tests must pass
    .venv/bin/python scripts/checks/plant_bugs.py bugs [--only noise]    # the realistic mistakes below
    .venv/bin/python scripts/checks/plant_bugs.py bugs --verify

Mutants are cosmic-ray's small changes to the modules that exactness rests on. It is no dependency of ours: list them with a Python that has it.

    python3 -m venv /tmp/cosmic && /tmp/cosmic/bin/pip install cosmic-ray
    /tmp/cosmic/bin/python scripts/checks/plant_bugs.py list > mutants.jsonl
    .venv/bin/python scripts/checks/plant_bugs.py mutants mutants.jsonl results.jsonl --seconds 240
    .venv/bin/python scripts/checks/plant_bugs.py mutants mutants.jsonl results.jsonl --seconds 240 --survivors --slow

`bugs` ends with 1 where the tests miss one, and with an error where a line that a mistake replaces is not in the source exactly once. `mutants`
continues after the last result. `--survivors` tests undetected mistakes again, `--slow` by tests that take longer. Tests run in a child that
is forked from a process which has the libraries loaded already: most changes are noticed within a second.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("gguf_spec", "tests", "scripts", "models.yaml", "pyproject.toml", "README.md")
# none that is a plugin of pytest, or needs one
LIBRARIES = ("numpy", "llama_cpp", "jinja2", "yaml", "click", "rich.console")
VERIFY = ("verify", "--count", "3", "--max-tokens", "48", "--draws", "400", "--threads", "1")
SEED = 15
# options of pytest; files that are named leave out the slow tests only
TIERS = {"quick": ["-m", "not full and not slow"], "all": [], "slow": ["--slow"]}
ENUMERATION = "exactness/test_enumeration.py::test_all_paths_together_give_the_targets_distribution"
# exit code where each test is skipped here, such as those of images with ready-made libraries, which lack libmtmd; and its outcome
ALL_SKIPPED, NOT_ASKED = 98, "NOT ASKED: each of its tests is skipped here"
TESTS = {  # of mutants of a module: those that are asked first, and those that are asked about survivors
    name: (quick.split(), slow.split())
    for name, quick, slow in (
        ("speculative/acceptance",
         "unit/test_accept.py unit/test_engine.py unit/test_llm.py properties/test_engine.py",
         f"{ENUMERATION} properties/test_near_ties.py"),
        ("speculative/engine",
         "unit/test_engine.py unit/test_llm.py unit/test_progress.py properties/test_engine.py",
         f"exactness/test_shift.py properties/test_near_ties.py gguf/test_near_ties.py {ENUMERATION}"),
        ("system/files", "unit/test_cache.py", "gguf/test_chat.py gguf/test_profile.py unit/test_measured_profiles.py"),
        ("sampling/chain",
         "unit/test_sampling.py properties/test_sampling.py unit/test_llm.py properties/test_engine.py",
         f"gguf/test_llama_samplers.py properties/test_near_ties.py gguf/test_grammar.py {ENUMERATION}"),
        ("runtime/generation",
         "unit/test_llm.py unit/test_stream.py unit/test_progress.py properties/test_engine.py",
         "exactness/test_shift.py compat/test_llama.py gguf/test_chat.py"
         " exactness/test_think_budget.py closing/test_parallel.py"),
        ("runtime/stream", "unit/test_llm.py unit/test_stream.py unit/test_progress.py", "compat/test_llama.py gguf/test_chat.py"),
        ("text/detokenizer", "unit/test_text.py properties/test_text.py", "unit/test_llm.py"),
    )
}  # fmt: skip


class Bug(NamedTuple):
    """A mistake: what is in the source, what stands there instead, and the tests that should notice, the quick ones first."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


BUGS = (
    # passes of a GPU
    Bug("a filled pass reaches over a step of the cache with rows that do not", "llama/context.py",
        "cut = at + _KV_STEP - (at + least - 1) % _KV_STEP", "cut = at + _KV_STEP - at % _KV_STEP",
        ("exactness/test_filled_passes.py",)),
    Bug("tokens that filled a pass stay in the cache", "llama/context.py",
        "elif n < len(one.tokens):", "elif len(parts) > 1 and n < len(one.tokens):",
        ("exactness/test_filled_passes.py",)),
    Bug("one row alone is computed in a wide enough pass", "llama/context.py",
        "max(one.n_rows + one.n_more, least if one.n_rows else 0)", "one.n_rows + one.n_more",
        ("exactness/test_filled_passes.py",)),
    Bug("only the first place of a context is compared on a GPU", "llama/context.py",
        "for depth in _GPU_DEPTHS:", "for depth in _GPU_DEPTHS[:0]:",
        ("exactness/test_filled_passes.py",)),
    # engine
    Bug("a log-probability comes from the row before", "speculative/engine.py",
        "rows.logprob(i, token) for i", "rows.logprob(max(i - 1, 0), token) for i",
        ("unit/test_llm.py", "properties/test_engine.py")),
    Bug("a cut round counts accepted tokens that were never said", "speculative/engine.py",
        "n_accepted=min(self.n_accepted, n)", "n_accepted=self.n_accepted",
        ("unit/test_engine.py", "unit/test_llm.py", "properties/test_engine.py")),
    Bug("strict continues after the last near tie, not the first", "speculative/engine.py",
        "del new[near_ties[0] :], logprobs[near_ties[0] :]", "del new[near_ties[-1] :], logprobs[near_ties[-1] :]",
        ("unit/test_engine.py", "properties/test_near_ties.py")),
    Bug("the residual is not clipped at 0", "speculative/acceptance.py",
        "return np.maximum(weight * p.probs - q_of_p, 0.0)", "return weight * p.probs - q_of_p",
        ("unit/test_accept.py",)),
    Bug("block verification forgets the weight so far", "speculative/acceptance.py",
        "weight.append(min(1.0, weight[i] * targets[i].prob(token)", "weight.append(min(1.0, targets[i].prob(token)",
        ("unit/test_accept.py", "exactness/test_enumeration.py")),
    Bug("a full context keeps the beginning of the answer, not its end", "runtime/generation.py",
        "self.tokens[-self._n_kept :]", "self.tokens[: self._n_kept]",
        ("unit/test_llm.py", "unit/test_progress.py", "exactness/test_shift.py")),
    Bug("a stop string is cut one character late", "text/detokenizer.py",
        "self._held[:at], \"\"", "self._held[: at + 1], \"\"",
        ("unit/test_text.py",)),
    # caches
    Bug("a rollback leaves one token in llama.cpp's cache", "llama/sequence.py",
        "llama_memory_seq_rm, self.index, at, -1)", "llama_memory_seq_rm, self.index, at + 1, -1)",
        ("gguf/test_model.py",)),
    Bug("a snapshot of an older pass is taken for one of the last", "llama/recurrent_state.py",
        "max(before + 1, self._n - self.n_snapshots)", "max(before, self._n - self.n_snapshots)",
        ("gguf/test_rollback.py",)),
    Bug("a checkpoint of a text that is gone is kept", "llama/recurrent_state.py",
        "self.kept = [one for one in self.kept if one.n <= n]", "self.kept = self.kept",
        ("gguf/test_rollback.py", "exactness/test_edited_prompts.py")),
    Bug("a checkpoint of a prompt lies off the grid", "llama/sequence.py",
        "off_grid = self.exactness.beyond(self.n_past)", "off_grid = 0",
        ("exactness/test_edited_prompts.py",)),
    Bug("decoding tokens again costs nothing", "speculative/controller.py",
        "if free >= k:", "if True:",
        ("unit/test_replay.py",)),
    Bug("a rollback forgets how much was read as a prompt", "llama/sequence.py",
        "self.n_read = min(self.n_read, n)", "self.n_read = self.n_read",
        ("gguf/test_model.py", "unit/test_measured_profiles.py")),
    Bug("a profile does not depend on the type of the cache", "speculative/profile.py",
        "o.kv_type", '"any"',
        ("unit/test_profile_keys.py", "gguf/test_profile.py")),
    # slots
    Bug("rows of a common pass are given in the order of the slots", "llama/context.py",
        "ends[part.sequence.index] - part.n_rows, part.n_rows", "[*ends.values()][parts.index(part)] - part.n_rows, part.n_rows",
        ("gguf/test_slots.py",)),
    Bug("tokens that only filled a pass stay in the cache", "llama/context.py",
        "elif n < len(one.tokens):", "elif False:",
        ("gguf/test_slots.py",)),
    Bug("a slot whose place was taken still lists its tokens", "llama/context.py",
        "sequence, free\n        free.forget()", "sequence, free",
        ("gguf/test_slots.py", "gguf/test_scheduler.py")),
    Bug("a part is made longer than its context", "llama/context.py",
        "max(0, min(width, self.n_ctx - n_past) - len(tokens))", "max(0, width - len(tokens))",
        ("gguf/test_slots.py",)),
    Bug("an interrupted pass keeps what its caches list", "llama/sequence.py",
        "cached, self._cached = self.cached, None", "cached = self.cached",
        ("gguf/test_slots.py", "gguf/test_scheduler.py")),
    Bug("rows of a pass are overwritten by the next pass of the same step", "speculative/scheduler.py",
        "for task in group if group is not groups[-1] else ():", "for task in ():",
        ("gguf/test_scheduler.py",)),
    Bug("one request that fails takes its neighbours with it", "speculative/scheduler.py",
        "error if len(tasks) == 1 else None,", "error,",
        ("gguf/test_scheduler.py",)),
    Bug("a request that is stopped is part of common passes", "speculative/scheduler.py",
        "active = [task for task in self.tasks if not task.is_parked]\n        decoding", "active = self.tasks\n        decoding",
        ("gguf/test_scheduler.py",)),
    # prediction heads
    Bug("a row of a rejected draft stays", "llama/sequence.py",
        "self.hidden.cut(to)", "self.hidden.cut(to + 1)",
        ("gguf/test_heads.py",)),
    Bug("a head keeps what it decoded with its own rows", "llama/head.py",
        "n = min(to, self._n_true)", "n = to",
        ("gguf/test_heads.py",)),
    Bug("a head takes the row of the token itself", "llama/head.py",
        "return self.n_past + self.skipped", "return 1 + self.n_past + self.skipped",
        ("gguf/test_heads.py",)),
    Bug("a head judged on later text takes the rows of earlier text", "speculative/drafters/model.py",
        "self._head.skipped = max(", "self._head.skipped = 0 * max(",
        ("gguf/test_heads.py",)),
    Bug("a draft is longer than a chain of heads", "speculative/drafters/model.py",
        "<= len(self._history) - self._n_known:", "< len(self._history) - self._n_known:",
        ("exactness/test_heads.py",)),
    Bug("rows of hidden states are stored one place late", "llama/native_head.py",
        "self._rows[at : self.end] = rows", "self._rows[at + 1 : self.end + 1] = rows[: len(self._rows) - at - 1]",
        ("gguf/test_heads.py",)),
    Bug("the cells of dropped tokens stay in the cache of a head", "llama/head.py",
        "if first < len(cached):", "if False:",
        ("exactness/test_heads.py", "gguf/test_heads.py")),
    Bug("all tokens of a draft follow the row of its first one", "llama/head.py",
        "self._own = self.native.last_row()", "self._own = self.native.last_row() if self._own is None else self._own",
        ("gguf/test_heads.py", "exactness/test_heads.py")),
    Bug("the cache of a head is never cut", "llama/head.py",
        "        super().rollback(self._kept(to))\n", "        self._kept(to)\n",
        ("gguf/test_heads.py",)),
    Bug("a head without a cache of its own decodes over the last token of its target", "llama/head.py",
        "self._pass(end, [token], rows, 1, 0)", "self._pass(end - 1, [token], rows, 1, 0)",
        ("gguf/test_heads.py", "exactness/test_heads.py")),
    Bug("a draft of a head is always accepted", "speculative/acceptance.py",
        "        if new[i] != drafted:\n            return new\n", "        new[i] = drafted\n",
        ("exactness/test_eagle.py", "exactness/test_heads.py")),
    Bug("the table of an EAGLE-3 head may name tokens that are not in its vocabulary", "gguf/heads.py",
        "or ids.min() < 0 or ids.max() >= n_tokens:", "or ids.min() < 0:",
        ("gguf/test_eagle.py",)),
    Bug("an EAGLE-3 head reads layers in another order", "llama/native_head.py",
        "zip(self._layers, self._widths, strict=True)", "zip(self._layers[::-1], self._widths, strict=True)",
        ("gguf/test_eagle.py", "exactness/test_eagle.py")),
    Bug("an EAGLE-3 head sees the first token, before which there is no row", "llama/head.py",
        "self.native.cache(C.llama_memory_seq_rm, 0, 0, 1)", "pass",
        ("gguf/test_eagle.py",)),
    Bug("an EAGLE-3 head returns the first logits of a pass for the last ones", "llama/head.py",
        "return results[n - n_rows :] if", "return results[:n_rows] if",
        ("gguf/test_eagle.py", "exactness/test_eagle.py")),
    Bug("an EAGLE-3 head projects the first rows of a long text again", "llama/head.py",
        "rows[i : i + MOST_ENCODED]", "rows[: min(n - i, MOST_ENCODED)]",
        ("gguf/test_eagle.py",)),
    # sampling
    Bug("two neighbouring tokens share their noise", "sampling/chain.py",
        "return self.pick(self.candidates(logits, history), len(history))", "return self.pick(self.candidates(logits, history), len(history) & ~1)",
        ("unit/test_sampling.py", "exactness/test_enumeration.py")),
    Bug("the window of the penalties is one token short", "sampling/chain.py",
        "history[-s.penalty_last_n :]", "history[1 - s.penalty_last_n :]",
        ("unit/test_sampling.py",)),
    Bug("min-p follows the temperature", "sampling/chain.py",
        "kept.max() + np.log(s.min_p)", "kept.max() + s.temperature * np.log(s.min_p)",
        ("unit/test_sampling.py",)),
    Bug("the coin of XTC is the noise of the first token", "sampling/rng.py",
        "return int(self._keys(position)[4])", "return int(self._keys(position)[0])",
        ("unit/test_rng.py", "properties/test_sampling.py")),
    # grammar
    Bug("a state of the grammar stays after a draft was refused", "grammar/token_grammar.py",
        "for depth in [d for d in states if d > shared]", "for depth in [d for d in states if d > shared + 1]",
        ("gguf/test_grammar.py",)),
    Bug("a repetition in a grammar may come once more than allowed", "grammar/automaton.py",
        "if most != 0 and times + 1 != most:", "if most != 0 and times != most:",
        ("gguf/test_grammar.py",)),
    # sessions
    Bug("a session is restored with another type of the cache", "runtime/session_file.py",
        "[model.flash_attention, o.kv_type, o.gpu_layers", "[model.flash_attention, o.gpu_layers",
        ("unit/test_profile_keys.py", "gguf/test_chat.py")),
    Bug("a session is restored with another scale of an adapter", "runtime/session_file.py",
        "(adapter.content_id, adapter.scale)", "adapter.content_id",
        ("unit/test_profile_keys.py", "gguf/test_lora.py", "gguf/test_chat.py")),
    Bug("a restored cache counts decoded tokens as read", "llama/sequence.py",
        "[*cached], n_read, least_cut", "[*cached], len(cached), least_cut",
        ("gguf/test_model.py", "gguf/test_chat.py")),
    # server
    Bug("the queue does not count the requests that run", "server/worker.py",
        "- self._n_busy)", ")",
        ("server/test_load.py",)),
    Bug("log-probabilities without top_logprobs are left out", "server/requests.py",
        "top if wants else None", "(top or None) if wants else None",
        ("server/test_api.py",)),
    Bug("a key is compared as far as it is given", "server/app.py",
        "known.encode())", "known.encode()[: len(one)])",
        ("server/test_limits.py",)),
    Bug("the offset of a token in the text is that of the next one", "server/replies.py",
        "        return before\n", "        return self._n\n",
        ("server/test_api.py",)),
    Bug("all choices have one seed", "server/requests.py",
        "return (seed + i) % SEEDS", "return seed % SEEDS",
        ("server/test_choices.py",)),
    Bug("a field that changes the text is accepted with any value", "server/fields.py",
        "return self.neutral is None or any(same(value, one) for one in self.neutral)", "return True",
        ("server/test_fields.py",)),
    Bug("a strict tool is free in the text after a wrong start of a tag", "tools/notations.py",
        "parts.append(f\"{quoted(letter)} {rules[after]}\")", "parts.append(f\"{quoted(letter)} {again}\")",
        ("tools/test_families.py",)),
    Bug("a call in a special token is not seen", "runtime/llm.py",
        "call_tokens(weights) if tools else {},", "{},",
        ("server/test_tool_families.py",)),
    Bug("a text of an argument is sent only at its end", "tools/notations.py",
        "            source.emit(json.dumps(piece, ensure_ascii=False)[1:-1])\n            if at >= 0:", "            if at >= 0:\n                source.emit(json.dumps(piece, ensure_ascii=False)[1:-1])",
        ("tools/test_families.py",)),
    Bug("a broken call is lost", "tools/source.py",
        "self.events.append(Event(\"broken\", source, rest))", "self.events.append(Event(\"broken\", rest, rest))",
        ("tools/test_families.py",)),
    Bug("ids of calls keep the length that a template rejects", "text/chat_template.py",
        "if family.id_length:", "if False:",
        ("tools/test_history.py",)),
    Bug("the model used last is unloaded first", "server/model_pool.py",
        "self._unload(min(idle)[1])", "self._unload(max(idle)[1])",
        ("server/test_model_pool.py",)),
    Bug("the time of a model in use runs out", "server/model_pool.py",
        "for id_, one in found\n                if not (one.keeps or one.is_busy)", "for id_, one in found\n                if not one.keeps",
        ("server/test_model_pool.py",)),
    Bug("the token of ps opens all routes", "server/app.py",
        "if path == _STATUS else [key]", "if True else [key]",
        ("server/test_limits.py",)),
    Bug("only errors of the exact path have the format of their API", "server/replies.py",
        "path == start or path.startswith(f\"{start}/\")", "path == start",
        ("server/test_api_formats.py",)),
    Bug("the response that was stored first is removed, used or not", "server/responses_api.py",
        "        self._stored.move_to_end(id_)\n", "",
        ("server/test_responses_api.py",)),
    Bug("the instructions of a response stay in the conversation", "server/responses_api.py",
        "messages_of(instructions, items)", "messages_of(instructions or (before and store.get(previous, '').response['instructions']) or None, items)",
        ("server/test_responses_api.py",)),
    Bug("tools that are not allowed are in the prompt", "server/responses_api.py",
        "kept = [tool for tool in tools if tool[\"name\"] in allowed]", "kept = tools",
        ("server/test_responses_api.py",)),
    Bug("a conversation is cut without room for the answer", "server/jobs.py",
        "return llm.n_ctx - min(", "return llm.n_ctx - 0 * min(",
        ("server/test_responses_api.py",)),
    Bug("a stop sequence counts as the end of a turn", "server/messages_api.py",
        "elif result.stop_string is not None:", "elif result.stop_string is None:",
        ("server/test_messages_api.py",)),
    Bug("the result of a failed tool is that of one that worked", "server/messages_api.py",
        "error = [{\"type\": \"text\", \"text\": \"Error: \"}] if block.get(\"is_error\") else []", "error = []",
        ("server/test_messages_api.py",)),
    # bodies of other APIs
    Bug("a text behind the result of a tool is part of the result", "server/messages_api.py",
        "if not read or read[-1][\"role\"] != role:", "if not read:",
        ("server/test_messages_api.py",)),
    Bug("calls at once are allowed where they are forbidden", "server/messages_api.py",
        "parallel = not choice.get(\"disable_parallel_tool_use\")", "parallel = True",
        ("server/test_messages_api.py",)),
    Bug("the reasoning of an earlier turn is text", "server/messages_api.py",
        "read[chat.REASONING] = read.get(chat.REASONING, \"\") + block[\"thinking\"]", "read[\"content\"] += block[\"thinking\"]",
        ("server/test_messages_api.py",)),
    Bug("the effort of reasoning is lost", "server/messages_api.py",
        "EFFORTS.get(config.get(\"effort\"))", "None",
        ("server/test_messages_api.py",)),
    Bug("the limit of reasoning is lost", "server/messages_api.py",
        "thinking.get(\"budget_tokens\")", "None",
        ("server/test_messages_api.py",)),
    Bug("a call begins a turn of its own behind its text", "server/responses_api.py",
        "_turn(messages).setdefault", "_turn(messages, \"content\").setdefault",
        ("server/test_responses_api.py",)),
    Bug("the summary of reasoning is taken for the reasoning", "server/responses_api.py",
        "item[\"content\"] or item[\"summary\"]", "item[\"summary\"] or item[\"content\"]",
        ("server/test_responses_api.py",)),
    Bug("the role of a developer reaches the template", "server/responses_api.py",
        "\"system\" if item[\"role\"] == \"developer\" else item[\"role\"]", "item[\"role\"]",
        ("server/test_responses_api.py",)),
    Bug("files of a message run into each other", "server/responses_api.py",
        "if text and piece and (is_file or is_after_file):", "if False:",
        ("server/test_responses_api.py",)),
    Bug("two fields may name two limits of the answer", "server/responses_api.py",
        "if not same(data.setdefault(\"max_tokens\", limit), limit):", "if data.setdefault(\"max_tokens\", limit) is None:",
        ("server/test_responses_api.py",)),
    Bug("both results of tools belong to the first call", "server/ollama.py",
        "open_ = [call for call in open_ if call != found[0]]", "open_ = [*open_]",
        ("server/test_ollama.py",)),
    Bug("a negative seed is refused", "server/ollama.py",
        "if isinstance(found.get(\"seed\"), int) and found[\"seed\"] < 0:", "if False:",
        ("server/test_ollama.py",)),
    Bug("images come behind the text", "server/ollama.py",
        "return [*parts, {\"type\": \"text\", \"text\": text}]", "return [{\"type\": \"text\", \"text\": text}, *parts]",
        ("server/test_ollama.py", "server/test_images.py")),
    Bug("json as a format binds nothing", "server/ollama.py",
        "return {\"response_format\": {\"type\": \"json_object\"}}", "return {}",
        ("server/test_ollama.py",)),
    Bug("think false is not heard", "server/ollama.py",
        "return {\"reasoning_effort\": \"none\"}", "return {}",
        ("server/test_ollama.py",)),
    Bug("a raw prompt has the limit of completions", "server/ollama.py",
        "body.get(\"max_tokens\", -1)", "body.get(\"max_tokens\", 16)",
        ("server/test_ollama.py",)),
    Bug("a length of -2 ends the answer", "server/ollama.py",
        "found[\"max_tokens\"] = -1", "found[\"max_tokens\"] = 2",
        ("server/test_ollama.py",)),
    # images
    Bug("images of one size are one image", "llama/image_file.py",
        "hashlib.sha256(data).digest()", "hashlib.sha256(b'%d %d' % size).digest()",
        ("gguf/test_vision.py",)),
    Bug("a rollback into an image leaves a part of it", "llama/vision.py",
        "super().rollback(min([to, *inside]))", "super().rollback(to)",
        ("gguf/test_vision.py",)),
    Bug("a text after an image begins at the number of its tokens", "llama/vision.py",
        "return n - sum(one.n_tokens - (one.n_positions if self.sees else 0) for one in before)", "return n",
        ("gguf/test_vision.py",)),
    Bug("the text behind an image is read off the grid", "llama/vision.py",
        "head = self.exactness.beyond(-self.n_past) if self._images() else 0", "head = 0",
        ("gguf/test_vision.py",)),
    Bug("an image of another size than that of its header is read", "llama/vision.py",
        "if size != (image.width, image.height):", "if False:",
        ("gguf/test_vision.py",)),
    Bug("an image is a draft", "speculative/drafters/ngram.py",
        "if followed and followed[0] < IMAGE_IDS:", "if followed:",
        ("gguf/test_vision.py",)),
    Bug("a session has ids of images", "runtime/session_file.py",
        "_cut_before_images(model)\n    about", "pass\n    about",
        ("gguf/test_vision.py",)),
    Bug("every turn encodes its images again", "llama/vision.py",
        "if chunk.values is None:", "if True:",
        ("gguf/test_vision.py",)),
    # costs
    Bug("a pass updates the cost of one token less", "speculative/controller.py",
        "self.known.target.learn(one.n_rows, one.n_past, passed_s)", "self.known.target.learn(one.n_rows - 1, one.n_past, passed_s)",
        ("unit/test_controller.py",)),
    Bug("cached tokens count once for each row, twice over", "speculative/cost_model.py",
        "self._caps[n]) + self.depth[n] * n_past)", "self._caps[n]) + n * self.depth[n] * n_past)",
        ("unit/test_costs.py",)),
    Bug("the first errors of doubtful costs are those of the machine", "speculative/cost_model.py",
        "return self._is_trusted or n >= len(self.base)", "return True or n >= len(self.base)",
        ("unit/test_costs.py",)),
    Bug("the last pass over a prompt is free", "speculative/cost_model.py",
        "if rest else 0.0)", "if not rest else 0.0)",
        ("unit/test_costs.py",)),
)  # fmt: skip


class Job(NamedTuple):
    """A file of the package with its changed text, and the tests that should notice the change."""

    name: str
    file: str
    text: str
    tests: tuple[str, ...]


def planted(bug: Bug) -> Job:
    """Return the source with the mistake in it."""
    text = (ROOT / "gguf_spec" / bug.file).read_text(encoding="utf-8")
    if (n := text.count(bug.old)) != 1:
        place = f"gguf_spec/{bug.file} holds {bug.old!r} {n} times, not once"
        raise SystemExit(f"{bug.name}: {place}. Change scripts/checks/plant_bugs.py.")
    return Job(bug.name, bug.file, text.replace(bug.old, bug.new), bug.tests)


# ---- cosmic-ray's mutants


class NoAnnotations(ast.NodeTransformer):
    """Leaves out what is never evaluated, or only by type checkers."""

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def meaning(code: str) -> str:
    return ast.dump(NoAnnotations().visit(ast.parse(code)))


def mutants(name: str) -> Iterator[dict[str, Any]]:
    """Yield one change for each place of a module that cosmic-ray would change, and for each kind of operator there."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import MutationVisitor
    from cosmic_ray.plugins import get_operator, operator_names

    code = (ROOT / f"gguf_spec/{name}.py").read_text(encoding="utf-8")
    right, found = meaning(code), {}
    for operator_name in operator_names():
        if get_operator(operator_name).arguments():
            continue
        operator, kind = get_operator(operator_name)(), operator_name.split("/")[1].split("_")[0]
        nodes = ast_nodes(get_ast(code))
        places = [place for node in nodes for place in operator.mutation_positions(node)]
        for i, (begin, _) in enumerate(places):
            changed = MutationVisitor(i, operator).walk(get_ast(code)).get_code()
            with contextlib.suppress(SyntaxError):
                if meaning(changed) != right:
                    which = i % 2 if kind == "NumberReplacer" else 0  # one more and one less
                    ways = found.setdefault((begin, kind, which), [])
                    ways.append((operator_name, changed))
    rng, lines = random.Random(SEED), code.splitlines()
    for (begin, kind, _), ways in sorted(found.items()):
        operator_name, changed = rng.choice(ways)
        new = [b for a, b in zip(lines, changed.splitlines(), strict=False) if a != b][:1]
        yield {"module": name, "line": begin[0], "kind": kind, "operator": operator_name} | {
            "old": lines[begin[0] - 1],
            "new": new,
            "code": changed,
        }


# ---- a copy of the package, and what notices a change to it


class Once:
    """A plugin of pytest: examples that fail are not made smaller, nor kept."""

    n_run = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.n_run += report.when == "call" and not report.skipped

    def pytest_configure(self) -> None:
        from hypothesis import Phase, settings

        settings.register_profile("once", phases=(Phase.explicit, Phase.generate), database=None)
        settings.load_profile("once")


class Copy:
    """The package and its tests in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, folder / part)
        subprocess.run([sys.executable, "-m", "compileall", "-q", folder / "gguf_spec"], check=True)

    @contextlib.contextmanager
    def changed(self, file: str, text: str) -> Iterator[None]:
        """Put another text into a file, and take it out again."""
        path = self.folder / file
        right, compiled = path.read_bytes(), Path(importlib.util.cache_from_source(str(path)))
        path.write_text(text, encoding="utf-8")
        compiled.unlink(missing_ok=True)
        try:
            yield
        finally:
            path.write_bytes(right)
            compiled.unlink(missing_ok=True)

    def test(self, tests: Sequence[str], tier: str, limit_s: float) -> str:
        """Return the first of the tests that fails, or that the time was up; nothing where all pass."""
        shutil.rmtree(self.folder / ".hypothesis", ignore_errors=True)
        output = self.folder / "output"
        child = os.fork()
        if not child:
            code = 99
            try:
                code = self._pytest(tests, tier, output)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        status = self._wait(child, limit_s)
        if status is None:
            return "time limit"
        if os.WIFSIGNALED(status):
            return f"signal {os.WTERMSIG(status)}"
        code, text = os.WEXITSTATUS(status), output.read_text(errors="replace")
        if code in (0, 5):  # 5: no test of these files is in the tier
            return ""
        if code == ALL_SKIPPED:
            return NOT_ASKED
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
        if code not in (1, 2) or not failed:
            raise RuntimeError(f"pytest ended with {code}:\n{text[-3000:]}")
        return failed[1]

    def _pytest(self, tests: Sequence[str], tier: str, output: Path) -> int:
        os.setsid()
        out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(self.folder)
        os.environ["PYTHONPATH"] = str(self.folder)
        sys.dont_write_bytecode = True
        ours = (ROOT, Path(__file__).resolve().parent)
        others = [path for path in sys.path if Path(path or ".").resolve() not in ours]
        sys.path[:] = [str(self.folder), *others]
        import gguf_spec

        if Path(gguf_spec.__file__).parent != self.folder / "gguf_spec":
            raise RuntimeError(f"{gguf_spec.__file__} is not the copy")
        import pytest

        options = ["-x", "-q", "--tb=short", "-p", "no:cacheprovider", f"--hypothesis-seed={SEED}"]
        options += TIERS[tier]
        once = Once()
        code = int(pytest.main([*options, *(f"tests/{test}" for test in tests)], [once]))
        return code if code or once.n_run else ALL_SKIPPED

    @staticmethod
    def _wait(child: int, limit_s: float) -> int | None:
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return status
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None

    def verify(self, limit_s: float) -> str:
        """Return the last line of `gguf-spec verify` on the bundled pair; nothing where it finds no fault."""
        own = {"PYTHONPATH": str(self.folder), "XDG_CACHE_HOME": str(self.folder / "cache")}
        command = [sys.executable, "-B", "-m", "gguf_spec", *VERIFY]
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=os.environ | own,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "time limit"
        last = (done.stdout.strip() or done.stderr.strip()).splitlines()[-1:]
        return f"{done.returncode}: {''.join(last)}" if done.returncode else ""


def noticed(
    job: Job, verify: bool, tier: str, limit_s: float, until: float
) -> tuple[str, float] | None:
    """Return what notices a change, "" where nothing does, and the seconds; None where the time is over."""
    started = time.monotonic()
    if started > until:
        return None
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        change = copy.changed(f"gguf_spec/{job.file}", job.text) if job.file else None
        with change or contextlib.nullcontext():
            found = copy.verify(limit_s) if verify else copy.test(job.tests, tier, limit_s)
    return found, time.monotonic() - started


def run(jobs: Sequence[Job], args: argparse.Namespace) -> Iterator[tuple[str, float] | None]:
    """Yield the outcome of each job, in their order."""
    for name in LIBRARIES:  # and none of our modules
        importlib.import_module(name)
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    n, until = len(jobs), time.monotonic() + args.seconds
    with ProcessPoolExecutor(args.workers, mp_context=get_context("fork")) as pool:
        both = [args.verify] * n, [args.tier] * n
        yield from pool.map(noticed, jobs, *both, [args.limit] * n, [until] * n)


# ---- the commands


def run_bugs(args: argparse.Namespace) -> int:
    """Plant the mistakes; return whether the tests miss one."""
    jobs = [planted(bug) for bug in BUGS]
    jobs = [job for job in jobs if args.only in job.name][args.first :][: args.most]
    n_caught = n_skipped = 0
    for job, outcome in zip(jobs, run(jobs, args), strict=True):
        caught, seconds = outcome or ("", 0)
        n_skipped += caught == NOT_ASKED
        n_caught += caught not in ("", NOT_ASKED)
        print(
            f"{job.file:<20} {job.name}\n    {caught or 'NOT CAUGHT'} ({seconds:.1f} s)", flush=True
        )
    n_asked = len(jobs) - n_skipped
    print(f"{n_caught} of {n_asked} caught by {'verify' if args.verify else 'tests'}")
    return int(not args.verify and n_caught < n_asked)


def run_control(args: argparse.Namespace) -> int:
    """Run the tests on a copy that is as it should be; return whether one fails."""
    lists = [bug.tests for bug in BUGS] + [
        tuple(tests) for both in TESTS.values() for tests in both
    ]
    jobs = [Job("", "", "", tests) for tests in dict.fromkeys(lists)]
    n_failed = 0
    for job, outcome in zip(jobs, run(jobs, args), strict=True):
        n_failed += bool(outcome and outcome[0])
        print(f"{' '.join(job.tests)}: {(outcome and outcome[0]) or 'passes'}", flush=True)
    return int(n_failed > 0)


def run_mutants(args: argparse.Namespace) -> int:
    """Run mutants without a result, in an order that the seed decides, and print the share that is caught."""
    lines = args.results.read_text().splitlines() if args.results.exists() else []
    results = [json.loads(line) for line in lines]
    wanted = [json.loads(line) for line in args.mutants.read_text().splitlines()]
    random.Random(SEED).shuffle(wanted)
    if args.survivors:
        wanted = [one for one in results if not one["caught"]]
        results = [one for one in results if one["caught"]]
    have = {one["code"] for one in results}
    wanted = [one for one in wanted if one["code"] not in have][: args.most]
    jobs = []
    for one in wanted:
        tests = tuple(TESTS[one["module"]][args.slow])
        jobs.append(Job(one["operator"], f"{one['module']}.py", one["code"], tests))
    with args.results.open("w") as file:
        file.writelines(json.dumps(one) + "\n" for one in results)
        for one, outcome in zip(wanted, run(jobs, args), strict=True):
            if outcome:
                one |= {"caught": outcome[0], "seconds": round(outcome[1], 1)}
                results.append(one)
            if outcome or args.survivors:  # without an outcome it stays a survivor
                file.write(json.dumps(one) + "\n")
                file.flush()
    for name in TESTS:
        of_it = [bool(one["caught"]) for one in results if one["module"] == name]
        print(f"{name:<10} {sum(of_it):>4} of {len(of_it):>4} caught")
    for one in results:
        if not one["caught"]:
            print(f"{one['module']}.py:{one['line']} {one['operator']}\n    {one['old'].strip()}")
            print(f"    {(one['new'] or [''])[0].strip()}")
    return 0


def run_list(_args: argparse.Namespace) -> int:
    for name in TESTS:
        for one in mutants(name):
            print(json.dumps(one))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    for run_command in (run_bugs, run_control, run_list, run_mutants):
        command = commands.add_parser(run_command.__name__.removeprefix("run_"))
        command.set_defaults(run=run_command)
        command.add_argument("--verify", action="store_true", help="ask `gguf-spec verify`")
        command.add_argument(
            "--tier", choices=TIERS, default="all", help="run the tests of it only"
        )
        command.add_argument("--limit", type=float, default=120, help="seconds for each")
        command.add_argument("--seconds", type=float, default=1e9, help="begin none after so long")
        command.add_argument("--workers", type=int, default=2)
        command.add_argument("--most", type=int, help="take so many")
        if run_command is run_bugs:
            command.add_argument("--only", default="", help="a word in the names of those wanted")
            command.add_argument(
                "--from", dest="first", type=int, default=0, help="leave out so many"
            )
        if run_command is run_mutants:
            command.add_argument("mutants", type=Path)
            command.add_argument("results", type=Path)
            command.add_argument("--survivors", action="store_true")
            command.add_argument("--slow", action="store_true", help="the tests of survivors")
    args = parser.parse_args()
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
