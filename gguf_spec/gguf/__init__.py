"""Read and check GGUF files without llama.cpp."""
