"""Models of a server: loaded on demand, unloaded when idle or when another one needs the memory."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidOptionError, LoadCancelledError, NotEnoughMemoryError, WorkerError
from ..models import path as local_path
from ..models import resolve
from ..options import Speculation
from ..protocols.errors import LOG, ApiError, client_closed, log, not_loaded
from ..results import OnProgress
from ..system.process import OfOneProcess
from .running import load_key

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..arguments import ServedOptions
    from ..models import DefaultModel
    from ..runtime.llm import LLM


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model that a server can load.

    Attributes:
        id: Name in responses.
        names: Other names in lower case that requests may use.
        load: Loads the model; its argument is called with the progress. Where the context may grow,
            it has a second one, the length.
        path: Its file, or the first file of a split model.
        key: `running.load_key` of it; empty for a model that was loaded outside of the pool.
        ctx_max: Length to which its context may grow; None for as long as fits, 0 for none.
    """

    id: str
    names: frozenset[str]
    load: Callable[..., LLM]
    path: Path | None = None
    key: str = ""
    ctx_max: int | None = 0


def served_model(
    model: str | Path | DefaultModel | None = None,
    models_file: str | Path | None = None,
    alias: str | None = None,
    ctx_max: int | None = None,
    **options: Unpack[ServedOptions],
) -> ServedModel:
    """Return a model on this disk for a `ModelPool`, without loading it.

    Args:
        model: As for `gguf_spec.load`.
        models_file: As for `gguf_spec.load`.
        alias: Name in responses, and others after commas; None for that of the model.
        ctx_max: Length to which the context grows when a request needs more. None: where `n_ctx` is
            not given, as long as the model was trained for and the free memory holds.
        options: Other arguments of `gguf_spec.load`.

    Raises:
        ModelNotFoundError: There is no such model.
        NotDownloadedError: It is not on this disk.
    """
    from ..runtime.default_model import DefaultModel, chosen_model

    if model is None or isinstance(model, DefaultModel):
        entry = chosen_model(Path(models_file) if models_file else None, model).entry
        # The choice stays the same when the model is loaded again.
        model = entry.path or entry.name
    entry, file = resolve(model, models_file), local_path(model, models_file)
    given = [one for one in map(str.strip, (alias or "").split(",")) if one]
    names = {str(model), *entry.aliases, *_names_of(entry.name, file), *given}
    if entry.repo:
        names |= {entry.repo, f"hf:{entry.repo}"}

    def load(progress: OnProgress | None, n_ctx: int | None = None) -> LLM:
        from ..runtime.load import load as load_model

        own: dict[str, Any] = {**options, **({"n_ctx": n_ctx} if n_ctx else {})}
        return load_model(model, models_file=models_file, progress=progress, **own)

    lower, id_ = frozenset(name.lower() for name in names), (*given, entry.name)[0]
    most = 0 if ctx_max is None and options.get("n_ctx") else ctx_max
    return ServedModel(id_, lower, load, file, load_key(file, options), most)


def loaded_model(llm: LLM) -> ServedModel:
    """Return a model that is already loaded, for a pool that keeps it."""
    names = _names_of(llm.name, llm.path)
    lower = frozenset(name.lower() for name in names)
    return ServedModel(llm.name, lower, lambda _: llm, llm.path)


def _names_of(name: str, file: Path) -> set[str]:
    return {name, file.name, file.stem, Path(name).stem if name.endswith(".gguf") else name}


@dataclass
class LoadedModel:
    """A model of a pool that is in memory.

    Attributes:
        used_s: Time of its last use, by the clock of the pool.
        keeps: Whether it is never unloaded.
        n_users: Number of threads that use it.
        is_lost: A worker that held a part of it was lost; it must be loaded again.
    """

    llm: LLM
    used_s: float
    keeps: bool
    n_users: int = 0
    is_lost: bool = False

    @property
    def is_busy(self) -> bool:
        return self.n_users > 0


