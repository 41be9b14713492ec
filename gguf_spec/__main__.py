"""Entry point of `python -m gguf_spec`."""

from .cli import main

main()
