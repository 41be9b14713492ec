"""Loading: from names and paths of a model and its draft to an `LLM`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from ..errors import (
    GgufSpecError,
    InvalidOptionError,
    NoGenerationError,
    NotEnoughMemoryError,
    Option,
    OptionConflictError,
    Text,
)
from ..gguf.adapters import read_projector
from ..gguf.validation import Header, ModelFile, read_header
from ..llama import own_kernels
from ..llama.backend import start_backend, uses_gpu
from ..llama.context import Context
from ..llama.devices import check_placement
from ..llama.embedder import Embedder
from ..llama.head import open_head
from ..llama.memory import (
    check_room,
    check_room_to_embed,
    longest_ctx,
    prefix_memory_in_room,
)
from ..llama.options import ContextOptions, context_options
from ..llama.own_kernels import extra_bufts_work
from ..llama.sequence import CachedSequence
from ..options import (
    ARGUMENTS,
    K_MAX,
    LOADING,
    REQUESTS,
    Draft,
    Sampling,
    Speculation,
    check_types,
    checked,
    default_sampling,
    no_such_option,
    wrong_type,
)
from ..plugins import plugin
from ..registry.download import curable
from ..registry.download import path as local
from ..registry.resolve import Entry, resolve
from ..results import OnProgress, Progress
from ..speculative.drafters import SuffixAutomaton
from ..speculative.pair import ModelPair
from ..speculative.scheduler import MAX_GAP_S
from ..speculative.translation import Translation
from ..speculative.vocabularies import translation_of
from ..system.files import read_text
from ..system.machine import available_bytes, format_bytes, parse_bytes
from ..text.jinja_sandbox import template_fault
from . import draft_texts
from .default_model import DefaultModel, chosen_model
from .draft_texts import DraftTexts
from .kept_prompts import folder_of_option
from .llm import LLM
from .load_options import LoadOptions, Plan
from .plan import plan
from .profile_files import PairFiles, profile_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..arguments import AdapterFile, NoOptions

OnShare: TypeAlias = "Callable[[float], object] | None"
"""Called with the loaded share of a model, 0 to 1; returning False cancels."""


def load(
    model: str | Path | DefaultModel | None = None,
    draft: str | Path | None = "auto",
    *,
    speculation: Speculation | None = None,
    n_ctx: int | None = None,
    threads: int | None = None,
    flash_attention: str = "auto",
    kv_type: str = "f16",
    gpu_layers: int | Literal["auto"] = -1,
    draft_flash_attention: str | None = None,
    draft_kv_type: str | None = None,
    draft_gpu_layers: int | Literal["auto"] | None = None,
    draft_threads: int | None = None,
    device: str | Sequence[str] = (),
    draft_device: str | Sequence[str] = (),
    cpu_moe: bool = False,
    n_cpu_moe: int = 0,
    override_tensor: str | Sequence[str] = (),
    mmap: bool | None = None,
    mlock: bool = False,
    numa: Literal["distribute", "isolate", "numactl"] | None = None,
    kernels: str = "auto",
    mmproj: str | Path | None = None,
    lora: AdapterFile | Sequence[AdapterFile] = (),
    draft_lora: AdapterFile | Sequence[AdapterFile] = (),
    extra_bufts: bool | None = None,
    parallel: int | Literal["auto"] = 1,
    max_gap: float | None = None,
    prefix_memory: int | str = "auto",
    keep: int | str | Path | None = None,
    rpc: str | Sequence[str] = (),
    pooling: str | None = None,
    reference: str | Path | None = None,
    draft_texts: str | Path = "memory",
    sampling: Mapping[str, Any] | None = None,
    chat_template: str | None = None,
    models_file: str | Path | None = None,
    progress: OnProgress | None = None,
    on_measure: Callable[[], object] | None = None,
    verbose: bool = False,
    **others: Unpack[NoOptions],
) -> LLM:
    """Load a model, and a draft.

    The pass costs come from the passes of the first answers. Where the kernels do not promise which
    passes are exact, they are measured the first time that the models are loaded, in about a
    second. They are saved in the user's cache.

    Args:
        model: A name in models.yaml, the path of a GGUF file, `OWNER/REPO[:QUANT]` or
            `hf:OWNER/REPO/FILE` of the hub, or the name under which Ollama, LM Studio or llama.cpp
            hold a model. None takes the model of `models.default_model`, and the result of that
            function is taken, too. Nothing is downloaded; use `gguf_spec.pull` for that.
        draft: A model as above, or the file of a prediction head alone. `mtp` drafts with the
            prediction head in the target's file, `ngram` from earlier text only. None or `none`
            selects plain decoding. `auto` selects the draft model that models.yaml names, otherwise
            the target's prediction head, otherwise the best draft on this disk.
        speculation: Draft options; None selects `Speculation()`, or plain decoding if `draft` is
            None or `none`.
        n_ctx: Number of tokens that the context holds; None selects the training context, at most
            4,096, or 16,384 where its caches take at most a tenth of the free memory.
        threads: Number of threads; None selects the number of physical cores.
        flash_attention: `auto`, `on` or `off`.
        kv_type: Number type of the key-value cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0.
            The types after bf16 need flash attention.
        gpu_layers: Number of layers to offload; -1 offloads all if the build has a GPU backend.
            `auto` offloads as many as fit into the free memory of the devices; in a mixture of
            experts the experts of the first layers stay behind first.
        draft_flash_attention: The same for a draft model; None copies the target's value.
        draft_kv_type: The same for a draft model.
        draft_gpu_layers: The same for a draft model.
        draft_threads: Number of threads of a draft model; None copies the target's value.
        device: Names of the devices for the layers, as `doctor` lists them; `none` for the CPU
            alone. Empty takes all GPUs.
        draft_device: The same for a draft model; empty copies the target's value.
        cpu_moe: Keep the experts of all layers of the target in main memory.
        n_cpu_moe: Keep the experts of this number of first layers in main memory.
        override_tensor: `PATTERN=DEVICE` texts: tensors of the target whose names match the regular
            expression go to the device, or to `CPU`. The first match counts, before `cpu_moe`.
        mmap: Map the files into memory, or read them into it. None reads them where that makes
            passes faster and half of the free memory stays free, and else maps them.
        mlock: Lock the weights in main memory, so that they are never paged out.
        numa: Placement of llama.cpp's threads on NUMA nodes; one value per process.
        kernels: `stock` for the kernels of llama.cpp; `auto` for those of this package where they
            work, or what the environment variable `GGUF_SPEC_KERNELS` names. One value per process:
            the first model decides.
        mmproj: The projector file (mmproj) of a vision model, so that prompts may have images.
            Requests then run one at a time, whatever `parallel` is. It cannot be combined with
            `rpc`.
        lora: LoRA adapters of the target as GGUF files: one or several, each alone or in a pair
            with its scale.
        draft_lora: LoRA adapters of the draft model.
        extra_bufts: Let llama.cpp repack the weights for this CPU; None decides by a self-test,
            which runs once per machine.
        parallel: Number of requests that can run at the same time and share passes. Each has a
            cache of `n_ctx` tokens of its own. With 1 requests wait for each other. `auto` takes
            as many as raise the tokens per second of all by the measured costs, at most 16; but
            4, so that no request waits for another one to end, and 4 before the costs are measured.
            It takes fewer where the caches would need more than a quarter of the free memory, or
            would leave no room for a long context; 1 if the GPU may be used, or if `speculation`
            has `strict=True`. `LLM.parallel_reason` has the reason.
        max_gap: Seconds that a request which is being answered waits at most for the prompts of
            others: they are read in pieces. Longer pieces are read faster. None takes 0.4. It
            needs `parallel` above 1.
        prefix_memory: Memory for the caches of earlier texts, in bytes or as a size such as
            `500MB` or `2GiB`. A request that begins like one of them needs not read that part.
            `auto` takes an eighth of the memory that stays free, at most 8 GiB; 0 keeps nothing.
        keep: Keep prompts on disk, so that a later process need not read them again: a folder, the
            largest size of the usual one in bytes or as `20GB`, or both (`FOLDER:20GB`);
            `10GB` without a size. Text and log-probabilities are those that reading gives. Prompts
            are kept when an answer has ended, and when the LLM is closed. A file is used only if it
            is whole, and if this user wrote it for the same models, kernels and options; otherwise
            the prompt is read. None or 0 keeps nothing. It cannot be combined with `rpc`.
        rpc: Addresses of workers (`gguf-spec worker`), `HOST:PORT` each. The layers of the target
            are spread over them, and llama.cpp runs in a child process. The draft stays here.
        pooling: How `LLM.embed` makes one vector of a text: `mean`, `cls` (first token), `last`,
            `rank` (scores of a reranker), or `none` for one row a token. None takes what the file
            names, otherwise `mean`.
        reference: A text file as an additional source of drafts, such as one that answers quote.
        draft_texts: A store of earlier texts, and of what followed each few tokens in answers, from
            which drafts come too: `memory` for the requests of this LLM, `disk` for those of
            earlier processes as well (64 MiB at most, for each model, in the user's cache folder or
            beside the prompts of `keep`), the path of a folder or file whose texts are added, which
            implies `disk`, or `off`. The texts of answers stay the same. Who shares an LLM with
            others can find out by the time of an answer that another one got a text like it.
        sampling: Default sampling options by name, such as `{"temperature": 0.2}`. They count
            before those of models.yaml, and these before those of the file (`general.sampling`).
        chat_template: A Jinja template in place of that of the file.
        models_file: A file in the format of models.yaml with additional names.
        progress: Called with the loaded bytes of the weights; returning False cancels.
        on_measure: Called before the pass costs of these models are measured, where a load does so:
            once per machine, and again at the next load if other programs disturbed it.
        verbose: Write llama.cpp's log to stderr.
        others: None: an argument that does not exist is an `OptionTypeError` with the nearest name.

    A model that only computes embeddings has no draft and one slot, and generates nothing.

    Raises:
        ModelError, StoreError: A file cannot be found or loaded. Nothing stays in memory then.
        VocabularyMismatchError: The draft has another tokenizer, with too few common tokens.
        NotEnoughMemoryError: The models do not fit; raised before anything is loaded.
        InvalidOptionError: An option has a value that is not allowed.
        WorkerError: A worker cannot be reached, or was lost; then every later call raises it, too.
        NotInstalledError: `rpc` needs the package `gguf-spec-workers`, which is not installed.
        LoadCancelledError: `progress` returned False. Nothing stays in memory.
    """
    given = locals()
    rest: dict[str, Any] = given.pop("others")
    if "shared_drafts" in rest:  # as in 0.4
        given["draft_texts"] = "memory" if rest.pop("shared_drafts") else "off"
        text = "shared_drafts is draft_texts now: 'memory' or 'off'"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
    for name, value in rest.items():
        raise no_such_option(name, value, {*LOADING, *REQUESTS, *ARGUMENTS})
    return open_plan(plan(_read(given)))


def _read(given: dict[str, Any]) -> LoadOptions:
    """Return the target and its options from the arguments of `load`, which are checked."""
    model, draft, sampling = given["model"], given["draft"], given["sampling"]
    reference, chat_template = given["reference"], given["chat_template"]
    typed = {name: value for name, value in given.items() if name in ARGUMENTS}
    typed |= {"model": "", "sampling": None, "draft": None if isinstance(draft, Entry) else draft}
    check_types(**typed)
    if not (sampling is None or isinstance(sampling, Mapping)):
        raise wrong_type("sampling", sampling, "a mapping of option names to values, or None")
    named = Path(given["models_file"]) if given["models_file"] is not None else None
    notes = list[str]()
    if model is None or isinstance(model, DefaultModel):
        chosen = chosen_model(named, model)
        entry, notes = chosen.entry, [chosen.note] if chosen.note else []
    else:
        entry = resolve(model, named)
    if chat_template is not None and "{" not in chat_template:
        raise InvalidOptionError("chat_template", chat_template[:60], "a template in Jinja")
    file = ModelFile(local(entry), may_embed=True)
    with curable(entry):
        _ = file.header
    text = None if reference is None else read_reference(Path(reference))
    if (rpc := given["rpc"]) not in ((), []):
        plugin("workers").parse_workers(rpc)
    options, of_draft = context_options(**given)
    for adapter in (*options.lora, *of_draft.lora):
        read_header(adapter.path)
    options, of_draft = _on_this_machine(file.header, options, of_draft, given["extra_bufts"])
    if checked("max_gap", given["max_gap"]) is not None and given["parallel"] == 1:
        fact = "with 1 request at a time none waits for another one's prompt"
        raise InvalidOptionError("max_gap", given["max_gap"], f"None: {fact}")
    same = {one.name: given[one.name] for one in fields(LoadOptions) if one.name in given}
    read = {
        "entry": entry,
        "file": file,
        "target": options,
        "of_draft": of_draft,
        "projector": choose_projector(given["mmproj"], file, options),
        "text": text,
        "notes": notes,
        "models_file": named,
        "draft": Draft.of(draft),
        "sampling": {name: checked(name, value) for name, value in (sampling or {}).items()},
    }
    return LoadOptions(**same | read)


def _on_this_machine(
    header: Header, options: ContextOptions, of_draft: ContextOptions, extra_bufts: bool | None
) -> tuple[ContextOptions, ContextOptions]:
    """Check devices and patterns, start the kernels, and return the options that work here."""
    check_placement(options.placement)
    check_placement(of_draft.placement, "draft_device")
    options.placement.check_header(header)
    own_kernels.start(options.placement.kernels)
    if extra_bufts is not None or extra_bufts_work():
        return options, of_draft
    return replace(options, extra_bufts=False), replace(of_draft, extra_bufts=False)


def choose_projector(
    mmproj: str | Path | None,
    file: ModelFile,
    options: ContextOptions,
) -> Header | None:
    """Return the header of the projector, after all tests of it; None without one.

    Raises:
        ModelError: The file is missing or damaged, or does not fit the model.
        InvalidOptionError: Other options exclude a projector, or this build has no libmtmd.
        NotEnoughMemoryError: It does not fit into memory.
    """
    if mmproj is None:
        return None
    from ..llama.vision import check_projector

    if file.embeds_only:
        raise NoGenerationError(file.path, file.header.architecture)
    if options.rpc:
        raise OptionConflictError(Option("mmproj"), Option("rpc"))
    header = read_projector(Path(mmproj))
    free = available_bytes()
    if free is not None and header.file_bytes > free:
        raise NotEnoughMemoryError(
            f"the projector {header.path.name} needs {format_bytes(header.file_bytes)} of memory; "
            f"{format_bytes(free)} are free.",
            header.file_bytes,
            free,
        )
    check_projector(header.path, file.path)
    return header


def open_plan(plan: Plan) -> LLM:
    """Load the models of a plan, and measure their costs if that was not done before."""
    given = plan.load
    if given.file.embeds_only:
        return _open_embedder(given)
    check_room(plan.headers)
    n_kept_bytes = _prefix_memory(given.prefix_memory, plan.headers)
    keep = folder_of_option(given.keep)
    draft_texts.folder_of_option(given.draft_texts)
    if keep and given.target.rpc:
        raise OptionConflictError(Option("keep"), Option("rpc"))
    n_ctx_max = longest_ctx(plan.headers)
    start_backend()
    shares = _shares(given.progress, [file.header.file_bytes for file, _ in plan.files])
    with ExitStack() as opened:
        target = _load_model(given.file, plan.target, next(shares), given.projector)
        opened.callback(target.close)
        if given.chat_template:
            target.weights.chat_template = given.chat_template
        drafter: CachedSequence | None = None
        translation: Translation | None = None
        if target.why_plain and not given.is_plain:
            notes, draft_notes = [_plainly(target)], list[str]()
        else:
            drafter, translation, about = _load_drafter(plan, target, shares)
            if drafter:
                opened.callback(drafter.close)
            notes = [*plan.notes, *about]
            draft_notes = plan.draft_notes(notes)
        if fault := template_fault(target.weights.chat_template or ""):
            fact = "the chat template of {} is wrong ({}): chats may fail[; {chat_template} gives "
            notes.append(Text(fact + "another one].", given.entry.name, fault.text))
        n_trained = target.weights.n_ctx_train
        if target.n_ctx > n_trained > 0:
            notes.append(
                f"{given.entry.name} was trained for {n_trained:,} tokens: after these, "
                f"the text gets worse. The context holds {target.n_ctx:,}."
            )
        texts = None
        if given.draft_texts != "off" and not given.is_plain:
            texts = DraftTexts(given.draft_texts, keep, target)
        pair = ModelPair(
            target,
            drafter,
            lambda _, draft: profile_of(
                target, drafter if draft else None, given.on_measure, translation
            ),
            None if given.text is None else _suffixes(target, given.text),
            texts.store if texts else None,
            translation,
            PairFiles(target, drafter, translation),
            MAX_GAP_S if given.max_gap is None else given.max_gap,
        )
        on_gpu = any(uses_gpu(options) for _, options in plan.headers)
        # `longest_ctx` knows no memory of a GPU
        target.weights.n_ctx_limit = (target.weights.n_ctx_train or None) if on_gpu else n_ctx_max
        speculation = given.speculation or Speculation(k=0 if given.is_plain else K_MAX)
        if speculation.k or pair.shares_passes:
            notes = [*notes, *_measure(pair)]
        llm = LLM(
            given.entry.name,
            pair,
            prompt=given.entry.prompt or ("chat" if target.weights.chat_template else "text"),
            speculation=speculation,
            **_sampling(given),
            notes=notes,
            draft_notes=draft_notes,
            prefix_memory=n_kept_bytes,
            parallel_reason=plan.parallel_reason,
            n_ctx_max=n_ctx_max,
            keep=keep,
            texts=texts,
        )
        opened.pop_all()
        return llm


def _sampling(given: LoadOptions) -> dict[str, Any]:
    """Return the default sampling options, and where they come from."""
    metadata, of_entry = given.file.header.metadata, given.entry.sampling
    values, sources = default_sampling(metadata, of_entry, given.sampling)
    return {"sampling": Sampling(**values), "sampling_sources": sources}


def _measure(pair: ModelPair[CachedSequence]) -> list[str]:
    """Measure a pair that drafts or has common passes, which must not be wider than exact.

    It is done now, so that the first answer is not delayed. A note says where it does not draft.
    """
    before = pair.target.why_plain
    pair.measure()
    return [_plainly(pair.target)] if pair.target.why_plain != before else []


def _open_embedder(given: LoadOptions) -> LLM:
    """Load a model that only computes embeddings; options of drafts and slots have no effect."""
    file, options = given.file, given.target
    if not options.rpc:  # the memory of workers is not known
        check_room_to_embed(file.header, options)
    context = Context(file, options, next(_shares(given.progress, [file.header.file_bytes])))
    target = context.sequences[0]
    with ExitStack() as opened:
        opened.callback(target.close)
        Embedder(target)  # checks the pooling
        notes = []
        if options.n_ctx and target.n_ctx < options.n_ctx:
            notes.append(f"{given.entry.name} reads at most {target.n_ctx:,} tokens of a text.")
        llm = LLM(
            given.entry.name,
            ModelPair(target, None),
            prompt="text",
            speculation=Speculation(k=0),
            **_sampling(given),
            notes=notes,
        )
        opened.pop_all()
        return llm


def _load_model(
    file: ModelFile,
    options: ContextOptions,
    progress: OnShare,
    projector: Header | None = None,
    target: CachedSequence | None = None,
) -> CachedSequence:
    """Load a model; with a projector, or a target that sees, it takes ids of images."""
    context = Context(file, options, progress)
    if not (projector or getattr(target, "sees", False)):
        return context.sequences[0]
    from ..llama.vision import VisionSequence

    return VisionSequence(context, projector or cast(VisionSequence, target).image_tokens)


def _load_drafter(
    plan: Plan, target: CachedSequence, shares: Iterator[OnShare]
) -> tuple[CachedSequence | None, Translation | None, list[str]]:
    """Load what drafts; return it with its translation, and notes on it.

    Raises:
        VocabularyMismatchError: The vocabularies have too few common tokens.
    """
    if plan.head.kind:
        try:
            options = replace(plan.load.of_draft, n_ctx=target.n_ctx, head="self")
            return open_head(target, options, plan.head.file), None, []
        except GgufSpecError as error:
            target.context.without_head()
            why = str(error).rstrip(".")
            return (
                None,
                None,
                [f"the prediction head is not used ({why}): drafts come from the text."],
            )
    if not plan.draft:
        return None, None, []
    (_, (file, options)) = plan.files
    options = replace(options, n_ctx=target.n_ctx)
    draft = _load_model(file, options, next(shares), target=target)
    with ExitStack() as opened:
        opened.callback(draft.close)
        headers = (one.file.header for one in (target, draft))
        translation = translation_of(target.weights, draft.weights, *headers)
        if not (draft.why_plain or (translation and not draft.can_roll_back)):
            opened.pop_all()
            if translation:
                return draft, translation, [f"{translation.note}."]
            return draft, None, _about_named(plan.load, draft)
        why = draft.why_plain or (
            f"{draft.path.name} is recurrent or hybrid, and has other token ids than the target"
        )
        return None, None, [f"the draft {why}: drafts come from the text only."]


def _about_named(load: LoadOptions, draft: CachedSequence) -> list[str]:
    """Return a note on a trimmed draft that the user named."""
    kept = draft.weights.kept
    if kept is None or not load.draft.model:
        return []
    known = f"knows {len(kept):,} of the {draft.n_vocab:,} tokens"
    return [f"the draft {draft.path.name} {known}."]


def _plainly(target: CachedSequence) -> str:
    note, options = f"{target.why_plain}: plain decoding is used.", target.options
    if options.parallel == 1 or options.rpc or target.can_roll_back:
        return note
    return Text("{}[ To use drafts, set {parallel=1}.]", note)


def _prefix_memory(given: int | str, models: Sequence[tuple[Header, ContextOptions]]) -> int:
    """Return the memory for kept prefixes, in bytes."""
    if given == "auto":
        return prefix_memory_in_room(models)
    try:
        n_bytes = parse_bytes(given) if isinstance(given, str) else given
    except ValueError:
        n_bytes = -1
    if isinstance(n_bytes, bool) or not isinstance(n_bytes, int) or n_bytes < 0:
        raise InvalidOptionError(
            "prefix_memory", given, "a size such as 500MB or 2GiB, 0 for none, or auto"
        )
    return n_bytes


def _shares(progress: OnProgress | None, sizes: Sequence[int]) -> Iterator[OnShare]:
    """Yield the progress callbacks of several models, whose shares are weighted by size."""
    total, start = sum(sizes), 0
    for size in sizes:

        def tell(share: float, start: int = start, size: int = size) -> object:
            assert progress
            return progress(Progress("load", round(start + share * size), total, "bytes"))

        yield tell if progress else None
        start += size


def _suffixes(target: CachedSequence, text: str) -> SuffixAutomaton:
    suffixes = SuffixAutomaton()
    suffixes.extend(target.weights.tokenize(text, special=False, start=False))
    return suffixes


def read_reference(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise InvalidOptionError(
            "reference", str(path), f"a readable text file ({error})"
        ) from None
