"""Test of a prediction head, run once per file, library and machine in a child process.

On a file that it does not support llama.cpp may end the process, so the test comes before a head is
loaded.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..gguf.heads import target_layers
from ..gguf.validation import ModelFile
from ..system.files import cache_file, read_json, this_machine, write_json
from .backend import library_parts
from .child_process import ChildError, ask
from .eagle_head import open_head
from .model import Model
from .options import ContextOptions

_VERSION = 1  # format version of cached results


def why_head_fails(target: ModelFile, head: ModelFile | None) -> str:
    """Return why llama.cpp cannot use a head, as a sentence; empty if it can.

    Args:
        target: The file of the target.
        head: The head's own file; None if it is in that of the target.
    """
    files = [target, *([head] if head else [])]
    ids = [one.content_id for one in files]
    cache = cache_file("probe", ["head", _VERSION, *this_machine(), *library_parts(), *ids])
    known = read_json(cache)
    if isinstance(known, dict) and isinstance(known.get("problem"), str):
        return str(known["problem"])
    if getattr(sys, "frozen", False):
        return "a packed program cannot test prediction heads"
    problem = _run([one.path for one in files])
    # if the file cannot be written, the next load tests again
    write_json(cache, {"problem": problem})
    return problem


def _run(paths: list[Path]) -> str:
    name = paths[-1].name
    try:
        works = ask("head_probe", *paths)
    except ChildError as error:
        return f"llama.cpp fails on the prediction head of {name} (a test {error})"
    return "" if works else f"llama.cpp cannot use the prediction head of {name}"


def works(target: Path, head: Path | None) -> bool:
    """Return whether a head proposes tokens; the process may end instead."""
    options = ContextOptions(n_ctx=64, threads=1, gpu_layers=0, extra_bufts=False)
    file = ModelFile(head) if head else None
    layers = target_layers(file.header) if file else ()
    with_head = replace(options, head="file" if head else "own", head_layers=layers)
    model = Model(target, with_head)
    one = open_head(model, options.for_draft(), file)
    tokens = [model.start % model.n_vocab] * 4
    model.read(tokens)
    rows = [one.logits(tokens, 1).copy()]
    rows += [one.logits(tokens[:1], 1).copy() for _ in range(2) if one.n_heads == 1]
    # an EAGLE-3 head may know some tokens only
    return bool(np.isfinite([row.max() for row in rows]).all())


if __name__ == "__main__":
    paths = [Path(one) for one in sys.argv[1:]]
    sys.stdout.write(f"{json.dumps(works(paths[0], paths[1] if len(paths) > 1 else None))}\n")
