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
        ("system/files", "unit/test_cache.py", "gguf/test_chat.py gguf/test_profile.py unit/test_profiler.py"),
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
        "elif n < n_decoded:", "elif self.n_decoded > 1 and n < n_decoded:",
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
        "n_accepted, ended = min(n_accepted, i), True", "ended = True",
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
        ("gguf/test_model.py", "unit/test_profiler.py")),
    Bug("a profile does not depend on the type of the cache", "runtime/profile_files.py",
        "o.kv_type", '"any"',
        ("unit/test_profile_keys.py", "gguf/test_profile.py")),
    # slots
    Bug("rows of a common pass are given in the order of the slots", "llama/context.py",
        "ends[part.sequence.index] - part.n_rows, part.n_rows", "[*ends.values()][parts.index(part)] - part.n_rows, part.n_rows",
        ("gguf/test_slots.py",)),
    Bug("tokens that only filled a pass stay in the cache", "llama/context.py",
        "elif n < n_decoded:", "elif False:",
        ("gguf/test_slots.py",)),
    Bug("a slot whose place was taken still lists its tokens", "llama/context.py",
        "moved, lost\n        lost.forget()", "moved, lost",
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
    Bug("prompts are read in the order in which they came", "speculative/scheduler.py",
        "        return min(found, key=rest_s)", "        return oldest",
        ("unit/test_reading_in_turns.py",)),
    Bug("a long prompt waits until no shorter one comes", "speculative/scheduler.py",
        "        if self._owed_s > 0:\n", "        if False:\n",
        ("unit/test_reading_in_turns.py",)),
    Bug("what a prompt read alone is set against it later", "speculative/scheduler.py",
        "self._owed_s = max(self._owed_s, 0.0) - (1 - _OF_OLDEST) * price_s", "self._owed_s -= (1 - _OF_OLDEST) * price_s",
        ("unit/test_reading_in_turns.py",)),
    Bug("the time since the last pass is not part of a gap", "speculative/scheduler.py",
        "self._max_gap - pass_s - since_s", "self._max_gap - pass_s",
        ("unit/test_reading_in_turns.py",)),
    Bug("the next pass is not part of a gap", "speculative/scheduler.py",
        "self._max_gap - pass_s - since_s", "self._max_gap - since_s",
        ("unit/test_reading_in_turns.py",)),
    Bug("nothing is read where a pass takes longer than the gap", "speculative/scheduler.py",
        "_LEAST_READING * pass_s - self._read_s)", "0.0)",
        ("unit/test_reading_in_turns.py",)),
    Bug("what is cached counts as unread", "speculative/scheduler.py",
        "return max(len(part.tokens), end - part.sequence.n_past)", "return max(len(part.tokens), end)",
        ("unit/test_reading_in_turns.py",)),
    Bug("the rest of a prompt is what was handed over", "speculative/scheduler.py",
        "return max(len(part.tokens), end - part.sequence.n_past)", "return len(part.tokens)",
        ("unit/test_reading_in_turns.py",)),
    Bug("a piece is as long as it was handed over", "speculative/scheduler.py",
        "        return side, task, n or least", "        return side, task, len(task.part.tokens)",
        ("unit/test_reading_in_turns.py", "gguf/test_reading_in_turns.py")),
    Bug("a piece ends anywhere where ends matter", "speculative/scheduler.py",
        "            task.part.sequence.exactness.grid,\n", "            0,\n",
        ("unit/test_reading_in_turns.py", "gguf/test_reading_in_turns.py")),
    Bug("prompts wait for a grammar that computes", "speculative/scheduler.py",
        "        if not n and decoding and self._read_s:", "        if not n:",
        ("unit/test_reading_in_turns.py",)),
    Bug("a piece that fails is read on", "speculative/scheduler.py",
        "if n < len(part.tokens) and not task.error:", "if n < len(part.tokens):",
        ("unit/test_reading_in_turns.py",)),
    Bug("the price of reading is never corrected", "speculative/scheduler.py",
        "            self.costs.learn_reading(self.base, widest, n_past, seconds)", "            pass",
        ("unit/test_reading_in_turns.py",)),
    Bug("a cancelled prompt is read to its end", "speculative/prefix.py",
        "    while model.n_past < len(tokens) and not cancelled():", "    while model.n_past < len(tokens):",
        ("unit/test_reading_in_turns.py", "unit/test_progress.py")),
    Bug("choices read the prompt that they share at the same time", "runtime/request_queue.py",
        "                if reads_prefix(scheduler.pairs, others, job.prompt, self._kept):", "                if False:",
        ("gguf/test_reading_in_turns.py", "closing/test_parallel.py")),
    Bug("recurrent models lose their drafts to slots that nobody asked for", "runtime/plan.py",
        "least = min(least, _FEW if header.facts.has_snapshots else 1)", "pass",
        ("unit/test_plan.py",)),
    Bug("images are read beside other requests", "runtime/plan.py",
        "    if load.projector and load.parallel != 1:", "    if load.projector and load.parallel == 'auto':",
        ("unit/test_plan.py",)),
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
    Bug("a draft is always accepted by the rule in Python", "speculative/acceptance.py",
        "        if new[i] != drafted:\n            return new\n", "        new[i] = drafted\n",
        ("unit/test_accept.py", "exactness/test_heads.py")),
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
        "seed = int(self.keys_at(position)[4])", "seed = int(self.keys_at(position)[0])",
        ("unit/test_rng.py", "properties/test_sampling.py")),
    # grammar
    Bug("a state of the grammar stays after a draft was refused", "grammar/token_grammar.py",
        "for depth in [d for d in states if d > shared]", "for depth in [d for d in states if d > shared + 1]",
        ("gguf/test_grammar.py",)),
    Bug("masks of strings of other lengths are taken for too long tokens", "grammar/automaton.py",
        "found = min(found, most - later)", "found = min(found, most - later + 3)",
        ("gguf/test_grammar.py",)),
    Bug("a repetition that may not end yet has the mask of one that may", "grammar/automaton.py",
        "found = min(found, max(0, least - later))", "pass",
        ("gguf/test_grammar.py",)),
    Bug("a state in the middle of a character has the mask of one at its start", "grammar/automaton.py",
        "return (names, begun), nodes", "return names, nodes",
        ("gguf/test_grammar.py",)),
    Bug("a mask that is shared has another length than the longest token", "grammar/token_grammar.py",
        "if alike and n_alike >= pieces.longest:", "if alike and n_alike >= pieces.longest - 1:",
        ("gguf/test_grammar.py",)),
    Bug("a repetition in a grammar may come once more than allowed", "grammar/automaton.py",
        "if most != 0 and times + 1 != most:", "if most != 0 and times != most:",
        ("gguf/test_grammar.py",)),
    # sessions
    Bug("a session is restored with another type of the cache", "runtime/session_file.py",
        "[model.flash_attention, o.kv_type, *more", "[model.flash_attention, *more",
        ("unit/test_profile_keys.py", "gguf/test_chat.py")),
    Bug("a session is restored with another scale of an adapter", "runtime/session_file.py",
        "(adapter.content_id, adapter.scale)", "adapter.content_id",
        ("unit/test_profile_keys.py", "gguf/test_lora.py", "gguf/test_chat.py")),
    Bug("a kept prompt is used whatever its hash", "system/piece_folder.py",
        "if hmac.compare_digest(digest, data[-_HASH_BYTES:]):", "if digest:", ("unit/test_piece_folder.py",)),
    Bug("a clock that jumped keeps a prompt for ever", "system/piece_folder.py",
        "one.used_at if one.used_at <= now else 0", "one.used_at", ("unit/test_piece_folder.py",)),
    Bug("kept prompts are those of any model", "runtime/kept_prompts.py",
        '"\\n".join([self.made_by, *sums])', '"\\n".join(sums)', ("exactness/test_kept_on_disk.py",)),
    Bug("a restored cache counts decoded tokens as read", "llama/sequence.py",
        "[*cached], n_read, least_cut", "[*cached], len(cached), least_cut",
        ("gguf/test_model.py", "gguf/test_chat.py")),
    # server: nobody waits for ever
    Bug("a text to edit is read in this process", "system/helper.py",
        "        if subprogram.refusal():\n            return", "        if True:\n            return",
        ("unit/test_helper.py", "server/test_edit.py")),
    Bug("a child that was cut off is asked again", "system/helper.py",
        "            self._end()\n            what =", "            what =",
        ("unit/test_helper.py",)),
    Bug("the garbage collector stays off after a body", "protocols/bodies.py",
        "        if was_on:\n            gc.enable()", "        if not was_on:\n            gc.enable()",
        ("protocols/test_bodies.py", "server/test_limits.py")),
    Bug("a field of an object counts as a number", "protocols/bodies.py",
        "(b\":\", 12)", "(b\":\", 1)",
        ("protocols/test_bodies.py", "server/test_limits.py")),
    Bug("an answer without a token at the time limit is empty", "server/jobs.py",
        "if self.why == \"timeout\" and left and not self._n_ended:", "if False:",
        ("server/test_denial.py",)),
    Bug("choices that had not begun are missing when time is over", "server/jobs.py",
        "                left.append(ChoiceEnded(choice.index, nothing, self.why))\n", "                pass\n",
        ("server/test_denial.py", "server/test_parallel.py")),
    Bug("a choice that ran out of time hides those that have a text", "server/jobs.py",
        "            self._n_ended += 1\n", "            pass\n",
        ("server/test_denial.py",)),
    Bug("choices go on with a model that was closed", "server/jobs.py",
        "self._choices is None or llm is not self._llm:", "self._choices is None:",
        ("server/test_denial.py",)),
    Bug("many choices starve a request that needs a longer context", "server/worker.py",
        "and not (first and first.model is one.model)", "and True",
        ("server/test_denial.py",)),
    Bug("a request for the same model waits behind those for others", "server/worker.py",
        "                self.waiting.insert(n, job)", "                self.waiting.append(job)",
        ("server/test_denial.py",)),
    Bug("the memory of the requests that wait is not bounded", "server/worker.py",
        "or (n and n_bytes > self._most_bytes)", "or False",
        ("server/test_denial.py",)),
    Bug("a full queue names the time of one answer", "server/worker.py",
        "mean_s * max(0, n_waiting - 1)", "0.0",
        ("server/test_denial.py",)),
    Bug("clients that were refused come back together", "server/worker.py",
        "max(until_empty_s, self._return_s - now_s) + mean_s", "until_empty_s + mean_s",
        ("server/test_denial.py",)),
    Bug("a name with one dash is a short option with a value", "cli/command.py",
        "if len(word) > 2 and (is_wrong or not option):", "if False:",
        ("cli/test_llama_server_flags.py",)),
    Bug("a route before another one makes the path unknown", "server/app.py",
        "if self._is_whole(parts[:i])", "if False",
        ("server/test_edges.py",)),
    Bug("a pause counts as the time of an answer", "server/worker.py",
        "        if others_wait:\n            seconds =", "        if True:\n            seconds =",
        ("server/test_denial.py",)),
    Bug("a model that is looked at has no time limit", "server/model_routes.py",
        "            event = await in_time(job.events.get(), self._settings.limit_s)", "            event = await job.events.get()",
        ("server/test_denial.py",)),
    Bug("a model that does not move is awaited for ever", "server/app.py",
        "if n_steps == self.worker.n_steps:", "if False:",
        ("server/test_denial.py",)),
    Bug("a slow model is given up although it moves", "server/app.py",
        "if n_steps == self.worker.n_steps:", "if True:",
        ("server/test_denial.py",)),
    Bug("texts with a bias are tokenised in the slot", "server/app.py",
        "(parsed.needs_grammar or parsed.biases)", "parsed.needs_grammar",
        ("server/test_denial.py",)),
    Bug("a large answer is made on the event loop", "server/turns.py",
        "    if n_bytes <= LARGE:", "    if True:",
        ("server/test_denial.py",)),
    Bug("a backlog of events is written at once", "server/streams.py",
        "and len(batch) < _MOST_AT_ONCE:", "and True:",
        ("server/test_denial.py",)),
    Bug("a task waits for its own stream, which nobody reads", "runtime/async_llm.py",
        "        is_left = time.monotonic() - self._full_s >= TAKEN_OVER_S", "        is_left = False",
        ("unit/test_async_llm.py",)),
    Bug("a short stream that nobody reads blocks its task", "runtime/async_llm.py",
        "        if self._full_s == math.inf or not (task", "        if not (task",
        ("unit/test_async_llm.py",)),
    Bug("the newest idle connection is closed", "server/connections.py",
        "if oldest := min(idle,", "if oldest := max(idle,",
        ("server/test_connections.py",)),
    Bug("a removed response counts for ever", "server/responses.py",
        "                self._n_bytes -= stored.n_bytes", "                pass",
        ("server/test_responses_api.py",)),
    Bug("an answer in the background that nobody reads goes on", "server/background.py",
        '            self._worker.cancel(one.job, "client_closed")\n\n    def _now', "            pass\n\n    def _now",
        ("server/test_background.py",)),
    # server
    Bug("the queue does not count the requests that run", "server/worker.py",
        "- self._n_busy)", ")",
        ("server/test_load.py",)),
    Bug("log-probabilities without top_logprobs are left out", "protocols/openai.py",
        "top if wants else None", "(top or None) if wants else None",
        ("server/test_api.py",)),
    Bug("a key is compared as far as it is given", "server/app.py",
        "known.encode())", "known.encode()[: len(one)])",
        ("server/test_limits.py",)),
    Bug("the offset of a token in the text is that of the next one", "protocols/openai.py",
        "        return before\n", "        return self._n\n",
        ("server/test_api.py",)),
    Bug("all choices have one seed", "protocols/fit.py",
        "return (seed + i) % SEEDS", "return seed % SEEDS",
        ("server/test_choices.py",)),
    Bug("a field that changes the text is accepted with any value", "protocols/fields.py",
        "return self.neutral is None or any(same(value, one) for one in self.neutral)", "return True",
        ("protocols/test_fields.py", "server/test_fields.py")),
    Bug("a strict tool is free in the text after a wrong start of a tag", "tools/rules.py",
        "parts.append(f\"{quoted(letter)} {rules[after]}\")", "parts.append(f\"{quoted(letter)} {again}\")",
        ("tools/test_families.py",)),
    Bug("a call in a special token is not seen", "runtime/local_engine.py",
        "call_tokens(weights) if form.tools else {},", "{},",
        ("server/test_tool_families.py",)),
    Bug("a text of an argument is sent only at its end", "tools/notations.py",
        "            source.emit(json.dumps(piece, ensure_ascii=False)[1:-1])\n            if at >= 0:", "            if at >= 0:\n                source.emit(json.dumps(piece, ensure_ascii=False)[1:-1])",
        ("tools/test_families.py",)),
    Bug("a broken call is lost", "tools/source.py",
        "self.events.append(Event(\"broken\", source, rest))", "self.events.append(Event(\"broken\", rest, rest))",
        ("tools/test_families.py",)),
    Bug("ids of calls keep the length that a template rejects", "text/turns.py",
        "if calls.id_length:", "if False:",
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
    Bug("only errors of the exact path have the format of their API", "server/streams.py",
        "path == start or path.startswith(f\"{start}/\")", "path == start",
        ("server/test_api_formats.py",)),
    Bug("the response that was stored first is removed, used or not", "server/responses.py",
        "        self._stored.move_to_end(id_)\n", "",
        ("server/test_responses_api.py",)),
    Bug("the instructions of a response stay in the conversation", "protocols/responses.py",
        "messages_of(instructions, items)", "messages_of(instructions or (before and store.get(previous, '').response['instructions']) or None, items)",
        ("protocols/test_responses.py", "server/test_responses_api.py")),
    Bug("tools that are not allowed are in the prompt", "protocols/responses.py",
        "kept = [tool for tool in tools if tool[\"name\"] in allowed]", "kept = tools",
        ("protocols/test_responses.py", "server/test_responses_api.py")),
    Bug("a conversation is cut without room for the answer", "protocols/fit.py",
        "return facts.n_ctx - min(", "return facts.n_ctx - 0 * min(",
        ("protocols/test_fit.py", "server/test_responses_api.py")),
    Bug("a stop sequence counts as the end of a turn", "protocols/messages.py",
        "elif result.stop_string is not None:", "elif result.stop_string is None:",
        ("protocols/test_messages.py", "server/test_messages_api.py")),
    Bug("the result of a failed tool is that of one that worked", "protocols/messages.py",
        "error = [{\"type\": \"text\", \"text\": \"Error: \"}] if block.get(\"is_error\") else []", "error = []",
        ("protocols/test_messages.py", "server/test_messages_api.py")),
    # bodies of other APIs
    Bug("a text behind the result of a tool is part of the result", "protocols/messages.py",
        "if not read or read[-1][\"role\"] != role:", "if not read:",
        ("protocols/test_messages.py", "server/test_messages_api.py")),
    Bug("calls at once are allowed where they are forbidden", "protocols/messages.py",
        "parallel = not choice.get(\"disable_parallel_tool_use\")", "parallel = True",
        ("protocols/test_messages.py", "server/test_messages_api.py")),
    Bug("the reasoning of an earlier turn is text", "protocols/messages.py",
        "read[REASONING] = read.get(REASONING, \"\") + block[\"thinking\"]", "read[\"content\"] += block[\"thinking\"]",
        ("protocols/test_messages.py", "server/test_messages_api.py")),
    Bug("the effort of reasoning is lost", "protocols/messages.py",
        "config.get(\"effort\")", "None",
        ("protocols/test_messages.py", "server/test_messages_api.py")),
    Bug("the limit of reasoning is lost", "protocols/messages.py",
        "thinking.get(\"budget_tokens\")", "None",
        ("protocols/test_messages.py", "server/test_messages_api.py")),
    Bug("a call begins a turn of its own behind its text", "protocols/responses.py",
        "_turn(messages).setdefault", "_turn(messages, \"content\").setdefault",
        ("protocols/test_responses.py", "server/test_responses_api.py")),
    Bug("the summary of reasoning is taken for the reasoning", "protocols/responses.py",
        "item[\"content\"] or item[\"summary\"]", "item[\"summary\"] or item[\"content\"]",
        ("protocols/test_responses.py", "server/test_responses_api.py")),
    Bug("the role of a developer reaches the template", "protocols/responses.py",
        "\"system\" if item[\"role\"] == \"developer\" else item[\"role\"]", "item[\"role\"]",
        ("protocols/test_responses.py", "server/test_responses_api.py")),
    Bug("files of a message run into each other", "protocols/responses.py",
        "if text and piece and (is_file or is_after_file):", "if False:",
        ("protocols/test_responses.py", "server/test_responses_api.py")),
    Bug("two fields may name two limits of the answer", "protocols/responses.py",
        "if not same(data.setdefault(\"max_tokens\", limit), limit):", "if data.setdefault(\"max_tokens\", limit) is None:",
        ("protocols/test_responses.py", "server/test_responses_api.py")),
    Bug("both results of tools belong to the first call", "protocols/ollama.py",
        "open_ = [call for call in open_ if call != found[0]]", "open_ = [*open_]",
        ("protocols/test_ollama.py", "server/test_ollama.py")),
    Bug("a negative seed is refused", "protocols/ollama.py",
        "if isinstance(found.get(\"seed\"), int) and found[\"seed\"] < 0:", "if False:",
        ("protocols/test_ollama.py", "server/test_ollama.py")),
    Bug("images come behind the text", "protocols/ollama.py",
        "return [*parts, {\"type\": \"text\", \"text\": text}]", "return [{\"type\": \"text\", \"text\": text}, *parts]",
        ("protocols/test_ollama.py", "server/test_ollama.py", "server/test_images.py")),
    Bug("json as a format binds nothing", "protocols/ollama.py",
        "return {\"response_format\": {\"type\": \"json_object\"}}", "return {}",
        ("protocols/test_ollama.py", "server/test_ollama.py")),
    Bug("think false is not heard", "protocols/ollama.py",
        "return {\"reasoning_effort\": \"none\"}", "return {}",
        ("protocols/test_ollama.py", "server/test_ollama.py")),
    Bug("a raw prompt has the limit of completions", "protocols/ollama.py",
        "body.get(\"max_tokens\", -1)", "body.get(\"max_tokens\", 16)",
        ("protocols/test_ollama.py", "server/test_ollama.py")),
    Bug("a length of -2 ends the answer", "protocols/ollama.py",
        "found[\"max_tokens\"] = -1", "found[\"max_tokens\"] = 2",
        ("protocols/test_ollama.py", "server/test_ollama.py")),
    # images
    Bug("images of one size are one image", "images.py",
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
        ("unit/test_cost_model.py",)),
    Bug("rows that moved with the width of a pass are taken", "speculative/engine.py",
        "    draft.moved()\n", "    return rows[n:]\n",
        ("unit/test_first_answers.py",)),
    Bug("checks of costs get all of the time", "speculative/controller.py",
        "_CHECK_SHARE * seconds - one.again_s", "seconds",
        ("unit/test_first_answers.py",)),
    Bug("costs are checked by passes that other requests share", "speculative/controller.py",
        "self.known.target.is_checked and self.batches.target.is_alone", "self.known.target.is_checked",
        ("unit/test_first_answers.py",)),
    Bug("rows are noted after the last check of the costs", "speculative/controller.py",
        "self.known.target.is_checked and self.batches.target.is_alone", "self.batches.target.is_alone",
        ("unit/test_first_answers.py",)),
    Bug("the first pass says nothing of the machine's speed", "speculative/cost_model.py",
        "self._pace.factor *= math.exp(error)", "pass",
        ("unit/test_first_answers.py",)),
    Bug("what answers showed of the costs is not kept", "speculative/profile.py",
        "guessed=known.target.untimed,", "guessed=self.guessed,",
        ("unit/test_first_answers.py", "gguf/test_profile.py")),
    Bug("a new model is measured before its first answer", "speculative/profiler.py",
        "return is_exact and target.free_rollback >= K_MAX", "return False",
        ("gguf/test_profile.py",)),
    Bug("the first errors of doubtful costs are those of the machine", "speculative/cost_model.py",
        "return self._is_trusted or n >= len(self.base)", "return True or n >= len(self.base)",
        ("unit/test_cost_model.py",)),
    Bug("the last pass over a prompt is free", "speculative/cost_model.py",
        "if rest else 0.0)", "if not rest else 0.0)",
        ("unit/test_cost_model.py",)),
    # kernels: entry
    Bug("results of further experts of a token have no room", "kernels/entry.cpp",
        "n_uses = op->op == OP_MUL_MAT ? n_rows :", "n_uses = op->op != 1e9 ? n_rows :",
        ("kernels/test_products.py",)),
    Bug("rows that lie apart are read as neighbours", "kernels/entry.cpp",
        "row % x->ne[1] * x->nb[1] + row", "row % x->ne[1] * k * 4 + row",
        ("kernels/test_products.py",)),
    Bug("a product of several matrices reads the first one", "kernels/entry.cpp",
        "if (w->ne[3] != 1 || (op->op == OP_MUL_MAT && w->ne[2] != 1)) return nullptr;", "if (w->ne[3] != 1) return nullptr;",
        ("kernels/test_products.py",)),
    Bug("rows of any length go on the stack", "kernels/entry.cpp",
        "|| w->ne[0] > p->most || w->ne[1]", "|| w->ne[1]",
        ("kernels/test_products.py",)),
    Bug("plain weights are read as repacked ones", "kernels/entry.cpp",
        "p->type == w->type && p->repacked == repacked", "p->type == w->type",
        ("kernels/test_products.py",)),
    Bug("the end of the last expert's rows has no room", "kernels/entry.cpp",
        "p += aligned(8 * (n_matrices + 1));", "p += aligned(8 * n_matrices);",
        ("kernels/test_products.py",)),
    Bug("pointers to the rows of further experts have no room", "kernels/entry.cpp",
        "rows = (const char **) p; p += aligned(8 * n_uses);", "rows = (const char **) p; p += aligned(8 * n_rows);",
        ("kernels/test_products.py",)),
    Bug("rows of a second batch are written over the first one", "kernels/entry.cpp",
        "out + a * op->nb[1] + b * op->nb[2] + c * op->nb[3]", "out + a * op->nb[1] + b * op->nb[1] + c * op->nb[3]",
        ("kernels/test_products.py",)),
    Bug("the second expert of a token reads the next token", "kernels/entry.cpp",
        "(u % x->ne[1] + t % x->ne[2] * x->ne[1]) * work.row_bytes", "(u + t % x->ne[2] * x->ne[1]) * work.row_bytes",
        ("kernels/test_products.py",)),
    Bug("the rows of the first expert are lost", "kernels/entry.cpp",
        "work.first[m] = work.first[m - 1];\n    work.first[0] = 0;", "work.first[m] = work.first[m - 1];",
        ("kernels/test_products.py",)),
    Bug("memory that was planned by other kernels is overrun", "kernels/entry.cpp",
        "if (work.end > room) return false;", "",
        ("kernels/test_products.py",)),
    Bug("the end of a row is not prepared", "kernels/entry.cpp",
        "quanta = (k + product->quantum - 1) / product->quantum", "quanta = k / product->quantum",
        ("kernels/test_products.py",)),
    Bug("rows are multiplied while others still prepare them", "kernels/entry.cpp",
        "ggml.barrier(params->threadpool);\n    if (work.tiles", "if (work.tiles",
        ("kernels/test_products.py",)),
    Bug("columns of an incomplete group are left out", "kernels/entry.cpp",
        "groups = (n_columns + 15) / 16;", "groups = n_columns / 16;",
        ("kernels/test_products.py",)),
    Bug("the last group writes 16 columns in any case", "kernels/entry.cpp",
        "c0 + size * 16 < n_columns ? c0 + size * 16 : n_columns", "c0 + size * 16",
        ("kernels/test_products.py",)),
    Bug("llama.cpp's kernel has no room where ours refuses", "kernels/entry.cpp",
        "if (size < stock) size = stock;", "",
        ("kernels/test_products.py",)),
    Bug("a thread that planned once computes without the kernels", "kernels/entry.cpp",
        "    is_asked_without_us = false;\n", "",
        ("kernels/test_products.py",)),
    Bug("products are computed where attention alone is wanted", "kernels/entry.cpp",
        "return on & 1 && product_of(op)", "return on && product_of(op)",
        ("kernels/test_products.py",)),
    Bug("the reference is computed with the own kernels", "kernels/entry.cpp",
        "if (params->use_ref) return false;", "",
        ("kernels/test_products.py",)),
    # kernels: the sampler
    Bug("the limit of the noise is below the noise", "kernels/sampling.cpp",
        "* scale + (31.05f - log2_h)", "* scale + (29.0f - log2_h)",
        ("kernels/test_sampling.py",)),
    Bug("the nucleus lacks its last token", "kernels/sampling.cpp",
        "m = std::min(m, i + 1);", "m = std::min(m, i);",
        ("kernels/test_sampling.py",)),
    Bug("changed logits are left in the row", "kernels/sampling.cpp",
        "row.restore();\n        row.x = given;", "row.x = given;",
        ("kernels/test_sampling.py",)),
    Bug("sums are added in another order", "kernels/sampling.cpp",
        "for (int j = 1; j < BLOCK; j++) sum += lanes[j];", "for (int j = BLOCK - 1; j; j--) sum += lanes[j];",
        ("kernels/test_sampling.py",)),
    Bug("penalties see one token less", "kernels/sampling.cpp",
        "std::max(0, all - chain.last_n)", "std::max(0, all - chain.last_n + 1)",
        ("kernels/test_sampling.py",)),
    Bug("a token that a filter just removed is no near tie", "kernels/sampling.cpp",
        "filter(chain.loose, best, floor)", "filter(chain.usual, best, floor)",
        ("kernels/test_sampling.py",)),
    Bug("typical-p lacks its last token", "kernels/sampling.cpp",
        "<= p * whole) i++;\n        k = std::min(k, i + 1);", "<= p * whole) i++;\n        k = std::min(k, i);",
        ("kernels/test_sampling.py",)),
    Bug("of equal tokens XTC leaves the first one", "kernels/sampling.cpp",
        "x[ids[i]] <= x[ids[stays]]", "x[ids[i]] < x[ids[stays]]",
        ("kernels/test_sampling.py",)),
    Bug("the draw of XTC is not that of the Mersenne Twister", "kernels/sampling.cpp",
        "i <= 397; i++) {", "i <= 396; i++) {",
        ("kernels/test_sampling.py",)),
    Bug("a token right at the limit of top-n-sigma is no near tie", "kernels/sampling.cpp",
        "std::fabs(own - (float) limit) < noise || ", "",
        ("kernels/test_sampling.py",)),
    Bug("a mask leaves a token that is no number", "kernels/sampling.cpp",
        "(some >> j & (uint32_t) (one > -INF))", "(some >> j & 1)",
        ("kernels/test_sampling.py",)),
    Bug("the tree of the tokens has one token of two with the same text", "kernels/sampling.cpp",
        "i < tree.firsts[at + 1]; i++)", "i < std::min(tree.firsts[at] + 1, tree.firsts[at + 1]); i++)",
        ("kernels/test_sampling.py",)),
    Bug("the longest text below a node is that of its first branch", "kernels/sampling.cpp",
        "below < next; below = tree.nexts[below])", "below < next; below = next)",
        ("kernels/test_sampling.py",)),
    # kernels: products
    Bug("a part of a row that begins within a kilobyte is stored at its beginning", "kernels/products.cpp",
        "Block32 & block = blocks[i / 32 + b];", "Block32 & block = blocks[i / PART * 32 + b];",
        ("kernels/test_products.py",)),
    Bug("sums of a block leave out its last element", "kernels/products.cpp",
        "sum_of((const int8_t *) block.bytes, 32)", "sum_of((const int8_t *) block.bytes, 31)",
        ("kernels/test_products.py",)),
    Bug("sums lie over the next row", "kernels/products.cpp",
        "size_t bytes_plain32(int64_t k) { return k + k / 4; }", "size_t bytes_plain32(int64_t k) { return k + k / 8; }",
        ("kernels/test_products.py",)),
    Bug("all blocks have the scale of the first one", "kernels/products.cpp",
        "scale[i / 32 + b] = half_at(p);", "scale[i / 32 + b] = half_at(q);",
        ("kernels/test_products.py",)),
    Bug("half of the sums of 16 are lost", "kernels/products.cpp",
        "memcpy(sums16 + 16 * at, p + 260, 32);", "memcpy(sums16 + 16 * at, p + 260, 16);",
        ("kernels/test_products.py",)),
    Bug("sums of 32 overlap", "kernels/products.cpp",
        "sums16[16 * at + 2 * j + 1]", "sums16[16 * at + 2 * j + (j < 7)]",
        ("kernels/test_products.py",)),
    Bug("sums of 32 lie over the next row", "kernels/products.cpp",
        "return k + k / 64 + k / 8 + k / 16;", "return k + k / 64 + k / 8;",
        ("kernels/test_products.py",)),
    Bug("the scale of a later part replaces that of the first", "kernels/products.cpp",
        "memcpy(scale + at, p, 4);", "memcpy(scale + b, p, 4);",
        ("kernels/test_products.py",)),
    Bug("activations are not rounded to the type of the weights", "kernels/products.cpp",
        "T::rounded(x[i])", "x[i]",
        ("kernels/test_products.py",)),
    Bug("a row of 256 is divided between threads", "kernels/products.cpp",
        "#define INTERLEAVED256(T) {T, true, 256, ANY, 8, 256,", "#define INTERLEAVED256(T) {T, true, 256, ANY, 8, 32,",
        ("kernels/test_products.py",)),
    Bug("a type has lost its kernel", "kernels/products.cpp",
        "PLAIN32(IQ4_NL), PLAIN32(MXFP4),", "PLAIN32(IQ4_NL),",
        ("kernels/test_products.py",)),
    Bug("a type with a minimum has no sums", "kernels/products.cpp",
        "header = T::minimum >= 0 ? 4 : 2", "header = T::minimum >= 4 ? 4 : 2",
        ("kernels/test_products.py",)),
    # kernels: tiles
    Bug("blocks of 32 in tiles have the scale of the first row", "kernels/tiles.cpp",
        "all(rows.number(r, block + i, 0))", "all(rows.number(first, block + i, 0))",
        ("kernels/test_products.py",)),
    Bug("activations of blocks of 32 lie in another order than the weights", "kernels/tiles.cpp",
        "+ 2 * (i % 2);", "+ i % 2;",
        ("kernels/test_products.py",)),
    Bug("superblocks of Q4_K in tiles have the scale of the first row", "kernels/tiles.cpp",
        "all(rows.number(j, block, 0))", "all(rows.number(r, block, 0))",
        ("kernels/test_products.py",)),
    Bug("low bits of sums of activations are lost", "kernels/tiles.cpp",
        "_mm256_or_si256(h, _mm256_srli_epi32(l, 16))", "_mm256_or_si256(h, _mm256_srli_epi32(h, 16))",
        ("kernels/test_products.py",)),
    Bug("offsets in tiles take the sums of the first row", "kernels/tiles.cpp",
        "rows.word(r, block, 1 + i)", "rows.word(first, block, 1 + i)",
        ("kernels/test_products.py",)),
    Bug("minima in tiles take the sums of the first row", "kernels/tiles.cpp",
        "rows.word(r, b, 1 + i)", "rows.word(0, b, 1 + i)",
        ("kernels/test_products.py",)),
    Bug("half of the elements of a group have the scale of the others", "kernels/tiles.cpp",
        "scales[2 * group + i / 4];", "scales[2 * group];",
        ("kernels/test_products.py",)),
    Bug("further blocks of rows are added to the first one", "kernels/tiles.cpp",
        "r += BLOCK, to += groups) {", "r += BLOCK) {",
        ("kernels/test_products.py",)),
    Bug("elements behind the first ones of a row are multiplied with these", "kernels/tiles.cpp",
        "x + r / 16 * next + b * Rows<K>::unit,", "x + r / 16 * next,",
        ("kernels/test_products.py",)),
    Bug("tiles of weights have more rows than those of activations have columns", "kernels/tiles.cpp",
        "m0, m1, bytes / 4, bytes / 4}", "m0, m1, 16, 16}",
        ("kernels/test_products.py",)),
    Bug("sums of further rows lie as if there were all columns", "kernels/tiles.cpp",
        "r += BLOCK, to += groups) {", "r += BLOCK, to += at_once.groups) {",
        ("kernels/test_products.py",)),
    Bug("few rows meet a part of the blocks", "kernels/tiles.cpp",
        "b += at_once.depth) {", "b += K::depth) {",
        ("kernels/test_products.py",)),
    Bug("few rows meet a part of the columns", "kernels/tiles.cpp",
        "c += 16 * at_once.groups) {", "c += 16 * K::groups) {",
        ("kernels/test_products.py",)),
    Bug("sums of all but the first columns are not cleared", "kernels/tiles.cpp",
        "/ BLOCK * groups * sizeof", "/ BLOCK * sizeof",
        ("kernels/test_products.py",)),
    Bug("memory for tiles is that of the first thread", "kernels/entry.cpp",
        "work.scratch + params->ith * work.scratch_bytes", "work.scratch",
        ("kernels/test_products.py",)),
    Bug("rows for tiles are not written", "kernels/entry.cpp",
        "if (work.tiles && op->op == OP_MUL_MAT) work.pack(to, work.packed, row, n_rows, k, begin, end);", "",
        ("kernels/test_products.py",)),
    Bug("rows of experts for tiles are not written", "kernels/entry.cpp",
        "if (work.tiles && op->op != OP_MUL_MAT) {", "if (false) {",
        ("kernels/test_products.py",)),
    Bug("rows of an expert for tiles are written over those of the one before", "kernels/entry.cpp",
        "(first[matrix] / 16 + matrix)", "(first[matrix] / 16)",
        ("kernels/test_products.py",)),
    Bug("minima of the last superblock are left in tiles", "kernels/tiles.cpp",
        "        TILE_STORE(0, stage + 2 * TILE);\n        if (TWO) TILE_STORE(2, stage + 5 * TILE);\n        UNROLL", "        UNROLL",
        ("kernels/test_products.py",)),
    Bug("the last of an odd number of blocks is multiplied twice", "kernels/tiles.cpp",
        "n_blocks - i < 2 ? 1 : 2, sums[g].sum}", "2, sums[g].sum}",
        ("kernels/test_products.py",)),
    # kernels: attention
    Bug("the last position of an incomplete tile is hidden", "kernels/attention.cpp",
        "n < TILE ? EVERY << n : 0, none", "n < TILE ? EVERY << (n - 1) : 0, none",
        ("kernels/test_attention.py",)),
    Bug("hidden positions within a piece are seen", "kernels/attention.cpp",
        "pieces[piece - 1].dense = plain && next - pieces[piece - 1].cell == n_seen - (piece - 1) * PIECE;", "pieces[piece - 1].dense = plain;",
        ("kernels/test_attention.py",)),
    Bug("what the mask adds is lost where nothing is hidden", "kernels/attention.cpp",
        "dense = plain && next", "dense = next",
        ("kernels/test_attention.py",)),
    Bug("rows behind the first 32 have the query of these", "kernels/attention.cpp",
        "query += SCORED * z.key, out += SCORED)", "out += SCORED)",
        ("kernels/test_attention.py",)),
    Bug("what a row sees ends one position early", "kernels/attention.cpp",
        "end = (int32_t) (p + 32 - __builtin_clz(seen));", "end = (int32_t) (p + 31 - __builtin_clz(seen));",
        ("kernels/test_attention.py",)),
    Bug("a piece begins one position early", "kernels/attention.cpp",
        "for (; n_seen < piece * PIECE; n_seen++)", "for (; n_seen + 1 < piece * PIECE; n_seen++)",
        ("kernels/test_attention.py",)),
    Bug("two infinite scores in two pieces are a number", "kernels/attention.cpp",
        "best2 == INFINITY ? NAN : 1", "best2 == INFINITY ? 1 : 1",
        ("kernels/test_attention.py",)),
    Bug("rows behind the first vector have its slopes", "kernels/attention.cpp",
        "load_floats(rows.slope + r0)", "load_floats(rows.slope)",
        ("kernels/test_attention.py",)),
    Bug("rows of a vector have the mask of its first one", "kernels/attention.cpp",
        "rows.mask[(r0 + j) % rows.share]", "rows.mask[r0 % rows.share]",
        ("kernels/test_attention.py",)),
    Bug("NaN of a hidden position reaches the row", "kernels/attention.cpp",
        "if (!(hidden[r] >> i & 1))", "",
        ("kernels/test_attention.py",)),
    Bug("rows are left out where the first of them sees nothing", "kernels/attention.cpp",
        "unseen &= hidden[r + i];", "unseen &= hidden[r];",
        ("kernels/test_attention.py",)),
    Bug("cells behind the cache are read without a mask", "kernels/attention.cpp",
        "if (last[r] > z.n_kv) last[r] = z.n_kv;", "",
        ("kernels/test_attention.py",)),
    Bug("a row sees what lies before its piece", "kernels/attention.cpp",
        "if (first[r] > p) hidden[r] |= first[r] - p >= TILE ? EVERY : ~(EVERY << (first[r] - p));", "",
        ("kernels/test_attention.py",)),
    Bug("rows of further heads see what the first row sees", "kernels/attention.cpp",
        "hidden[r] = hidden[r - rows.share];", "hidden[r] = hidden[0];",
        ("kernels/test_attention.py",)),
    Bug("a capped score of -infinity is NaN", "kernels/attention.cpp",
        "if (piece == 0 && z.cap == 0)", "if (piece == 0)",
        ("kernels/test_attention.py",)),
    Bug("slopes of heads that are no power of two begin one head late", "kernels/attention.cpp",
        "return head < n ? powf", "return head <= n ? powf",
        ("kernels/test_attention.py",)),
    Bug("a large query is infinite before a cache of 8 bits", "kernels/attention.cpp",
        "type == Q8_0 ? 65520 * 127 : INFINITY", "type == Q8_0 ? 65520 : INFINITY",
        ("kernels/test_attention.py",)),
    Bug("all streams have the mask of the first one", "kernels/attention.cpp",
        "const int64_t m = z.mask ? b % z.mask->ne[3] : 0;", "const int64_t m = 0;",
        ("kernels/test_attention.py",)),
    Bug("a sink of -infinity makes a row NaN", "kernels/attention.cpp",
        "if (sink != -INFINITY || rows.weight[r] == 0) merge", "merge",
        ("kernels/test_attention.py",)),
    Bug("the heads of a group have the sink of its first one", "kernels/attention.cpp",
        "z.sinks->data)[h]", "z.sinks->data)[h / z.group * z.group]",
        ("kernels/test_attention.py",)),
    Bug("a row that sees nothing is NaN", "kernels/attention.cpp",
        "rows.weight[r] == 0 ? 0 : 1 / rows.weight[r]", "1 / rows.weight[r]",
        ("kernels/test_attention.py",)),
    Bug("heads of any length are taken", "kernels/attention.cpp",
        "k->ne[0] <= MOST_HEAD && v->ne[0] <= MOST_HEAD &&", "",
        ("kernels/test_attention.py",)),
    Bug("more threads than planned write behind the memory", "kernels/attention.cpp",
        "while (n > 0 && z.bytes > room)", "while (n > 0 && false)",
        ("kernels/test_attention.py",)),
    Bug("rows are attended before their pieces are found", "kernels/attention.cpp",
        "table + i * (z.pieces + 1));\n        ggml.barrier(params->threadpool);", "table + i * (z.pieces + 1));",
        ("kernels/test_attention.py",)),
    Bug("NaN in the third and fourth vector of a head is not seen", "kernels/attention.cpp",
        "any_nan(add(add(odd[0], odd[1]), add(odd[2], odd[3])))", "any_nan(add(odd[0], odd[1]))",
        ("kernels/test_attention.py",)),
    # kernels: by somebody who had not read the tests
    Bug("tiles stay in use after a product", "kernels/tiles.cpp",
        "TILE_RELEASE(); //", "//",
        ("kernels/test_products.py",)),
    Bug("a product that the system refuses counts as computed", "kernels/tiles.cpp",
        "if (!may_use_tiles()) return false;", "if (!may_use_tiles()) return true;",
        ("kernels/test_products.py",)),
    Bug("rows above the most begin with the sums of those before", "kernels/tiles.cpp",
        "memset((void *) sums, 0,", "if (!first) memset((void *) sums, 0,",
        ("kernels/test_products.py",)),
    Bug("sums of an incomplete block of rows have no room", "kernels/tiles.cpp",
        "((n < K::most ? n : K::most) + BLOCK - 1) / BLOCK;", "(n < K::most ? n : K::most) / BLOCK;",
        ("kernels/test_products.py",)),
    Bug("a tile writes one column behind the last one", "kernels/tiles.cpp",
        "(1 << (c1 - at)) - 1", "(2 << (c1 - at)) - 1",
        ("kernels/test_products.py",)),
    Bug("a superblock takes the scale of the first one", "kernels/tiles.cpp",
        "rows.number(r, b, 0)", "rows.number(r, 0, 0)",
        ("kernels/test_products.py",)),
    Bug("sums of the first rows are stored after those of the next step", "kernels/tiles.cpp",
        "        TILE_STORE(1, stage + TILE);\n        TILE_ZERO(1);\n        TILE_DOT_UNSIGNED(1, 4, 7);", "        TILE_ZERO(1);\n        TILE_DOT_UNSIGNED(1, 4, 7);\n        TILE_STORE(1, stage + TILE);",
        ("kernels/test_products.py",)),
    Bug("memory behind the minima is multiplied", "kernels/tiles.cpp",
        "_mm512_store_si512(minimum + 64 * (8 + i), zero_ints());", "",
        ("kernels/test_products.py",)),
    Bug("rows for tiles lie over the next ones", "kernels/tiles.cpp",
        "(size_t) (k / K::elements) * Rows<K>::unit; }", "(size_t) (k / K::elements) * Rows<K>::numbers; }",
        ("kernels/test_products.py",)),
    Bug("memory for tiles has no room for the rows of further experts", "kernels/entry.cpp",
        "tiles->scratch_bytes(n_uses)", "tiles->scratch_bytes(n_rows)",
        ("kernels/test_products.py",)),
    Bug("a product that was planned without tiles is not computed", "kernels/entry.cpp",
        "if (work.end > room) work = Work(op, product, nullptr, params->nth, params->wdata);", "",
        ("kernels/test_products.py",)),
    Bug("a NaN hides the numbers before it", "kernels/products.cpp",
        "maximum(sizes_of(load_floats(x + i + j * L)), most[j])", "maximum(most[j], sizes_of(load_floats(x + i + j * L)))",
        ("kernels/test_products.py",)),
    Bug("the last block has as many heads as the others", "kernels/attention.cpp",
        "heads = (int) (z.k->ne[2] - head < z.heads ? z.k->ne[2] - head : z.heads);", "heads = (int) z.heads;",
        ("kernels/test_attention.py",)),
    Bug("the last piece is not added where threads share pieces", "kernels/attention.cpp",
        "for (int64_t p = 1; p < z.pieces; p++) put_sums", "for (int64_t p = 1; p + 1 < z.pieces; p++) put_sums",
        ("kernels/test_attention.py",)),
    Bug("the second row of a narrow tile has the minima of the first", "kernels/interleaved.h",
        "T::sums(rows[r], b) + 2 * part", "T::sums(rows[0], b) + 2 * part",
        ("kernels/test_products.py",)),
    Bug("half of the last 16 columns is not written", "kernels/interleaved.h",
        "n_columns >= 16 ? 0xffff", "n_columns > 16 ? 0xffff",
        ("kernels/test_products.py",)),
    Bug("what lies behind a row of floats is multiplied with zeros", "kernels/floats.h",
        "whole + i < k ? rows[r][whole + i] : 0", "rows[r][whole + i]",
        ("kernels/test_products.py",)),
    Bug("columns behind the last one are read", "kernels/plain.h",
        "(i < n_columns ? i : 0) * stride", "i * stride",
        ("kernels/test_products.py",)),
    Bug("a later block of rows writes over the first", "kernels/interleaved.h",
        "store_columns(y[first + r] + c + j * L,", "store_columns(y[r] + c + j * L,",
        ("kernels/test_products.py",)),
    Bug("sums of parts do not fit into 16 bits", "kernels/interleaved.h",
        "start = HAS_DOT && T::parts == 8 ? 8 : 0", "start = HAS_DOT && T::parts == 8 ? 4 : 0",
        ("kernels/test_products.py",)),
    Bug("the last superblocks are unpacked where the first ones are", "kernels/plain.h",
        "w + at * stride + (b + i) * T::bytes,", "w + at * stride + i * T::bytes,",
        ("kernels/test_products.py",)),
    Bug("the second column of a vector takes the first one's minimum", "kernels/plain.h",
        "((const float *) &u->dmin)[8 * c]", "((const float *) &u->dmin)[0 * c]",
        ("kernels/test_products.py",)),
    Bug("the second smallest scale of MXFP4 is zero", "kernels/simd.h",
        "e < 2 ? 0x00200000u << e", "e < 1 ? 0x00200000u << e",
        ("kernels/test_products.py",)),
    # turns and requests that share passes
    Bug("the turn of a stream that is gone stays taken", "runtime/request_queue.py",
        "(first := next(iter(self.tickets), None)) and first.stream and not first.stream()", "(first := next(iter(self.tickets), None)) and False",
        ("unit/test_llm.py", "unit/test_stream.py", "unit/test_many.py", "gguf/test_parallel.py", "closing/test_turns.py")),
    Bug("a request whose reader is behind goes on without limit", "runtime/request_queue.py",
        "return self._listener.is_full()", "return False",
        ("gguf/test_parallel.py", "closing/test_turns.py")),
    Bug("SystemExit in a callback ends the thread of all requests", "runtime/request_queue.py",
        "except BaseException as error:  # a callback may raise anything, such as SystemExit", "except Exception as error:",
        ("gguf/test_parallel.py", "closing/test_turns.py")),
    Bug("a thread waits for its own turn", "runtime/request_queue.py",
        "        if first and first.thread == threading.get_ident():\n            raise BusyError\n\n    def take", "        if False:\n            raise BusyError\n\n    def take",
        ("unit/test_llm.py", "unit/test_stream.py", "unit/test_many.py", "gguf/test_parallel.py", "closing/test_turns.py")),
    Bug("a request that waited runs after the end", "runtime/request_queue.py",
        "        self.join(ticket, self._wake)\n        self.check_open()\n", "        self.join(ticket, self._wake)\n",
        ("unit/test_llm.py", "unit/test_stream.py", "unit/test_many.py", "gguf/test_parallel.py", "closing/test_turns.py")),
    Bug("a stream releases the turn while the engine computes it", "runtime/request_queue.py",
        "if not any(job.ticket is ticket for job in self._jobs()):", "if True:",
        ("gguf/test_listen.py", "closing/test_interrupts.py")),
    Bug("the stream of another thread is not ended", "runtime/request_queue.py",
        "            stream.abort()\n", "            pass\n",
        ("unit/test_llm.py", "unit/test_stream.py", "unit/test_many.py", "gguf/test_parallel.py", "closing/test_turns.py")),
    Bug("a thread may hold as many streams as there are slots, and one more", "runtime/request_queue.py",
        "len(mine) >= n_most", "len(mine) > n_most",
        ("gguf/test_parallel.py", "closing/test_turns.py")),
    Bug("a cancelled request waits for its slots", "runtime/request_queue.py",
        "            if job.end_cancelled():\n                self._queue.remove(job)", "            pass",
        ("gguf/test_parallel.py", "closing/test_turns.py")),
    Bug("requests are started while another turn is awaited", "runtime/request_queue.py",
        "if not self.has_others(ticket) and not self.is_closed:", "if not self.is_closed:",
        ("gguf/test_parallel.py", "closing/test_turns.py")),
    Bug("a cancelled request waits for its reader", "runtime/request_queue.py",
        "if job.task and (job.generation.cancelled or not job.is_full):", "if job.task and not job.is_full:",
        ("gguf/test_parallel.py", "closing/test_turns.py")),
    Bug("a slot that is half restored is used", "runtime/request_queue.py",
        "                    slot.forget()  # it may be half copied or restored", "                    pass",
        ("gguf/test_parallel.py", "closing/test_turns.py", "unit/test_prefix_cache.py", "unit/test_prepare_slot.py", "exactness/test_kept_prefixes.py")),
    Bug("saving a cache overwrites the rows of the others", "runtime/request_queue.py",
        "                scheduler.hold_rows()  # saving a cache may need a pass\n", "",
        ("gguf/test_parallel.py", "closing/test_turns.py", "unit/test_prefix_cache.py", "unit/test_prepare_slot.py", "exactness/test_kept_prefixes.py")),
    # rounds
    Bug("the last round drafts one token too many", "speculative/engine.py",
        "k=min(k, n_left - 1), rule", "k=min(k, n_left), rule",
        ("unit/test_engine.py", "unit/test_llm.py", "properties/test_engine.py")),
    Bug("a near tie behind tokens of wide passes is not counted", "speculative/engine.py",
        "        if one.wide and not rule.wide_past:\n            rule = rule._replace(wide_past=True)\n", "",
        ("properties/test_near_ties.py", "unit/test_engine.py", "unit/test_llm.py", "properties/test_engine.py")),
    Bug("a text from wide passes counts as one of single ones", "speculative/engine.py",
        "    if target.n_read < target.n_past:\n        rule = rule._replace(wide_past=True)\n", "",
        ("properties/test_near_ties.py", "unit/test_engine.py", "unit/test_llm.py", "properties/test_engine.py")),
    Bug("no checkpoint is kept behind a prompt", "speculative/engine.py",
        "    target.hold(lasting=True)\n", "",
        ("gguf/test_rollback.py", "exactness/test_edited_prompts.py")),
    Bug("the draft model reads a prompt that is decoded plainly", "speculative/engine.py",
        "    if k and not cancelled():\n        drafter.read", "    if not cancelled():\n        drafter.read",
        ("unit/test_engine.py", "unit/test_llm.py", "properties/test_engine.py", "unit/test_progress.py")),
    Bug("the tokens of a round stay in the cache of the draft model", "speculative/engine.py",
        "    target.rollback(keep)\n    drafter.rollback(keep)", "    target.rollback(keep)\n    drafter.rollback(keep + 1)",
        ("unit/test_engine.py", "unit/test_llm.py", "properties/test_engine.py")),
    # kept prefixes
    Bug("a text is compared with the next neighbour alone", "runtime/prefix_cache.py",
        "self._keys[max(0, at - 1) : at + 1]", "self._keys[at : at + 1]",
        ("unit/test_prefix_cache.py", "unit/test_prepare_slot.py", "exactness/test_kept_prefixes.py")),
    Bug("a text is not kept because one that cannot be cut begins as it", "runtime/prefix_cache.py",
        "near.startswith(key) and not self._kept[near].is_whole", "near.startswith(key)",
        ("unit/test_prefix_cache.py", "unit/test_prepare_slot.py", "exactness/test_kept_prefixes.py")),
    Bug("the newest text may be larger than the memory that is left", "runtime/prefix_cache.py",
        "while self._n_bytes + n_bytes > limit:", "while self._n_bytes > limit:",
        ("unit/test_prefix_cache.py", "unit/test_prepare_slot.py", "exactness/test_kept_prefixes.py")),
    Bug("the memory of dropped texts is never free again", "runtime/prefix_cache.py",
        "self._n_bytes -= self._kept.pop(key).n_bytes", "self._kept.pop(key)",
        ("unit/test_prefix_cache.py", "unit/test_prepare_slot.py", "exactness/test_kept_prefixes.py")),
    Bug("a checkpoint behind what two texts share is used", "runtime/prefix_cache.py",
        "if one.n <= same), default=0)", "if one.n <= same + 1), default=0)",
        ("unit/test_prefix_cache.py", "unit/test_prepare_slot.py", "exactness/test_kept_prefixes.py")),
    Bug("a text that cannot be cut is replaced by a longer one", "runtime/prefix_cache.py",
        "            if not self._kept[prefix].is_whole:\n", "            if True:\n",
        ("unit/test_prefix_cache.py", "unit/test_prepare_slot.py", "exactness/test_kept_prefixes.py")),
    Bug("a copied text keeps what follows the common part", "runtime/prefix_cache.py",
        "        to.target.rollback(n_copied)\n", "",
        ("unit/test_prefix_cache.py", "unit/test_prepare_slot.py", "exactness/test_kept_prefixes.py", "gguf/test_parallel.py")),
    Bug("the draft model of a copied text begins at the beginning", "runtime/prefix_cache.py",
        "            to.first.offset, to.first.failed = source.first.offset, source.first.failed\n", "",
        ("unit/test_prefix_cache.py", "unit/test_prepare_slot.py", "exactness/test_kept_prefixes.py")),
    Bug("the state of a text that fails to come back stays", "runtime/prefix_cache.py",
        "            if key in self._kept:  # saving the caches may have dropped it\n                self._drop(key)\n", "",
        ("unit/test_prefix_cache.py", "unit/test_prepare_slot.py", "exactness/test_kept_prefixes.py")),
    # reading bodies
    Bug("a body may have any number of values", "protocols/bodies.py",
        "if (n := n_values(body)) > VALUES_MAX and", "if (n := n_values(body)) > 1e99 and",
        ("protocols/test_bodies.py", "protocols/test_fields.py", "server/test_limits.py", "server/test_connections.py", "server/test_fields.py", "server/test_drop_in.py")),
    Bug("half a surrogate reaches the tokenizer", "protocols/bodies.py",
        "(mended := well_formed(text)) != text else", "False else",
        ("protocols/test_fields.py", "server/test_fields.py", "server/test_drop_in.py", "server/test_api.py", "server/test_tools.py")),
    Bug("a bias of a line of a batch must be finite", "protocols/bodies.py",
        "if name == \"body\" and isinstance(value, dict):  # of a line of a batch", "if False:",
        ("protocols/test_fields.py", "server/test_fields.py", "server/test_drop_in.py", "server/test_errors.py", "batch/test_lines.py")),
    Bug("bodies that came are counted for ever", "server/uploads.py",
        "            self.n_held -= sum(map(len, parts))\n", "            pass\n",
        ("server/test_limits.py", "server/test_connections.py")),
    Bug("a slow body is awaited for ever", "server/uploads.py",
        "allowed_s = min(allowed_s, self._settings.limit_s or math.inf)", "allowed_s = 1e6",
        ("server/test_limits.py", "server/test_connections.py")),
    Bug("a body of exactly the largest size loses its end", "server/uploads.py",
        "            if n <= most:\n                parts", "            if n < most:\n                parts",
        ("server/test_limits.py", "server/test_connections.py")),
    Bug("large bodies are read in the event loop", "server/uploads.py",
        "        if (n_bytes := len(body) + n_more) <= LARGE:\n            return function(*given)", "        if True:\n            return function(*given)",
        ("server/test_limits.py", "server/test_connections.py", "server/test_load.py")),
    Bug("bodies that were read in a thread are counted for ever", "server/uploads.py",
        "            self.n_held -= len(body)\n", "            pass\n",
        ("server/test_limits.py", "server/test_connections.py")),
    Bug("there may be any number of stop strings", "protocols/bodies.py",
        "        or len(some) > STOPS_MAX\n", "",
        ("protocols/test_fields.py", "server/test_fields.py", "server/test_drop_in.py")),
    Bug("a stop string may have any length", "protocols/bodies.py",
        "isinstance(stop, str) and len(stop) <= STOP_LENGTH_MAX for", "isinstance(stop, str) for",
        ("protocols/test_fields.py", "server/test_fields.py", "server/test_drop_in.py")),
    Bug("a bias of 0 forbids the token", "protocols/bodies.py",
        "-math.inf if bias is False else bias", "-math.inf if bias == False else bias",
        ("protocols/test_fields.py", "server/test_fields.py", "server/test_drop_in.py", "server/test_api.py", "server/test_tools.py")),
    Bug("a bias of a text of other digits ends in an internal error", "protocols/bodies.py",
        "return key.isdecimal() and len(key) < 10", "return key.isdigit() and len(key) < 10",
        ("protocols/test_fields.py", "server/test_fields.py", "server/test_drop_in.py", "server/test_api.py", "server/test_tools.py")),
    Bug("the older limit of tokens counts", "protocols/bodies.py",
        "            if name != newer:\n                return\n", "            if name == newer:\n                return\n",
        ("protocols/test_fields.py", "server/test_fields.py", "server/test_drop_in.py", "server/test_api.py", "server/test_tools.py")),
    Bug("an error names the field by our name, not by the client's", "protocols/bodies.py",
        "        if here != name:\n            names[here] = name\n", "",
        ("protocols/test_fields.py", "server/test_fields.py", "server/test_drop_in.py", "server/test_api.py", "server/test_tools.py")),
    Bug("any part of a result that cannot be read is a short text", "protocols/bodies.py",
        "            if not isinstance(kind, str) or kind in text_kinds:\n                raise\n", "            if not isinstance(kind, str):\n                raise\n",
        ("protocols/test_fields.py", "protocols/test_messages.py", "server/test_api.py", "server/test_tools.py", "server/test_fields.py", "server/test_drop_in.py", "server/test_messages_api.py")),
    Bug("an empty array as content is refused", "protocols/openai.py",
        "if may_be_empty and (value is None or value == []):", "if may_be_empty and value is None:",
        ("protocols/test_fields.py", "server/test_api.py", "server/test_tools.py", "server/test_fields.py", "server/test_drop_in.py")),
    Bug("arguments of a deep call end in an internal error", "protocols/bodies.py",
        "        arguments = json.loads(text or \"{}\")\n    except (ValueError, RecursionError):", "        arguments = json.loads(text or \"{}\")\n    except ValueError:",
        ("protocols/test_fields.py", "server/test_api.py", "server/test_tools.py", "server/test_fields.py", "server/test_drop_in.py")),
    Bug("true is 1", "protocols/fields.py",
        "return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)", "return bool(one == other)",
        ("protocols/test_fields.py", "server/test_fields.py", "server/test_drop_in.py")),
    Bug("the reasoning of OpenRouter replaces our field", "protocols/openai.py",
        "if reasoning and REASONING not in message else {}", "if reasoning else {}",
        ("protocols/test_fields.py", "server/test_api.py", "server/test_tools.py", "server/test_fields.py", "server/test_drop_in.py")),
    Bug("a tool that must be called may be left out", "protocols/bodies.py",
        "return ToolUse(tools, mode == \"required\", only", "return ToolUse(tools, False, only",
        ("protocols/test_fields.py", "server/test_api.py", "server/test_tools.py", "server/test_fields.py", "server/test_drop_in.py", "server/test_tool_choice.py")),
    Bug("two tools may have one name", "protocols/bodies.py",
        "if len(set(names)) < len(names):", "if False:",
        ("protocols/test_fields.py", "server/test_api.py", "server/test_tools.py", "server/test_fields.py", "server/test_drop_in.py")),
    Bug("an answer to tools of a server alone is made up", "protocols/bodies.py",
        "    if left_out and not found:\n", "    if False:\n",
        ("protocols/test_fields.py", "server/test_api.py", "server/test_tools.py", "server/test_fields.py", "server/test_drop_in.py")),
    Bug("samplers may stand in any order", "protocols/llama_server.py",
        "isinstance(value, list) and value == [name for name in SAMPLERS if name in value]", "isinstance(value, list) and {*value} <= {*SAMPLERS}",
        ("protocols/test_llama_server.py", "server/test_infill.py")),
    Bug("the end of the prefix is left out", "protocols/llama_server.py",
        "data[\"input_prefix\"] + data.get(\"prompt\", \"\")", "data[\"input_prefix\"]",
        ("protocols/test_llama_server.py", "server/test_infill.py")),
    # registry and downloads
    Bug("half a file is a model", "registry/download.py",
        "if not path or part.size_bytes not in (None, path.stat().st_size):", "if not path:",
        ("unit/test_download.py", "unit/test_references.py", "unit/test_registry.py", "unit/test_package_source.py")),
    Bug("files that are there need room again", "registry/download.py",
        "for part, path in pairs if path is None)", "for part, path in pairs)",
        ("unit/test_download.py", "unit/test_references.py", "unit/test_registry.py", "unit/test_package_source.py")),
    Bug("a download begins on a disk without room", "registry/download.py",
        "    if free < needed:\n", "    if not free:\n",
        ("unit/test_download.py", "unit/test_references.py", "unit/test_registry.py", "unit/test_package_source.py")),
    Bug("a forced download without a network does nothing", "registry/download.py",
        "    elif force:\n        by =", "    elif False:\n        by =",
        ("unit/test_download.py", "unit/test_references.py", "unit/test_registry.py", "unit/test_package_source.py")),
    Bug("files of two commits are one model", "registry/download.py",
        "    if others:\n        raise HubError", "    if False:\n        raise HubError",
        ("unit/test_download.py", "unit/test_references.py", "unit/test_registry.py", "unit/test_package_source.py")),
    Bug("the sum of a file that git holds is compared with its etag", "registry/download.py",
        "declared_sum = part.sha256 if is_sum(etag) else None", "declared_sum = part.sha256",
        ("unit/test_download.py", "unit/test_references.py", "unit/test_registry.py", "unit/test_package_source.py")),
    Bug("a file from packages of any size is there", "registry/download.py",
        "if goal.is_file() and goal.stat().st_size == part.size_bytes and not force:", "if goal.is_file() and not force:",
        ("unit/test_download.py", "unit/test_references.py", "unit/test_registry.py", "unit/test_package_source.py")),
    Bug("a damaged package is kept for the next download", "registry/download.py",
        "stays = is_begun and not _is_damage(error)", "stays = is_begun",
        ("unit/test_download.py", "unit/test_references.py", "unit/test_registry.py", "unit/test_package_source.py")),
    Bug("a damaged mark deletes a model", "registry/download.py",
        "if wanted and found != wanted:  # what was kept", "if wanted and not found:  # what was kept",
        ("unit/test_download.py", "unit/test_references.py", "unit/test_registry.py", "unit/test_package_source.py")),
    Bug("a file of another time has the same key", "server/running.py",
        "status.st_size, status.st_mtime_ns, given", "status.st_size, given",
        ("server/test_load_key.py",)),
    Bug("names of models are compared with capitals", "registry/resolve.py",
        "found = known.get(model.lower()) or", "found = known.get(model) or",
        ("unit/test_download.py", "unit/test_references.py", "unit/test_registry.py", "unit/test_package_source.py")),
    Bug("a name of Ollama may leave its folder", "registry/resolve.py",
        "if not all(_NAME_PART.fullmatch(part) for part in parts):", "if not all(parts):",
        ("unit/test_download.py", "unit/test_references.py", "unit/test_registry.py", "unit/test_package_source.py")),
    Bug("the commit of a branch is not recorded", "registry/download.py",
        "    if commit != revision:  # record", "    if False:  # record",
        ("unit/test_download.py", "unit/test_references.py", "unit/test_registry.py", "unit/test_package_source.py")),
    Bug("a later part of a split model is a model", "registry/resolve.py",
        "    if file != names[0]:\n", "    if False:\n",
        ("unit/test_download.py", "unit/test_references.py", "unit/test_registry.py", "unit/test_package_source.py")),
    Bug("the folder of the hub is asked for any branch of a pinned model", "registry/download.py",
        "must_ask = force or not is_pinned", "must_ask = force",
        ("unit/test_download.py", "unit/test_references.py", "unit/test_registry.py", "unit/test_package_source.py")),
    Bug("the order of keys is only looked at where no key was added", "edit/structure.py",
        "if order[0] != order[1] and len(before) == len(old) and len(after) == len(new):", "if order[0] != order[1] and len(before) == len(after):",
        ("unit/test_edit_doubts.py",)),
    Bug("two items count as one by half of the new values, not of the old ones", "edit/structure.py",
        "    return 2 * same >= len(old)", "    return 2 * same >= len(new)",
        ("unit/test_edit_doubts.py",)),
    Bug("any fence ends a code block, also a shorter one or one of the other mark", "edit/structure.py",
        "fence = \"\" if fence and mark[1].startswith(fence) else fence or mark[1]", "fence = \"\" if fence else mark[1]",
        ("unit/test_edit_doubts.py",)),
    Bug("a name in a text outside of a named class is not asked about when its field is renamed", "edit/by_code.py",
        "is_local = bool(reading.scope) and not any(one.kind == \"class\" for one in reading.scope)", "is_local = bool(reading.scope)",
        ("unit/test_edit_renames.py",)),
    Bug("a method body sees the names of its class as if they were variables", "edit/by_code.py",
        "            is_seen = not scope.is_class or scope is first", "            is_seen = True",
        ("unit/test_edit_renames.py",)),
    Bug("a table and a column of one name are both renamed", "edit/by_code.py",
        "    if any(is_table) and not all(is_table):", "    if all(is_table) and not any(is_table):",
        ("unit/test_edit_renames.py",)),
    Bug("bodies that were received count as held for ever", "server/uploads.py",
        "self.n_held -= sum(map(len, parts))\n        if self._is_ending", "self.n_held -= len(parts)\n        if self._is_ending",
        ("server/test_limits.py",)),
    Bug("a path such as //page.css or /v1/ leads to the page", "server/app.py",
        "                if not label or (path != given and label in PATHS):", "                if not label:",
        ("server/test_edges.py",)),
    Bug("a choice that was cut at the time limit loses its text, or is an error", "server/jobs.py",
        "            if is_cut and not result.stats.n_generated:", "            if is_cut:",
        ("server/test_choices.py",)),
    Bug("a choice that begins after another one failed runs to its end", "server/jobs.py",
        "            if self.why or self.failed:\n                stream.cancel()", "            if self.why:\n                stream.cancel()",
        ("server/test_choices.py",)),
    Bug("attention stays off after a block without the own kernels", "llama/own_kernels.py",
        "gguf_spec_kernels_switch(3)", "gguf_spec_kernels_switch(1)",
        ("unit/test_own_kernels.py",)),
    Bug("flash attention is off where only the type of the cache needs it", "llama/own_kernels.py",
        "needed = options.needs_flash_attention or has_own_attention", "needed = has_own_attention",
        ("unit/test_own_kernels.py",)),
    Bug("a problem of kernels that nobody wants is kept", "llama/own_kernels.py",
        "keep=not quietly", "keep=True",
        ("unit/test_own_kernels.py",)),
    Bug("threads are not kept where the processor lacks the instructions", "llama/own_kernels.py",
        "return not problem or problem.startswith(_LACKS)", "return not problem",
        ("unit/test_own_kernels.py",)),
    Bug("the result of another library counts for this one", "llama/own_kernels.py",
        "\"kernels\", *identities([path_of_library()]), wanted)", "\"kernels\", wanted)",
        ("unit/test_own_kernels.py",)),
    Bug("the self-test leaves out tiles where there are some", "llama/selftest.py",
        "if own_kernels.tiles() != 1:", "if own_kernels.tiles() == 1:",
        ("unit/test_own_kernels.py",)),
    Bug("the self-test compares the first row of a wide pass", "llama/selftest.py",
        "if not np.array_equal(operation.rows(0, width, threads), alone[:width]):", "if not np.array_equal(operation.rows(0, width, threads)[:1], alone[:1]):",
        ("unit/test_own_kernels.py",)),
    Bug("attention that was not computed counts as taken", "llama/own_kernels.py",
        "n_computed(attentions=True) > n_before", "n_computed(attentions=True) >= n_before",
        ("unit/test_own_kernels.py",)),
    Bug("attention is on where the own kernel takes one of the layers", "llama/own_kernels.py",
        "not options.rpc and all(takes_attention", "not options.rpc and any(takes_attention",
        ("unit/test_own_kernels.py",)),
    Bug("an edit may write more than the server's limit", "server/edit.py",
        "max_tokens=min(sampling.max_tokens, most.max_tokens)", "max_tokens=max(sampling.max_tokens, most.max_tokens)",
        ("server/test_edit.py",)),
    Bug("the sentence of an error has the name that a field has in another API", "protocols/errors.py",
        "    if message.startswith(param):\n        message = here + message[len(param) :]\n", "",
        ("server/test_errors.py",)),
    Bug("a row that lacks the named value counts as one of those that have it", "edit/doubts.py",
        "holding == changed and shared(", "len(holding) >= len(changed) and shared(",
        ("unit/test_edit_selected.py",)),
    Bug("new lines may be anywhere", "edit/evidence.py",
        "        places.not_beside(hunks)\n        or places.far_away", "        places.far_away",
        ("unit/test_edit_selected.py",)),
    Bug("a parameter may go where nothing was to be removed", "edit/hunks.py",
        "if left is not None and len(left) < len(names):", "if left is not None and len(left) + 1 < len(names):",
        ("unit/test_edit_selected.py",)),
    Bug("the code of a program that a signal ended is negative", "cli/launch.py",
        "return 128 - code if code < 0 else code", "return code",
        ("cli/test_exit_codes.py",)),
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


def compile_kernels(folder: Path) -> None:
    """Compile the kernels of a copy, with less effort than usual: their bits do not depend on it."""
    sys.path.insert(0, str(ROOT / "scripts/build"))
    import build_kernels

    build_kernels.build(folder, "best", folder, ["-O1", "-w"])


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
            if job.file.startswith("kernels/"):
                compile_kernels(copy.folder / "gguf_spec/kernels")
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
