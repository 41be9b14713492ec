"""Model names, downloads and checksums."""