class ModelPool(OfOneProcess):
    """Models of a server by name.

    A model that lost a worker is loaded again for the next request.
    Any thread may look models up and use them. A model in use is never unloaded. Only one thread
    at a time may load or unload the same model: the worker of a server sees to that.
    """

    keep_alive: float | None
    models: tuple[ServedModel, ...]

    def __init__(
        self,
        models: Sequence[ServedModel],
        *,
        speculation: Speculation | None = None,
        keep_alive: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a pool without loaded models.

        Args:
            models: The models. The first one is the default.
            speculation: Default draft options of the requests.
            keep_alive: Seconds after its last use at which a model is unloaded; None for never.
            clock: Returns the time in seconds.

        Raises:
            InvalidOptionError: There is no model, or two of them have the same id.
        """
        ids = [model.id for model in models]
        if not ids or len(set(ids)) < len(ids):
            raise InvalidOptionError("model", ", ".join(ids), "one or several different models")
        if keep_alive is not None and not keep_alive >= 0:
            raise InvalidOptionError("keep_alive", keep_alive, "seconds, 0 or more")
        self.models, self.keep_alive = tuple(models), keep_alive
        self.speculation: Speculation = speculation or Speculation()
        self._clock, self._lock = clock, threading.Lock()
        self._loaded: dict[str, LoadedModel] = {}
        self._asked: dict[str, float] = {}  # id -> seconds that the last request asked for
        # An exact id has priority over other names, and earlier models over later ones.
        self._named = {name: model for model in reversed(self.models) for name in model.names} | {
            model.id.lower(): model for model in self.models
        }

    @classmethod
    def of(cls, llm: LLM) -> ModelPool:
        """Return a pool with one model, which the caller opened and closes."""
        pool = cls([loaded_model(llm)], speculation=llm.speculation)
        pool.add(pool.default, llm, keeps=True)
        return pool

    @property
    def default(self) -> ServedModel:
        """The model for requests that name none."""
        return self.models[0]

    def find(self, name: str) -> ServedModel | None:
        """Return the model with this name; names differ by more than their case."""
        return self._named.get(name.lower())

    def loaded(self, model: ServedModel) -> LoadedModel | None:
        """Return a model that is in memory, or None. May be called from any thread."""
        with self._lock:
            return self._loaded.get(model.id)

    def loaded_llms(self) -> list[LLM]:
        """Return the models in memory. May be called from any thread."""
        return [one.llm for one in map(self.loaded, self.models) if one]

    def seconds_left(self, model: ServedModel | None = None) -> float | None:
        """Return the seconds until a model, or the first of all, is unloaded; None for never."""
        own = math.inf if self.keep_alive is None else self.keep_alive
        with self._lock:
            ids = [model.id] if model else [*self._loaded]
            found = [(id_, one) for id_ in ids if (one := self._loaded.get(id_))]
            ends = [
                one.used_s + self._asked.get(id_, own)
                for id_, one in found
                if not (one.keeps or one.is_busy)
            ]
        end = min(ends, default=math.inf)
        return None if end == math.inf else max(0.0, end - self._clock())

    def keep(self, model: ServedModel, seconds: float | None) -> None:
        """Keep a model for this time after its last use, as its last request asks for.

        Args:
            seconds: The time; None for that of the pool. Where models are never unloaded only 0,
                which unloads it, has an effect.
        """
        with self._lock:
            self._asked.pop(model.id, None)
            if seconds is not None and (self.keep_alive is not None or seconds == 0):
                self._asked[model.id] = seconds

    def add(self, model: ServedModel, llm: LLM, keeps: bool = False) -> None:
        """Add an LLM that was loaded outside of the pool.

        Args:
            llm: The LLM; the pool closes it unless `keeps` is true.
            keeps: Whether it is never unloaded.
        """
        with self._lock:
            self._loaded[model.id] = LoadedModel(llm, self._clock(), keeps)

    @contextmanager
    def use(
        self, model: ServedModel, is_cancelled: Callable[[], bool], n_ctx: int = 0
    ) -> Iterator[LLM]:
        """Load a model if necessary and mark it as in use.

        Args:
            is_cancelled: Whether to give up loading.
            n_ctx: Length that its context must have; a shorter one grows, unless that fails.

        Raises:
            ApiError: It cannot be loaded, or `is_cancelled` returned True.
        """
        one = self.loaded(model)
        if one is None or one.llm.n_ctx < n_ctx:
            self._reload(model, one.llm if one else None, is_cancelled, n_ctx)
            one = self.loaded(model)
        assert one
        with self._lock:
            one.n_users += 1
        try:
            yield one.llm
        except WorkerError:
            one.is_lost = not one.keeps
            raise
        finally:
            with self._lock:
                one.used_s, one.n_users = self._clock(), one.n_users - 1
                is_over = one.is_lost and not one.n_users
                if is_over and self._loaded.get(model.id) is one:
                    del self._loaded[model.id]
            if is_over:
                one.llm.close()

    def ctx_max(self, llm: LLM) -> int:
        """Return the length to which the context of a loaded LLM may grow, in tokens.

        Raises:
            ClosedError: The program that serves it has closed it.
        """
        for model in self.models:
            one = self.loaded(model)
            if one and one.llm is llm and not one.keeps:
                most = llm.n_ctx_max if model.ctx_max is None else model.ctx_max
                return max(llm.n_ctx, most)
        return llm.n_ctx

    def _reload(
        self, model: ServedModel, llm: LLM | None, is_cancelled: Callable[[], bool], n_ctx: int
    ) -> None:
        """Load a model, with the texts of the one that is loaded, whose context is too short."""
        before, texts = 0, None
        if llm:
            before, texts = llm.n_ctx, llm.kept_texts()
            self._unload(model.id)
        try:
            new = self._load(model, is_cancelled, n_ctx or None)
        except ApiError:
            if not before:
                raise
            new = self._load(model, is_cancelled, before)
        if texts:
            new.add_texts(texts)
            LOG.info("The context of %s has %s tokens now.", model.id, f"{new.n_ctx:,}")
        self.add(model, new)

    def _load(self, model: ServedModel, is_cancelled: Callable[[], bool], n_ctx: int | None) -> LLM:
        """Load a model; unload those used longest ago while there is not enough memory."""
        while True:
            try:
                return model.load(lambda _: not is_cancelled(), *([n_ctx] if n_ctx else []))
            except NotEnoughMemoryError as error:
                with self._lock:
                    idle = [
                        (one.used_s, id_)
                        for id_, one in self._loaded.items()
                        if not (one.keeps or one.is_busy)
                    ]
                if not idle:
                    raise not_loaded(model.id, error) from None
                self._unload(min(idle)[1])
            except LoadCancelledError:
                raise client_closed() from None
            except ApiError:
                raise
            except Exception as error:
                log(error)
                raise not_loaded(model.id, error) from None

    def _unload(self, id_: str) -> None:
        with self._lock:
            one = self._loaded.pop(id_, None)
        if one:  # no other thread has unloaded it
            one.llm.close()

    def unload_idle(self, but_for: ServedModel | None = None) -> None:
        """Unload all models that were idle for too long, except the next one to be used."""
        for model in self.models:
            if model is not but_for and self.seconds_left(model) == 0:
                self._unload(model.id)

    def __enter__(self) -> ModelPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unload all models that the pool loaded; further calls have no effect."""
        with self._lock:
            ids = [id_ for id_, one in self._loaded.items() if not one.keeps]
        for id_ in ids:
            self._unload(id_)
