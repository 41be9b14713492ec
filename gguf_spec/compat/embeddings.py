"""Embeddings in the form of `llama_cpp.Llama`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidOptionError, TextTooLongError
from ..gguf.validation import Header
from ..options import POOLING
from .responses import Dict

if TYPE_CHECKING:
    from ..runtime.llm import LLM


def pooling_named(number: int, header: Header) -> str:
    """Return the pooling with llama.cpp's number.

    Args:
        number: The number; -1 takes that of the file, otherwise 0.
        header: Header of the model.

    Raises:
        InvalidOptionError: There is no such pooling.
    """
    if number == -1:
        of_file = header.of_architecture("pooling_type")
        number = of_file if isinstance(of_file, int) and 0 <= of_file < len(POOLING) else 0
    if not (isinstance(number, int) and 0 <= number < len(POOLING)):
        names = ", ".join(f"{i} ({name})" for i, name in enumerate(POOLING))
        raise InvalidOptionError("pooling_type", number, f"-1, {names}")
    return POOLING[number]


class Embeddings(ABC):
    """Methods of `llama_cpp.Llama` for embeddings.

    Attributes:
        model_path: Name of the model in responses.
    """

    model_path: str
    _most_embedded: int

    @property
    @abstractmethod
    def _alive(self) -> LLM:
        """The LLM."""

    def create_embedding(self, input: str | Sequence[str], model: str | None = None) -> Dict:
        """Return the embeddings of texts in the format of OpenAI. They are not normalised.

        Args:
            input: A text, or several.
            model: Name of the model in the response.

        Raises:
            EmptyPromptError: A text has no token.
        """
        texts = [input] if isinstance(input, str) else input
        vectors, n_tokens = self.embed(texts, return_count=True)
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "embedding": one, "index": i}
                for i, one in enumerate(vectors)
            ],
            "model": self.model_path if model is None else model,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }

    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """Return the embedding of a text as a list of numbers, or a list of those of several.

        Without pooling an embedding is a list of lists, one for each token.

        Args:
            input: A text, or several.
            normalize: Scale each embedding to the length 1.
            truncate: Cut long texts off at the context or `n_batch`, whichever is shorter; False
                raises an error.
            return_count: Return a pair of the embeddings and the number of tokens.

        Raises:
            TextTooLongError: A text is too long, and `truncate` is False. It is a `ValueError`.
            EmptyPromptError: A text has no token.
        """
        llm = self._alive
        most = min(self._most_embedded, llm.n_ctx)
        texts = [input] if isinstance(input, str) else input
        ids = [llm.vocabulary.tokenize(text, special=False) for text in texts]
        for i, one in enumerate(ids):
            if len(one) > most and not truncate:
                raise TextTooLongError(i, len(one), most, most)
        cut = [one[:most] for one in ids]
        vectors = [one.tolist() for one in llm.embed(cut, normalize=normalize)]
        found = vectors[0] if isinstance(input, str) else vectors
        return (found, sum(map(len, cut))) if return_count else found

    def pooling_type(self) -> int:
        """Return llama.cpp's number of the pooling."""
        return POOLING.index(self._alive.pooling)
