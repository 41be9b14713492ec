"""Runs before the app's own code: child processes of gguf-spec begin and end here."""

from gguf_spec.system.subprogram import freeze_support

freeze_support()
