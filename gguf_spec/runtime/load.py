"""Loading: from names and paths of a model and its draft to an `LLM`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

from ..errors import InvalidOptionError, NoSpeculationError
from ..errors.texts import Option, Text, advice
from ..gguf.model_file import ModelFile
from ..gguf.validation import Header
from ..llama.attention import choose_attention
from ..llama.backend import check_room, parallel_in_room, start_backend
from ..llama.kernel_choice import repacking_pays
from ..llama.model import Model
from ..llama.options import AdapterFile, ContextOptions, adapters
from ..llama.rpc import check_workers, parse_workers
from ..llama.selftest import extra_bufts_work
from ..options import K_MAX, Sampling, Speculation
from ..registry.download import local
from ..registry.resolve import Entry, resolve
from ..results import OnProgress, Progress
from ..speculative.drafters import SuffixAutomaton, check_vocabulary
from ..speculative.pair import ModelPair
from ..speculative.profiler import profile_of
from .default_model import DefaultModel, chosen_model
from .draft_search import choose
from .llm import LLM


def load(
    model: str | Path | DefaultModel | None = None,
    draft: str | Path | None = "auto",
    *,
    speculation: Speculation | None = None,
    n_ctx: int | None = None,
    threads: int | None = None,
    flash_attention: str = "auto",
    kv_type: str = "f16",
    gpu_layers: int = -1,
    draft_flash_attention: str | None = None,
    draft_kv_type: str | None = None,
    draft_gpu_layers: int | None = None,
    lora: AdapterFile | Sequence[AdapterFile] = (),
    draft_lora: AdapterFile | Sequence[AdapterFile] = (),
    extra_bufts: bool | None = None,
    parallel: int | Literal["auto"] = 1,
    rpc: str | Sequence[str] = (),
    reference: str | Path | None = None,
    models_file: str | Path | None = None,
    progress: OnProgress | None = None,
    on_measure: Callable[[], object] | None = None,
    verbose: bool = False,
) -> LLM:
    """Load a model, and a draft with the same vocabulary.

    The pass costs are measured the first time that the models are loaded, in about a second, and
    saved in the user's cache.

    Args:
        model: A name in models.yaml, the path of a GGUF file, `OWNER/REPO[:QUANT]` or
            `hf:OWNER/REPO/FILE` of the hub, or the name under which Ollama, LM Studio or llama.cpp
            hold a model. None takes the model of `models.default_model`, and the result of that
            function is taken, too. Nothing is downloaded; use `gguf_spec.pull` for that.
        draft: A model as above. `ngram` drafts from earlier text only. None or `none` selects plain
            decoding. `auto` selects the draft that models.yaml names, otherwise the best draft on
            this disk.
        speculation: Draft options; None selects `Speculation()`, or plain decoding if `draft` is
            None or `none`.
        n_ctx: Number of tokens that the context holds; None selects the training context, at most
            4,096.
        threads: Number of threads; None selects the number of physical cores.
        flash_attention: `auto`, `on` or `off`.
        kv_type: Number type of the key-value cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0.
            The types after bf16 need flash attention.
        gpu_layers: Number of layers to offload; -1 offloads all if the build has a GPU backend.
        draft_flash_attention: The same for a draft model; None copies the target's value.
        draft_kv_type: The same for a draft model.
        draft_gpu_layers: The same for a draft model.
        lora: LoRA adapters of the target as GGUF files: one or several, each alone or in a pair
            with its scale.
        draft_lora: LoRA adapters of the draft model.
        extra_bufts: Let llama.cpp repack the weights for this CPU; None decides by a self-test,
            which runs once per machine, and by what `tune` measured for K-quants.
        parallel: Number of requests that can run at the same time and share passes. Each has a
            cache of `n_ctx` tokens of its own. With 1 requests wait for each other. `auto` takes
            4, or less where the caches would need more than a quarter of the free memory; 1 if the
            GPU may be used, or if `speculation` has `tree=True` or `strict=True`.
        rpc: Addresses of workers (`gguf-spec worker`), `HOST:PORT` each. The layers of the target
            are spread over them, and llama.cpp runs in a child process. The draft stays here.
        reference: A text file as an additional source of drafts, such as one that answers quote.
        models_file: A file in the format of models.yaml with additional names.
        progress: Called with the loaded bytes of the weights; returning False cancels.
        on_measure: Called before the pass costs of these models are measured, once per machine.
        verbose: Write llama.cpp's log to stderr.

    Raises:
        ModelError, StoreError: A file cannot be found or loaded. Nothing stays in memory then.
        VocabularyMismatchError: The draft has another vocabulary.
        NotEnoughMemoryError: The models do not fit; raised before anything is loaded.
        InvalidOptionError: An option has a value that is not allowed.
        WorkerError: A worker cannot be reached, or was lost; then every later call raises it, too.
        LoadCancelledError: `progress` returned False. Nothing stays in memory.
    """
    named = Path(models_file) if models_file is not None else None
    entry, why_model = _target_of(model, named)
    file = ModelFile(local(entry))
    plain = draft in (None, "none")
    text = None if reference is None else _read_reference(Path(reference))
    options = ContextOptions(
        n_ctx,
        threads,
        flash_attention,
        kv_type,
        gpu_layers,
        extra_bufts is not False,
        verbose,
        adapters(lora),
        rpc=parse_workers(rpc),
    )
    of_draft = options.for_draft(
        draft_flash_attention, draft_kv_type, draft_gpu_layers, adapters(draft_lora, "draft_lora")
    )
    header = file.header  # reads and checks the file, before the self-test and the search
    if extra_bufts is None and not extra_bufts_work():
        options, of_draft = (
            replace(options, extra_bufts=False),
            replace(of_draft, extra_bufts=False),
        )
    elif extra_bufts is None:
        options = replace(options, extra_bufts=repacking_pays(header, options))
    draft_file, notes = _draft_of(entry, file, draft, options, of_draft, named)
    notes = [*why_model, *notes]
    if of_draft.lora and not draft_file:
        raise NoSpeculationError(
            "draft_lora",
            str(of_draft.lora[0].path),
            f"no draft model is loaded for the adapter {of_draft.lora[0].path.name}.",
            advice(
                Text("set ", Option("draft"), " to a model"), Text("omit ", Option("draft_lora"))
            ),
        )
    models = [(header, options), *([(draft_file.header, of_draft)] if draft_file else [])]
    models = _in_parallel(models, parallel, speculation)
    options, of_draft = models[0][1], models[-1][1]
    check_room(models)
    check_workers(options.rpc)
    start_backend([one for one, _ in models])
    flash_attention, attention = choose_attention(header, options, must_be_exact=True)
    steps = _Steps(progress, [one.file_bytes for one, _ in models])
    target, drafter = Model(file, options, steps.next(), flash_attention), None
    try:
        if attention:
            target.exact_attention, target.depth_costs = (
                attention.exact,
                attention.depth_costs(header),
            )
        if not (target.can_roll_back or plain):
            notes = [
                f"{file.path.name} is recurrent or hybrid and cannot remove tokens from its "
                "cache, which speculation needs: plain decoding is used."
            ]
        elif draft_file:
            drafter, why_not = _load_draft(draft_file, target, of_draft, steps.next())
            notes += why_not
        draft_notes = tuple(notes)
        if target.n_ctx > target.n_ctx_train > 0:
            notes.append(
                f"{entry.name} was trained for {target.n_ctx_train:,} tokens: after these, the "
                f"text gets worse. The context holds {target.n_ctx:,}."
            )
        pair = ModelPair(
            target,
            drafter,
            partial(profile_of, on_measure=on_measure),
            None if text is None else _suffixes(target, text),
        )
        prompt = entry.prompt or ("chat" if target.chat_template else "text")
        speculation = speculation or Speculation(k=0 if plain else K_MAX)
        llm = LLM(
            entry.name,
            pair,
            prompt=prompt,
            speculation=speculation,
            sampling=Sampling(**entry.sampling),
            notes=notes,
            draft_notes=draft_notes,
        )
        # Now, so that the first answer is not delayed. Common passes must not be wider than exact.
        if llm.speculation.k or llm.parallel > 1:
            pair.measure()
        return llm
    except BaseException:
        target.close()
        if drafter:
            drafter.close()
        raise


def _in_parallel(
    models: Sequence[tuple[Header, ContextOptions]],
    parallel: int | Literal["auto"],
    speculation: Speculation | None,
) -> list[tuple[Header, ContextOptions]]:
    """Return the models with options for a number of requests at once."""
    # Trees and repeated decisions need passes without other requests.
    alone = speculation and (speculation.tree or speculation.strict)
    n = parallel if parallel != "auto" else 1 if alone else parallel_in_room(models)
    return [(header, replace(options, parallel=n)) for header, options in models]


def _target_of(
    model: str | Path | DefaultModel | None, models_file: Path | None
) -> tuple[Entry, list[str]]:
    """Return the entry of the target, and notes on the choice.

    Raises:
        NotDownloadedError: No model is named, and there is no chat model on this disk.
    """
    if model is not None and not isinstance(model, DefaultModel):
        return resolve(model, models_file), []
    chosen = chosen_model(models_file, model)
    return chosen.entry, [chosen.note] if chosen.note else []


def _draft_of(
    entry: Entry,
    file: ModelFile,
    draft: str | Path | None,
    options: ContextOptions,
    draft_options: ContextOptions,
    models_file: Path | None,
) -> tuple[ModelFile | None, list[str]]:
    """Return the file of the draft model, or None, and notes on the choice."""
    if draft in (None, "none", "ngram"):
        return None, []
    if draft != "auto":
        return ModelFile(local(resolve(draft, models_file))), []
    if entry.draft == "ngram":
        return None, []
    found, why = choose(entry, file, options, draft_options, models_file)
    return found.file if found else None, [why] if why else []


class _Steps:
    """Combines the loading progress of several models, weighted by size."""

    def __init__(self, progress: OnProgress | None, sizes: Sequence[int]) -> None:
        self._progress = progress
        self._starts, self._total = [sum(sizes[:i]) for i in range(len(sizes) + 1)], sum(sizes)

    def next(self) -> Callable[[float], object] | None:
        """Return the progress callback of the next model."""
        if self._progress is None:
            return None
        tell, start, end = self._progress, self._starts.pop(0), self._starts[0]
        return lambda share: tell(
            Progress("load", round(start + share * (end - start)), self._total, "bytes")
        )


def _read_reference(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        raise InvalidOptionError(
            "reference", str(path), f"a readable text file ({error})"
        ) from None


def _suffixes(target: Model, text: str) -> SuffixAutomaton:
    suffixes = SuffixAutomaton()
    suffixes.extend(target.tokenize(text, special=False, start=False))
    return suffixes


def _load_draft(
    file: ModelFile,
    target: Model,
    options: ContextOptions,
    progress: Callable[[float], object] | None,
) -> tuple[Model | None, list[str]]:
    """Load a draft with the target's vocabulary; return None and the reason without rollback.

    Raises:
        VocabularyMismatchError: The vocabularies differ.
    """
    flash_attention, attention = choose_attention(file.header, options, must_be_exact=False)
    draft = Model(file, replace(options, n_ctx=target.n_ctx), progress, flash_attention)
    try:
        draft.depth_costs = attention.depth_costs(file.header) if attention else {}
        check_vocabulary(target, draft)
    except BaseException:
        draft.close()
        raise
    if draft.can_roll_back:
        return draft, []
    draft.close()
    return None, [
        f"the draft {file.path.name} is recurrent or hybrid and cannot remove tokens from its "
        "cache, which drafting needs: drafts come from the text only."
    ]
