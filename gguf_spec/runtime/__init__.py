"""Public objects: load, LLM, Stream, Chat, and the search for a draft model."""

__all__: list[str] = []
