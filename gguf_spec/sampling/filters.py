"""Filters of a request: the parts of its sampling chain that need the model's vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..grammar.json_schema import to_gbnf
from ..grammar.token_grammar import Grammar
from ..options import InfillSampling, Sampling
from ..vocabulary import Vocabulary
from .chain import CompatSampling, Filters, Penalties
from .infill import Infill


def make_filters(
    model: Vocabulary,
    s: Sampling,
    n_prompt: int,
    prefill: str,
    dry: Callable[[Sampling], Penalties],
) -> Filters:
    """Make the filters that the options of a request require.

    Args:
        model: The vocabulary.
        s: The options.
        n_prompt: Number of prompt tokens; a grammar begins after them.
        prefill: Text at the end of the prompt that the grammar has already accepted.
        dry: Makes the penalties of DRY; called if the options ask for them.

    Raises:
        InvalidOptionError: The grammar or the schema is invalid, or the grammar rejects the
            prefill.
    """
    gbnf = s.grammar if s.json_schema is None else to_gbnf(s.json_schema)
    penalise_from = n_prompt if isinstance(s, CompatSampling) else 0
    infill = Infill(model).kept if isinstance(s, InfillSampling) else None
    return Filters(
        dry=dry(s) if s.dry_multiplier and s.dry_penalty_last_n else None,
        grammar=None if gbnf is None else Grammar(model, gbnf, n_prompt, prefill),
        ends=np.array(model.ends if s.ignore_eos or gbnf is not None else [], dtype=np.int64),
        penalise_from=penalise_from,
        infill=infill,
    )
