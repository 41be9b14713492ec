"""Dialects of the server: from a body to a request, and from events to an answer.

Two rules hold in this package. It does no I/O: no socket, no file, no thread, no event loop. And it
knows no engine: of a model it sees what `model.py` says. So a dialect can be read, and its tests
run, without a server and without llama.cpp.
"""

__all__: list[str] = []
