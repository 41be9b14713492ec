"""GBNF grammars and JSON schemas as constraints on tokens."""
