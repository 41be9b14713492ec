"""Files, caches and hardware facts of this machine."""
