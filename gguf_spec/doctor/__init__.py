"""Diagnosis of the installation, the machine and a pair of models, with advice for each problem.

Returns data and prints nothing.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import Text
from ..llama.options import ContextOptions, context_options
from ..system.machine import format_bytes
from . import installation
from .facts import Machine
from .installation import Check, can_offload, drivers, own_folders, why_no_gpu

if TYPE_CHECKING:
    from ..tune import Tuning

__all__ = [
    "Check", "ContextOptions", "Diagnosis", "can_offload", "context_options", "doctor",
    "drivers", "own_folders", "why_no_gpu",
]  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """Result of all checks.

    Attributes:
        tuning: Cached costs of the models' passes; None if they were not measured yet.
    """

    checks: tuple[Check, ...]
    tuning: Tuning | None

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return all(one.status != "fail" for one in self.checks)

    @property
    def sentence(self) -> str:
        """The result in one plain sentence."""
        fails, warns = (
            ", ".join(one.name for one in self.checks if one.status == status)
            for status in ("fail", "warn")
        )
        parts = [f"failed: {fails}"] * bool(fails) + [f"could be better: {warns}"] * bool(warns)
        text = "; ".join(parts) or "no problem was found"
        return f"{text[0].upper()}{text[1:]}."

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis as plain values."""
        checks = [asdict(one) for one in self.checks]
        return {
            "ok": self.ok,
            "sentence": self.sentence,
            "checks": checks,
            "costs": self.tuning.to_dict() if self.tuning else None,
        }


def doctor(
    model: str | Path = "tales",
    draft: str | Path | None = "auto",
    options: ContextOptions | None = None,
    *,
    draft_options: ContextOptions | None = None,
    reference: str | Path | None = None,
    models_file: Path | None = None,
    online: bool = False,
    mmproj: str | Path | None = None,
    reads_all: bool = False,
) -> Diagnosis:
    """Check this installation, this machine, and a pair of models on it.

    Args:
        model: As for `load`.
        draft: As for `load`.
        options: Load and context options of the models. Repacked weights are used only if the probe
            finds them correct; the target's only if `tune` did not find plain ones faster.
        draft_options: Options of the draft model if they differ. Its context is as long as the
            target's.
        reference: As for `load`.
        models_file: As for `load`.
        online: Whether to check that the hub is reachable. No other check makes a request.
        mmproj: As for `load`.
        reads_all: Whether the files of the models are read completely, and their sha256 compared
            where it is known.
    """
    options = options or ContextOptions()
    draft_options = draft_options or options.for_draft()
    machine = Machine()
    checks = [installation.python(machine), installation.package(machine, __version__)]
    if crashed := drivers(options):
        of_disk = [installation.disk(machine), installation.cache()]
        return Diagnosis((*checks, *crashed, installation.memory(machine), *of_disk), None)
    from . import models  # it loads llama.cpp
    from .build import Build

    checks.append(installation.library())
    build: Build | None = None
    if checks[-1].status == "ok":
        build = Build.of(options, draft_options)
        checks += installation.of_build(machine, build, options)
        if options.rpc:
            checks.append(installation.workers(options.rpc))
        repack = bool(build.repacking and build.repacking.works)
        options = replace(options, extra_bufts=repack)
        draft_options = replace(draft_options, extra_bufts=repack)
    checks += [
        installation.threads(machine, options),
        installation.memory(machine),
        installation.disk(machine),
        installation.cache(),
        installation.history(),
        models.hub_cache(),
        models.models_file(models_file),
    ]
    if online:
        checks.append(models.hub())
    if reference is not None:
        checks.append(_text(Path(reference)))
    failed = {one.name for one in checks if one.status == "fail"}
    if "devices" in failed:
        build = None  # nothing can be loaded
    loads = build is not None and "workers" not in failed
    pair = models.PairChecks(options, draft_options, build, models_file, loads, reads_all)
    with contextlib.closing(pair):
        checks += pair.examine(model, draft)
        if mmproj is not None:
            checks.append(models.projector(Path(mmproj), model, models_file, build is not None))
        return Diagnosis(tuple(checks), pair.tuning)


def _text(path: Path) -> Check:
    try:
        with path.open("rb") as file:
            file.read(1)
    except (OSError, ValueError) as error:
        return Check(
            "draft text",
            "fail",
            f"{path} cannot be read: {error}",
            Text("name a text file, or omit {reference}."),
        )
    return Check("draft text", "ok", f"{path}: {format_bytes(path.stat().st_size)}")
