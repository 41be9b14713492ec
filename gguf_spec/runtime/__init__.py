"""Public objects: load, LLM, Stream, Chat, and the search for a draft model."""
