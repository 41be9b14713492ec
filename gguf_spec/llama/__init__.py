"""llama.cpp behind typed Python: backend, models, contexts, memory, attention and threads."""

__all__: list[str] = []
