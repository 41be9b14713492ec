"""Chat templates and detokenizing."""
