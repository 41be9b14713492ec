"""Chat templates and detokenisation."""

__all__: list[str] = []
