"""Plan of a load: files, drafts and slots.

It is made before anything is loaded, from headers and measurements.

V(N) is the time of a pass over one row of each of N sequences. N requests decode N / V(N) tokens
per second in all, and each of them 1 / V(N). If the user gives no number, N grows only while twice
as many requests give a quarter more tokens in all; beyond that each request becomes slower for
little. But a few run at once in any case, so that a short one need not wait until a long one ends.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..errors import NoSpeculationError, Option, Text
from ..gguf.heads import is_eagle, is_head_alone, n_heads, target_layers, why_misfit, why_no_head
from ..gguf.validation import ModelFile
from ..llama.head import why_head_fails
from ..llama.memory import (
    ctx_in_room,
    fit_layers,
    has_room,
    parallel_in_room,
    read_files,
    state_bytes,
    with_snapshots,
)
from ..llama.native_head import extensions, layer_functions
from ..llama.options import ContextOptions
from ..options import AUTO_PARALLEL_MAX, HEADS, K_MAX, Speculation
from ..registry.download import curable
from ..registry.download import path as local
from ..registry.resolve import resolve
from ..speculative.cost_model import BatchCosts, CostModel, Pace
from ..speculative.profile import Profile
from .draft_search import choose, head_candidate, trimmed_or_whole
from .load_options import NO_HEAD, NOT_WITH_PARALLEL, Files, HeadChoice, LoadOptions, Plan
from .profile_files import ModelKey, read_profile

# Requests at once where no costs are measured, and where they say that few gain nothing; and as
# many that a long context, or the snapshots of recurrent layers, become shorter for them.
_USUAL, _FEW = 4, 2
# Gain in tokens per second of all requests that twice as many must bring.
_LEAST_GAIN = 1.25
# Tokens; length of the texts for which the gain is compared.
_DEPTH = 512
_BY_MEMORY = "the caches of more would need over a quarter of the free memory"


def plan(load: LoadOptions) -> Plan:
    """Choose the files of a load; a model that only computes embeddings has no draft or slots.

    Raises:
        ModelError, StoreError: A file cannot be found or read.
        NoSpeculationError: Options of a draft model are given, and none is loaded; or a prediction
            head is asked for, and none can be used.
    """
    if load.file.embeds_only:
        return Plan(load, [(load.file, load.target)])
    head, draft, notes = _drafts(load)
    if load.of_draft.lora and not draft:
        raise NoSpeculationError(
            "draft_lora",
            str(load.of_draft.lora[0].path),
            f"no draft model is loaded for the adapter {load.of_draft.lora[0].path.name}.",
            Text("set {draft} to a model | omit {draft_lora}."),
        )
    files, reason = _files(load, head, draft)
    if head.kind and _is_free(load) and not _has_room(files):
        without, reason_without = _files(load, NO_HEAD, draft)
        if _has_room(without):
            head, files, reason = NO_HEAD, without, reason_without
            notes.append("the prediction head does not fit into memory: drafts come from the text.")
    fitted = read_files(fit_layers([(file.header, options) for file, options in files]))
    files = [(file, options) for (file, _), (_, options) in zip(files, fitted, strict=True)]
    return Plan(load, files, draft, head, (*load.notes, *notes), reason)


def _drafts(load: LoadOptions) -> tuple[HeadChoice, ModelFile | None, list[str]]:
    head, notes = NO_HEAD, list[str]()
    given: ModelFile | None = None
    if load.draft.word not in ("none", "ngram"):
        if load.draft.model:
            entry = resolve(load.draft.model, load.models_file)
            given = ModelFile(local(entry), as_draft=True)
            with curable(entry):
                _ = given.header
            if entry.path is None:  # a path means that file
                given = trimmed_or_whole(load, given)
        head = _head(load, given)
        notes += [f"{head.why_not}: drafts come from elsewhere."] if head.why_not else []
    draft = None if head.kind else given
    if head.kind and _is_free(load):
        # a draft model that was measured as faster than the head
        own = head_candidate(load)
        best, why = choose(load) if own and own.measured else (None, "")
        if own and best and best.measured and best.gain > own.gain:
            head, draft = NO_HEAD, best.file
            notes.append(why)
    elif load.draft.word == "auto" and not head.kind and load.entry.draft != "ngram":
        best, why = choose(load)
        draft = best.file if best else None
        notes += [why] if why else []
    if draft and is_head_alone(draft.header):  # it cannot be used, which a note explains
        draft = None
    return head, draft, notes


def _is_free(load: LoadOptions) -> bool:
    """Return whether the user leaves it open what drafts."""
    return load.draft.word == "auto" and not (
        load.speculation and load.speculation.drafter == "mtp"
    )


def _head(load: LoadOptions, given: ModelFile | None) -> HeadChoice:
    """Return the prediction head that drafts, or why one that was found is not used.

    Args:
        given: The file that is named as the draft; None for a head in the target's file.

    Raises:
        NoSpeculationError: A head is asked for, and none can be used.
    """
    n_slots, _ = choose_parallel(load, [(load.file, load.target)], least=1)
    options = replace(load.target, parallel=n_slots)
    asked = Option("draft", "mtp") if load.draft.word == "mtp" else None
    drafter = (load.speculation or Speculation()).drafter
    if (load.draft.word == "auto" and drafter == "mtp") or (given and drafter in HEADS):
        asked = Option("drafter", drafter)
    if load.draft.word == "auto" and load.entry.draft not in (None, "ngram") and not asked:
        return NO_HEAD
    is_there = is_head_alone(given.header) if given else asked or n_heads(load.file.header)
    if not is_there:
        return NO_HEAD
    why = _why_no_head(load, given, options)
    if why and asked:
        raise NoSpeculationError(
            asked.name,
            asked.value,
            f"{why}.",
            Text("set {draft='auto'} and {drafter='auto'}."),
        )
    return HeadChoice(why_not=why) if why else HeadChoice("file" if given else "own", given)


def _why_no_head(load: LoadOptions, given: ModelFile | None, options: ContextOptions) -> str:
    """Return why a head cannot be used, as a sentence; empty if it can."""
    target = load.file.header
    header = given.header if given else target
    if why := why_no_head(header) or (why_misfit(header, target) if given else ""):
        return why
    if extensions() is None or (is_eagle(header) and layer_functions() is None):
        return "this build of llama-cpp-python has no functions for prediction heads"
    if load.projector:
        return "prediction heads are not used with images"
    if options.parallel > 1:
        return NOT_WITH_PARALLEL
    if options.rpc:
        return "prediction heads are not used for a target on workers"
    return why_head_fails(load.file, given)


def _files(load: LoadOptions, head: HeadChoice, draft: ModelFile | None) -> tuple[Files, str]:
    """Return the files to load with their options, and why that many requests run at once."""
    layers = target_layers(head.file.header) if head.file else ()
    files: Files = [(load.file, replace(load.target, head=head.kind, head_layers=layers))]
    files += [(draft, load.of_draft)] if draft else []
    files += [(head.file, replace(load.of_draft, head="self"))] if head.file else []
    files, reason = _with_slots(load, files, 1 if head.kind else _USUAL)
    k = 0 if load.is_plain else (load.speculation or Speculation()).k
    (_, options), *_ = with_snapshots([(file.header, options) for file, options in files], k)
    return [(load.file, options), *files[1:]], reason


def _with_slots(load: LoadOptions, files: Files, least: int) -> tuple[Files, str]:
    """Return files with their number of slots and length of the context, and why so many slots.

    Args:
        least: Fewest slots, if the user gives no number and there is room.
    """
    header = load.file.header
    if state_bytes(header):  # without snapshots nothing is drafted beside other requests
        least = min(least, _FEW if header.facts.has_snapshots else 1)

    def tried(least: int) -> tuple[Files, str, int | None]:
        n, reason = choose_parallel(load, files, least)
        models = [(file.header, replace(options, parallel=n)) for file, options in files]
        n_ctx = ctx_in_room(models)
        found = [(file, replace(options, parallel=n, n_ctx=n_ctx)) for file, options in files]
        return found, reason, n_ctx

    best, reason, longest = tried(min(least, _FEW))
    if least > _FEW:
        more, why, n_ctx = tried(least)
        best, reason = (more, why) if n_ctx == longest else (best, reason)
    return best, reason


def _has_room(files: Files) -> bool:
    return has_room([(file.header, options) for file, options in files])


def choose_parallel(load: LoadOptions, files: Files, least: int = _USUAL) -> tuple[int, str]:
    """Return how many requests run at once, and why; the reason is empty if the user decided.

    Args:
        files: Files and options of the target, and of its draft if there is one.
        least: Fewest where there is room, whatever they gain.
    """
    if load.projector and load.parallel != 1:
        return 1, "prompts with images are read one by one"
    if load.parallel != "auto":
        return load.parallel, ""
    if load.speculation and load.speculation.strict:
        return 1, "strict needs passes without other requests"
    room = parallel_in_room([(file.header, options) for file, options in files], AUTO_PARALLEL_MAX)
    keys = [ModelKey(*one) for one in files]
    profile = read_profile(keys[0], keys[1] if len(keys) > 1 else None)
    return parallel_by(profile, room, least)


def parallel_by(profile: Profile | None, room: int | None, least: int) -> tuple[int, str]:
    """Return how many requests run at once, and why.

    Args:
        profile: The measured costs; None if there are none.
        room: How many have room; None if it is unknown.
        least: As for `choose_parallel`.
    """
    if room is None:
        return 1, "the free memory is unknown"
    is_known = profile and not {1, 2, 4}.intersection(profile.guessed)
    if profile and is_known and not profile.disturbed:
        return _by_costs(profile, room, min(least, room))
    why = "other programs disturbed the measurement" if is_known else "no costs were measured yet"
    return (room, _BY_MEMORY) if room < _USUAL else (_USUAL, f"the usual number: {why}")


def _by_costs(profile: Profile, room: int, least: int) -> tuple[int, str]:
    """Return how many requests of `least` to `room` run at once by the measured costs, and why."""
    costs = CostModel(profile.target, profile.target_depth, K_MAX + 1, Pace())
    batch_costs = BatchCosts(profile.widest(exact=True), AUTO_PARALLEL_MAX)

    def rate(n: int) -> float:
        """Return the tokens per second of `n` requests in all."""
        return n / batch_costs.seconds(costs, n, 1, _DEPTH)

    n, share = 1, math.log2(_LEAST_GAIN)
    for more in range(2, room + 1):
        if rate(more) >= rate(n) * (more / n) ** share:
            n = more
    if n == room < AUTO_PARALLEL_MAX:
        return n, _BY_MEMORY
    gain = f"{rate(n) / rate(1):.1f} times the tokens per second of one"
    if n == AUTO_PARALLEL_MAX:
        return n, f"as measured, they have {gain}"
    gained = max(0.0, rate(min(2 * n, room)) / rate(n) - 1)
    has = f"they have {gain}" if n > 1 else "one is nearly as fast as several"
    reason = f"as measured, {has}, and {min(2 * n, room)} only {gained:.0%} more"
    why_more = "; more, so that no request waits for another one to end" if n < least else ""
    return max(n, least), reason + why_more
