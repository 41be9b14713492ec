"""Chat templates and detokenisation."""
