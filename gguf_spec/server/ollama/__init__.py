"""API of Ollama: faces for answers, and routes about models and embeddings."""

from .face import ollama_faces
from .routes import OllamaRoutes

__all__ = ["OllamaRoutes", "ollama_faces"]
