"""GBNF grammars and JSON schemas as constraints on tokens."""

__all__: list[str] = []
