#!/usr/bin/env python3
"""Plant realistic mistakes in a copy of the package, one at a time, and report whether the tests and `gguf-spec verify` notice them.

    .venv/bin/python scripts/checks/plant_bugs.py --control        # the tests on a copy without any: all must pass
    .venv/bin/python scripts/checks/plant_bugs.py                  # all of them, with the tests
    .venv/bin/python scripts/checks/plant_bugs.py --verify         # with `gguf-spec verify` on the bundled pair
    .venv/bin/python scripts/checks/plant_bugs.py --only noise     # those whose name holds a word

Ends with 1 where the tests miss one, and with an error where a line that a mistake replaces is no longer in the source exactly once.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from _planted import ROOT, Copy, preload


class Bug(NamedTuple):
    """A mistake: what is in the source, what stands there instead, and the tests that should notice, the quick ones first."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


BUGS = (
    # engine
    Bug("a log-probability comes from the row before", "speculative/engine.py",
        "rows.logprob(i, token) for i", "rows.logprob(max(i - 1, 0), token) for i",
        ("unit/test_llm.py", "properties/test_engine.py")),
    Bug("a cut round counts accepted tokens that were never said", "speculative/engine.py",
        "n_accepted=min(self.n_accepted, n)", "n_accepted=self.n_accepted",
        ("unit/test_engine.py", "unit/test_llm.py", "properties/test_engine.py")),
    Bug("strict goes on behind the last near tie, not the first", "speculative/engine.py",
        "del new[near_ties[0] :], logprobs[near_ties[0] :]", "del new[near_ties[-1] :], logprobs[near_ties[-1] :]",
        ("unit/test_engine.py", "properties/test_near_ties.py")),
    Bug("the residual is not clipped at 0", "speculative/acceptance.py",
        "return np.maximum(weight * p.probs - q_of_p, 0.0)", "return weight * p.probs - q_of_p",
        ("unit/test_accept.py",)),
    Bug("block verification forgets the weight so far", "speculative/acceptance.py",
        "weight.append(min(1.0, weight[i] * laws[i].prob(token)", "weight.append(min(1.0, laws[i].prob(token)",
        ("unit/test_accept.py", "exactness/test_enumeration.py")),
    Bug("a full context keeps the beginning of the answer, not its end", "runtime/generation.py",
        "self.tokens[-self._n_kept :]", "self.tokens[: self._n_kept]",
        ("unit/test_llm.py", "unit/test_progress.py", "exactness/test_shift.py")),
    Bug("a stop string is cut one character late", "text/detokenizer.py",
        "self._held[:at], \"\"", "self._held[: at + 1], \"\"",
        ("unit/test_text.py",)),
    # caches
    Bug("a rollback leaves one token in llama.cpp's cache", "llama/cache.py",
        "llama_memory_seq_rm, 0, at, -1)", "llama_memory_seq_rm, 0, at + 1, -1)",
        ("gguf/test_model.py",)),
    Bug("a snapshot of an older pass is taken for one of the last", "llama/recurrent_state.py",
        "max(before + 1, self._n - self.n_snapshots)", "max(before, self._n - self.n_snapshots)",
        ("gguf/test_rollback.py",)),
    Bug("a checkpoint of a text that is gone is kept", "llama/recurrent_state.py",
        "one if one and one.n <= self._n else None", "one",
        ("gguf/test_rollback.py",)),
    Bug("decoding tokens again costs nothing", "speculative/controller.py",
        "if free >= k:", "if True:",
        ("unit/test_replay.py",)),
    Bug("a branch sees the token that it replaces", "llama/native.py",
        "enumerate(branches, 1) if i < at]", "enumerate(branches, 1) if i <= at]",
        ("exactness/test_tree.py",)),
    Bug("an accepted branch counts as cached", "speculative/tree.py",
        "if a != b), len(new) - 1)", "if a != b and i < 0), len(new) - 1)",
        ("unit/test_engine.py", "exactness/test_tree.py")),
    Bug("a right branch costs nothing in the next round", "speculative/tree.py",
        "again = max(0.0, prices.extra(n + m, n)) / max(1, m)", "again = 0.0",
        ("unit/test_tree.py",)),
    Bug("a rollback forgets how much was read as a prompt", "llama/cache.py",
        "self.n_read = min(self.n_read, n)", "self.n_read = self.n_read",
        ("gguf/test_model.py", "unit/test_measured_profiles.py")),
    Bug("a profile is kept whatever the type of the cache", "speculative/profile.py",
        "o.kv_type", '"any"',
        ("unit/test_kept_under.py", "gguf/test_profile.py")),
    # prediction heads
    Bug("a row of a rejected draft stays", "llama/cache.py",
        "self.hidden.cut(to)", "self.hidden.cut(to + 1)",
        ("gguf/test_heads.py",)),
    Bug("a head keeps what it decoded with its own rows", "llama/head.py",
        "n = min(to, self._n_true)", "n = to",
        ("gguf/test_heads.py",)),
    Bug("a head takes the row of the token itself", "llama/head.py",
        "return self.n_past + self.skipped", "return 1 + self.n_past + self.skipped",
        ("gguf/test_heads.py",)),
    Bug("a head judged on later text takes the rows of earlier text", "speculative/drafters/head.py",
        "self._head.skipped = max(", "self._head.skipped = 0 * max(",
        ("gguf/test_heads.py",)),
    Bug("a draft is longer than a chain of heads", "speculative/drafters/head.py",
        "<= len(self._history) - self._n_known:", "< len(self._history) - self._n_known:",
        ("exactness/test_heads.py",)),
    Bug("rows of hidden states are stored one place late", "llama/hidden_rows.py",
        "self._rows[at : self.end] = rows", "self._rows[at + 1 : self.end + 1] = rows[: len(self._rows) - at - 1]",
        ("gguf/test_heads.py",)),
    Bug("the cells of dropped tokens stay in the cache of a head", "llama/head.py",
        "if first < len(cached):", "if False:",
        ("exactness/test_heads.py", "gguf/test_heads.py")),
    Bug("all tokens of a draft follow the row of its first one", "llama/head.py",
        "self._own = native.last_row()", "self._own = native.last_row() if self._own is None else self._own",
        ("exactness/test_heads.py",)),
    Bug("the cache of a head is never cut", "llama/head.py",
        "        super().rollback(n)\n\n    def _start_over", "\n    def _start_over",
        ("gguf/test_heads.py",)),
    Bug("a head without a cache of its own decodes over the last token of its target", "llama/shared_head.py",
        "self._pass(end, [token], rows, 1, 0)", "self._pass(end - 1, [token], rows, 1, 0)",
        ("gguf/test_heads.py", "exactness/test_heads.py")),
    Bug("a draft of a head is accepted whatever the target says", "speculative/acceptance.py",
        "        if new[i] != drafted:\n            return new\n", "        new[i] = drafted\n",
        ("exactness/test_eagle.py", "exactness/test_heads.py")),
    Bug("the table of an EAGLE-3 head may name tokens that are not in its vocabulary", "gguf/heads.py",
        "or ids.min() < 0 or ids.max() >= n_tokens:", "or ids.min() < 0:",
        ("gguf/test_eagle.py",)),
    Bug("an EAGLE-3 head reads layers in another order", "llama/target_rows.py",
        "for layer in self._layers], axis=1)", "for layer in self._layers[::-1]], axis=1)",
        ("gguf/test_eagle.py", "exactness/test_eagle.py")),
    Bug("an EAGLE-3 head sees the first token, before which there is no row", "llama/eagle_head.py",
        "cast(\"NativeHead\", self.native).cache(C.llama_memory_seq_rm, 0, 0, 1)", "pass",
        ("gguf/test_eagle.py",)),
    Bug("an EAGLE-3 head returns the first logits of a pass for the last ones", "llama/eagle_head.py",
        "return results[n - n_rows :] if", "return results[:n_rows] if",
        ("gguf/test_eagle.py", "exactness/test_eagle.py")),
    Bug("an EAGLE-3 head projects the first rows of a long text again", "llama/eagle_head.py",
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
    Bug("a session is taken back whatever the type of the cache", "runtime/session_file.py",
        "[model.flash_attention, o.kv_type, o.gpu_layers", "[model.flash_attention, o.gpu_layers",
        ("unit/test_kept_under.py", "gguf/test_chat.py")),
    Bug("a session is taken back whatever the scale of an adapter", "runtime/session_file.py",
        "(content_id(adapter.path), adapter.scale)", "content_id(adapter.path)",
        ("unit/test_kept_under.py", "gguf/test_lora.py", "gguf/test_chat.py")),
    Bug("a restored cache counts decoded tokens as read", "llama/cache.py",
        "[*cached], n_read, least_cut", "[*cached], len(cached), least_cut",
        ("gguf/test_model.py", "gguf/test_chat.py")),
    # server
    Bug("the queue does not count the requests that run", "server/worker.py",
        "- self._n_threads)", ")",
        ("server/test_load.py",)),
    Bug("log-probabilities without top_logprobs are left out", "server/requests.py",
        "top if wants else None", "(top or None) if wants else None",
        ("server/test_api.py",)),
    Bug("a key is compared as far as it is given", "server/access.py",
        "one.encode())", "one.encode()[: len(given)])",
        ("server/test_limits.py",)),
    Bug("the offset of a token in the text is that of the next one", "server/responses.py",
        "        return before\n", "        return self._n\n",
        ("server/test_api.py",)),
    Bug("all choices have one seed", "server/requests.py",
        "return (seed + i) % SEEDS", "return seed % SEEDS",
        ("server/test_choices.py",)),
    Bug("a field that changes the text is accepted with any value", "server/fields.py",
        "return any(same(value, one) for one in self.accepted)", "return bool(self.accepted)",
        ("server/test_fields.py",)),
    Bug("a strict tool is free in the text after a wrong start of a tag", "tools/notations.py",
        "parts.append(f\"{quoted(letter)} {rules[after]}\")", "parts.append(f\"{quoted(letter)} {again}\")",
        ("tools/test_families.py",)),
    Bug("a call in a special token is not seen", "runtime/request.py",
        "call_tokens(target) if options.tools else {},", "{},",
        ("server/test_tool_families.py",)),
    Bug("a text of an argument is sent only at its end", "tools/notations.py",
        "            source.emit(json.dumps(piece, ensure_ascii=False)[1:-1])\n            if at >= 0:", "            if at >= 0:\n                source.emit(json.dumps(piece, ensure_ascii=False)[1:-1])",
        ("tools/test_families.py",)),
    Bug("a broken call is lost", "tools/source.py",
        "self.events.append(CallBroken(source, rest))", "self.events.append(CallBroken(rest, rest))",
        ("tools/test_families.py",)),
    Bug("ids of calls keep the length that a template rejects", "text/tool_history.py",
        "if family.id_length:", "if False:",
        ("tools/test_history.py",)),
    Bug("the model used last is unloaded first", "server/model_pool.py",
        "self._unload(min(idle)[1])", "self._unload(max(idle)[1])",
        ("server/test_model_pool.py",)),
    Bug("the time of a model in use runs out", "server/model_pool.py",
        "if one and not (one.keeps or one.is_busy)", "if one and not one.keeps",
        ("server/test_model_pool.py",)),
    Bug("the token of ps opens all routes", "server/access.py",
        "if path == STATUS else [key]", "if True else [key]",
        ("server/test_model_pool.py",)),
    Bug("only errors of the exact path have the format of their API", "server/error_formats.py",
        "path == start or path.startswith(f\"{start}/\")", "path == start",
        ("server/test_faces.py",)),
    Bug("the response that was stored first is removed, used or not", "server/responses_api/store.py",
        "        self._stored.move_to_end(id_)\n", "",
        ("server/test_responses_api.py",)),
    Bug("the instructions of a response stay in the conversation", "server/responses_api/request.py",
        "messages = messages_of(instructions, items)", "messages = messages_of(instructions or (before and store.get(previous, '').response['instructions']) or None, items)",
        ("server/test_responses_api.py",)),
    Bug("tools that are not allowed are in the prompt", "server/responses_api/request.py",
        "(tools if only else kept)", "tools",
        ("server/test_responses_api.py",)),
    Bug("a conversation is cut without room for the answer", "server/truncation.py",
        "room = llm.n_ctx - min(", "room = llm.n_ctx - 0 * min(",
        ("server/test_responses_api.py",)),
    Bug("a stop sequence counts as the end of a turn", "server/messages_api/output.py",
        "elif result.stop_string is not None:", "elif result.stop_string is None:",
        ("server/test_messages_api.py",)),
    Bug("the result of a failed tool is that of one that worked", "server/messages_api/content.py",
        "f\"Error: {text}\" if is_error else text", "text",
        ("server/test_messages_api.py",)),
    # images
    Bug("images of one size are one image", "llama/image_file.py",
        "hashlib.sha256(data).digest()", "hashlib.sha256(b'%d %d' % size).digest()",
        ("gguf/test_vision.py",)),
    Bug("a rollback into an image leaves a part of it", "llama/vision.py",
        "super().rollback(min([to, *inside]))", "super().rollback(to)",
        ("gguf/test_vision.py",)),
    Bug("a text after an image begins at the number of its tokens", "llama/vision.py",
        "return n - sum(one.span.n_tokens - one.n_positions for one in before)", "return n",
        ("gguf/test_vision.py",)),
    Bug("the text behind an image is read off the grid", "llama/vision.py",
        "head = -self.n_past % self.grid if self.grid and self._images() else 0", "head = 0",
        ("gguf/test_vision.py",)),
    Bug("an image of another size than that of its header is read", "llama/projector.py",
        "if size != (image.width, image.height):", "if False:",
        ("gguf/test_vision.py",)),
    Bug("an image is a draft", "speculative/drafters/ngram.py",
        "if followed and followed[0] < IMAGE_IDS:", "if followed:",
        ("gguf/test_vision.py",)),
    Bug("a session has ids of images", "runtime/session_file.py",
        "_cut_before_images(model)\n    about", "pass\n    about",
        ("gguf/test_vision.py",)),
    Bug("every turn encodes its images again", "llama/projector.py",
        "if chunk.values is None:", "if True:",
        ("gguf/test_vision.py",)),
    # costs
    Bug("a pass updates the cost of one token less", "speculative/controller.py",
        "self.known.target.learn(one.n_rows, one.n_past, passed_s)", "self.known.target.learn(one.n_rows - 1, one.n_past, passed_s)",
        ("unit/test_controller.py",)),
    Bug("cached tokens count once for each row, twice over", "speculative/cost_model.py",
        "self._caps[n]) + self.depth[n] * n_past)", "self._caps[n]) + n * self.depth[n] * n_past)",
        ("unit/test_costs.py",)),
    Bug("the last pass over a prompt is free", "speculative/cost_model.py",
        "if rest else 0.0)", "if not rest else 0.0)",
        ("unit/test_costs.py",)),
)  # fmt: skip


def planted_text(bug: Bug) -> str:
    """Return the source with the mistake in it."""
    text = (ROOT / "gguf_spec" / bug.file).read_text(encoding="utf-8")
    if text.count(bug.old) != 1:
        raise SystemExit(
            f"{bug.name}: gguf_spec/{bug.file} holds {bug.old!r} {text.count(bug.old)} times, not once. Change scripts/checks/plant_bugs.py."
        )
    return text.replace(bug.old, bug.new)


def ask(bug: Bug, how: str, limit_s: float) -> tuple[str, float]:
    """Return what noticed the mistake, nothing where nothing did, and the seconds that took; `how` is `tests`, `verify` or `control`."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        started = time.monotonic()
        with (
            copy.planted(f"gguf_spec/{bug.file}", planted_text(bug))
            if how != "control"
            else contextlib.nullcontext()
        ):
            caught = (
                copy.verify(limit_s)
                if how == "verify"
                else copy.test([f"tests/{test}" for test in bug.tests], limit_s)
            )
        return caught, time.monotonic() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a word in the names of those that are wanted")
    parser.add_argument(
        "--verify",
        action="store_const",
        dest="how",
        const="verify",
        default="tests",
        help="ask `gguf-spec verify`, not the tests",
    )
    parser.add_argument(
        "--control",
        action="store_const",
        dest="how",
        const="control",
        help="plant nothing: all tests must pass",
    )
    parser.add_argument("--limit", type=float, default=120, help="seconds for each")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--from", dest="first", type=int, default=0, help="leave out so many")
    parser.add_argument("--most", type=int, help="and take so many")
    args = parser.parse_args()
    for bug in BUGS:
        planted_text(bug)
    bugs = [bug for bug in BUGS if args.only in bug.name][args.first :][: args.most]
    preload()
    n_caught = 0
    with ProcessPoolExecutor(args.workers, mp_context=get_context("fork")) as pool:
        for bug, (caught, seconds) in zip(
            bugs, pool.map(ask, bugs, repeat(args.how), repeat(args.limit)), strict=True
        ):
            n_caught += bool(caught)
            print(
                f"{bug.file:<20} {bug.name}\n    {caught or 'NOT CAUGHT'} ({seconds:.1f} s)",
                flush=True,
            )
    print(f"{n_caught} of {len(bugs)} caught by {args.how}")
    wanted = {"tests": len(bugs), "verify": n_caught, "control": 0}[args.how]
    return int(n_caught != wanted)


if __name__ == "__main__":
    sys.exit(main())
