"""Route that counts the tokens of a request to the Messages API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...errors import ClosedError
from ...options import Speculation
from ..errors import as_refusal
from ..requests import parse
from .request import PROMPT_FIELDS, read_request

if TYPE_CHECKING:
    from ...runtime.llm import LLM
    from ..model_routes import ModelRoutes


class CountRoute:
    """Route that counts the tokens of a prompt."""

    def __init__(
        self, models: ModelRoutes, read_body: Callable[[Request], Awaitable[bytes]]
    ) -> None:
        """Create the route.

        Args:
            models: Looks models up.
            read_body: Reads the body of a request.
        """
        self._models, self._read_body = models, read_body
        self.route = Route("/v1/messages/count_tokens", self._count, methods=["POST"])

    async def _count(self, request: Request) -> Response:
        data = parse(await self._read_body(request))
        asked = read_request(data, Speculation(), None, PROMPT_FIELDS)

        def look(llm: LLM) -> dict[str, Any]:
            options = asked.reasoning.options(llm) | {"tools": asked.tools.tools or None}
            try:
                return {"input_tokens": len(llm.tokenize(asked.prompts[0], **options))}
            except ClosedError:
                raise
            except Exception as error:
                raise as_refusal(error, asked.names) from None

        return await self._models.look(data.get("model"), look)
