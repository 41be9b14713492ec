"""Read and check GGUF files without llama.cpp."""

__all__: list[str] = []
