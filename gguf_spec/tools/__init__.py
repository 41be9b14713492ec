"""Tool calls of models: one table of families, with a parser, a grammar and a writer of calls."""

__all__: list[str] = []
