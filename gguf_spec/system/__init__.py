"""Files, caches and hardware facts of this machine."""

__all__: list[str] = []
