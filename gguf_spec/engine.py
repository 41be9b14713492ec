"""What clients may ask of an engine.

An engine is one loaded model with what drafts for it, in this process or in another one. It owns
the weights, caches, slots and threads; clients hold none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .options import Sampling, Speculation


@dataclass(frozen=True)
class Facts:
    """What is known of an engine; it can be sent to another process.

    Attributes:
        name: The target's registry name or file name.
        path: File of the target.
        draft_name: The draft's file name, with `(prediction head)` for one; or None.
        prompt: `text` or `chat`: the form of a bare prompt.
        n_ctx: Number of tokens that the context holds, prompt and answer together.
        n_ctx_limit: Longest context that the model can have here, in tokens; None if unknown.
        n_ctx_max: Longest context with which the model could have been loaded, in tokens.
        parallel: Number of requests that can share passes; more wait.
        parallel_reason: Why `parallel` has its value; empty if the caller gave the number.
        is_exact: Whether texts do not depend on the requests beside them.
        generates: Whether it generates text; without that it only computes embeddings.
        can_see: Whether prompts may have images.
        can_think: Whether the chat template has reasoning parts.
        chat_template: The Jinja template that formats messages as a prompt, or None.
        template_variables: Variables that the chat template reads and a request may set.
        sampling: Default sampling options of a request.
        sampling_sources: Name of a default that is not the package's -> where it comes from.
        speculation: Default draft options of a request.
        notes: Explanations of unexpected behaviour, such as an unused draft. One sentence each.
        draft_notes: Those of `notes` that are about the choice of the draft.
        prompt_token_s: Approximate seconds to read a token of a prompt, as measured so far; 0 if
            unknown.
    """

    name: str
    path: Path
    draft_name: str | None
    prompt: str
    n_ctx: int
    n_ctx_limit: int | None
    n_ctx_max: int
    parallel: int
    parallel_reason: str
    is_exact: bool
    generates: bool
    can_see: bool
    can_think: bool
    chat_template: str | None
    template_variables: frozenset[str]
    sampling: Sampling
    sampling_sources: Mapping[str, str]
    speculation: Speculation
    notes: tuple[str, ...]
    draft_notes: tuple[str, ...]
    prompt_token_s: float
