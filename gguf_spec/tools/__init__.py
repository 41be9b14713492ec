"""Tool calls of models: one table of families, with a parser, a grammar and a writer of calls.

`Chunk.text` has the calls as the model writes them. To read them, whole or in pieces:

    family, use = family_of(llm.chat_template or ""), ToolUse(tools)
    text, calls = whole_answer(completion.text, family, use)
"""

from .families import ToolUse, family_of, reads_tools
from .reader import ToolDeltas, ToolReader, whole_answer
from .source import Event

__all__ = ["Event", "ToolDeltas", "ToolReader", "ToolUse", "family_of"]
__all__ += ["reads_tools", "whole_answer"]
