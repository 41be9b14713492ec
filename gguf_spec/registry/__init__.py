"""Model names, downloads and checksums."""

__all__: list[str] = []
