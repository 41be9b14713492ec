"""The public face: a target, perhaps a draft, and one request at a time."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from ._context import ContextOptions
from ._drafters import Suffixes, check_vocabulary
from ._model import Model
from ._pair import Pair
from ._probe import extra_bufts_work
from ._profile import Profile, profile_of
from ._registry import resolve
from ._stream import Request, Stream, check_request
from ._template import Message, encode_chat
from ._types import K_MAX, Completion, Sampling, Speculation
from .errors import BusyError, ClosedError, InvalidOptionError

Prompt = str | Sequence[Message]


class LLM:
    """A loaded model. It serves one request at a time and may be called from any thread; others wait.

    Attributes:
        name: The target's name or file name.
        draft_name: The draft's file name, or None.
        prompt: `text` or `chat`: what the registry says of a bare prompt, else whether the file has a chat template.
        speculation: How many tokens are drafted, unless a call says otherwise.
        notes: Why things are not as one would expect, such as a draft that is not used. One sentence each.
    """

    def __init__(self, name: str, pair: Pair, *, prompt: str, speculation: Speculation, notes: Sequence[str] = ()) -> None:
        self.name, self.prompt, self.speculation, self.notes = name, prompt, speculation, tuple(notes)
        self.draft_name = pair.draft.path.name if pair.draft else None
        self._pair, self._target, self._draft = pair, pair.target, pair.draft
        self._lock = threading.Lock()  # held while a stream is open
        self._life = threading.Lock()  # held while the models must not be freed by another thread
        self._holder: int | None = None  # the thread whose stream is open
        self._stream: weakref.ref[Stream] | None = None
        self._closed = False

    @property
    def n_ctx(self) -> int:
        """Tokens the context holds, prompt and answer together."""
        return self._target.n_ctx

    def tokenize(self, prompt: Prompt, *, prefill: str = "") -> list[int]:
        """Return the ids of a text, special tokens read as such, or of messages in the model's chat template; `prefill` begins the answer."""
        with self._life:
            if self._closed:
                raise ClosedError
            if not prompt and not prefill:
                return []
            return self._target.tokenize(prompt + prefill, special=True) if isinstance(prompt, str) else encode_chat(self._target, prompt, prefill)

    def token_text(self, token: int) -> str:
        """Return the text of one token; half a character is shown as a replacement sign."""
        with self._life:
            if self._closed:
                raise ClosedError
            return self._target.piece(token).decode("utf-8", errors="replace") or self._target.token_text(token)

    def generate(
        self, prompt: Prompt, sampling: Sampling | None = None, *, speculation: Speculation | None = None, prefill: str = "", echo: bool = False
    ) -> Completion:
        """Go on from a text, or answer messages, and return the whole result.

        Args:
            prompt: A text, taken as it is, or messages (`{"role": ..., "content": ...}`) for the model's chat template.
            sampling: How to sample; `Sampling()` where it is not given.
            speculation: Instead of the one given at load.
            prefill: What the answer begins with; the model goes on from there. A grammar counts it as part of the answer.
            echo: Begin the text with the prompt, if that is a text, and the prefill.

        Raises:
            EmptyPromptError, PromptTooLongError, InvalidOptionError: Before anything runs.
            BusyError: This thread has a stream of this LLM open.
        """
        return self._complete(self.stream(prompt, sampling, speculation=speculation, prefill=prefill, echo=echo))

    def stream(
        self, prompt: Prompt, sampling: Sampling | None = None, *, speculation: Speculation | None = None, prefill: str = "", echo: bool = False
    ) -> Stream:
        """Do as `generate`, but return an iterator over `Chunk`s. The LLM is taken until it is read to its end or closed."""
        tokens, shown = self.tokenize(prompt, prefill=prefill), (prompt if isinstance(prompt, str) else "") + prefill
        request = Request(tokens, sampling or Sampling(), speculation or self.speculation, prefill=prefill, echo=shown if echo else "")
        return self._open(request)

    def generate_tokens(
        self,
        tokens: Sequence[int],
        sampling: Sampling | None = None,
        *,
        stop_tokens: Iterable[int] = (),
        on_token: Callable[[int], object] | None = None,
        speculation: Speculation | None = None,
        prefill: str = "",
    ) -> Completion:
        """Go on from token ids.

        Args:
            tokens: The prompt's ids, nothing added.
            sampling: As for `generate`.
            stop_tokens: Ids that end the generation, beside those of `sampling`.
            on_token: Called with each id as it is emitted; a true result ends the generation right there, as `cancelled`.
            speculation: Instead of the one given at load.
            prefill: The text at the end of `tokens` that belongs to the answer, for a grammar to go on from.
        """
        sampling = sampling or Sampling()
        sampling = replace(sampling, stop_tokens=(*sampling.stop_tokens, *stop_tokens))
        return self._complete(self._open(Request(list(tokens), sampling, speculation or self.speculation, on_token, prefill)))

    def logit_noise(self, k: int) -> float:
        """Return how far logits of the target move against each other with the size of the batch on this machine, at most, in logits.

        Measured with the profile, over a few rows, and doubled: a decision closer than that is a near tie. 0 where k is 0, or where this machine's
        kernels give the same logits whatever the size.
        """
        Speculation(k)  # or say what is wrong with it
        return self.profile.logit_noise(k) if k else 0.0

    @property
    def profile(self) -> Profile:
        """What was measured of the models on this machine."""
        return self._pair.profile

    @contextmanager
    def models(self) -> Iterator[tuple[Model, Model]]:
        """Take the LLM and lend target and draft, for checks that look inside; without a draft the target is lent twice.

        Raises:
            BusyError, ClosedError: As for a generation.
        """
        self._take()
        try:
            if self._closed:
                raise ClosedError
            yield self._target, self._draft or self._target
        finally:
            self._give_back()

    def close(self) -> None:
        """Free the native memory; more than once does nothing. A stream of this thread is closed, one of another is cancelled and waited for."""
        open_stream = self._stream  # once: another thread may end it meanwhile
        stream = open_stream() if open_stream else None
        if stream and self._holder == threading.get_ident():
            stream.close()
        elif stream:
            stream.cancel()
        self._take()
        with self._life:
            self._closed = True
            self._pair.close()
        self._give_back()

    def _complete(self, stream: Stream) -> Completion:
        with stream:
            for _ in stream:
                pass
        return stream.result

    def _open(self, request: Request) -> Stream:
        self._take()
        try:
            if self._closed:
                raise ClosedError
            check_request(request, self._target)
            self._pair.check(request.speculation)
            if request.speculation.k:
                self._pair.measure()
            stream = Stream(request, self._pair, self._give_back)
        except BaseException:
            self._give_back()
            raise
        self._stream = weakref.ref(stream)
        return stream

    def _take(self) -> None:
        if self._holder == threading.get_ident():
            raise BusyError
        self._lock.acquire()
        self._holder = threading.get_ident()

    def _give_back(self) -> None:
        self._holder = self._stream = None
        self._lock.release()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def load(
    model: str | Path = "tales",
    draft: str | Path | None = "auto",
    *,
    speculation: Speculation | None = None,
    n_ctx: int | None = None,
    threads: int | None = None,
    flash_attention: str = "auto",
    kv_type: str = "f16",
    gpu_layers: int = -1,
    extra_bufts: bool | None = None,
    reference: str | Path | None = None,
    verbose: bool = False,
) -> LLM:
    """Load a model, and a draft that speaks its vocabulary.

    Args:
        model: A name in models.yaml, or the path of a GGUF file.
        draft: A name, a path, `ngram` to draft from the text alone, None or `none` for plain decoding, or `auto` for the one that belongs to the
            model's name.
        speculation: How to draft; where it is not given `Speculation()`, and plain decoding where `draft` is None.
        n_ctx: Tokens the context holds; None takes what the model was trained for, at most 4,096.
        threads: None takes the physical cores.
        flash_attention: `auto`, `on` or `off`.
        kv_type: Number type of the key-value cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0.
        gpu_layers: Layers to offload in a GPU build; -1 for all.
        extra_bufts: Let llama.cpp repack the weights for this CPU; None asks a probe, which runs once a machine.
        reference: A text file that drafts may come from too, such as one that answers quote.
        verbose: Write llama.cpp's log to stderr.

    What passes cost is measured the first time that models are loaded, in about a second, and kept in the user's cache.

    Raises:
        ModelError, VocabularyMismatchError, NotEnoughMemoryError, InvalidOptionError: Nothing stays in memory then.
    """
    entry = resolve(model)
    plain, by_text = draft in (None, "none"), draft == "ngram"
    draft_path = entry.draft if draft == "auto" else None if plain or by_text else _draft_file(str(draft))
    text = None if reference is None else _read_reference(Path(reference))
    options = ContextOptions(n_ctx, threads, flash_attention, kv_type, gpu_layers, extra_bufts is not False, verbose)
    if extra_bufts is None and not extra_bufts_work():
        options = replace(options, extra_bufts=False)
    target, drafter, notes = Model(entry.target, options), None, []
    try:
        if not (target.can_roll_back or plain):
            notes.append(f"{target.path.name} cannot go back a token (it is recurrent or hybrid), which speculation needs: decoding plainly.")
        elif draft_path:
            drafter, why_not = _load_draft(draft_path, target)
            notes += why_not
        elif draft == "auto":
            notes.append(f"no draft model is known for {entry.name}: drafting from the text alone. Give one with --draft FILE.")
        if target.n_ctx > target.n_ctx_train > 0:
            notes.append(
                f"{entry.name} was trained for {target.n_ctx_train:,} tokens: beyond them, in a context of {target.n_ctx:,}, it writes worse."
            )
        pair = Pair(target, drafter, profile_of, None if text is None else _suffixes(target, text))
        prompt = entry.prompt or ("chat" if target.chat_template else "text")
        llm = LLM(entry.name, pair, prompt=prompt, speculation=speculation or Speculation(k=0 if plain else K_MAX), notes=notes)
        if llm.speculation.k:
            pair.measure()  # now, not when the first answer is waited for
        return llm
    except BaseException:
        target.close()
        if drafter:
            drafter.close()
        raise


def _read_reference(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        raise InvalidOptionError("reference", str(path), f"a text file that can be read ({error})") from None


def _suffixes(target: Model, text: str) -> Suffixes:
    suffixes = Suffixes()
    suffixes.extend(target.tokenize(text, special=False, start=False))
    return suffixes


def _draft_file(draft: str) -> Path:
    """Return the file a draft's name stands for: a pair's name means the draft of that pair."""
    entry = resolve(draft)
    return entry.draft or entry.target


def _load_draft(path: Path, target: Model) -> tuple[Model | None, list[str]]:
    """Load a draft that speaks the target's vocabulary; where it cannot go back, return None and the reason."""
    draft = Model(path, replace(target.options, n_ctx=target.n_ctx))
    try:
        check_vocabulary(target, draft)
    except BaseException:
        draft.close()
        raise
    if draft.can_roll_back:
        return draft, []
    draft.close()
    return None, [f"the draft {path.name} cannot go back a token (it is recurrent or hybrid), which drafting needs: drafting from the text alone."]
