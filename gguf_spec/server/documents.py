"""Route for the text of documents, which no model is needed for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..protocols.errors import ApiError, client_closed
from ..system import subprogram
from ..system.helper import Helper, HelperError
from .pdf_text import PdfText, pdf_text
from .settings import Settings
from .streams import JsonAnswer
from .turns import in_time
from .uploads import BodyReader


class Documents:
    """Reads documents in a child process, one after the other."""

    def __init__(self, settings: Settings, is_ending: Callable[[], bool]) -> None:
        most = max(settings.body_bytes, settings.limits.document_bytes)
        larger = replace(settings, body_bytes=most)
        self._bodies, self._settings = BodyReader(larger, is_ending), settings
        self._turn, self._helper = asyncio.Lock(), Helper()
        self.route: Route = Route("/v1/documents/text", self._answer, methods=["POST"])

    def close(self) -> None:
        self._helper.close()

    async def _answer(self, request: Request) -> Response:
        body = await self._bodies.receive(request)
        if not body.lstrip(b"\xef\xbb\xbf\r\n\t ").startswith(b"%PDF-"):
            fact = "The body must be a PDF file, which begins with %PDF-."
            raise ApiError(fact, None, "invalid_document")
        if not find_spec("pypdf"):
            fact = "PDF files need pypdf on the server: pip install 'gguf-spec[server]'."
            raise ApiError(fact, None, "no_pdf", 501)
        if why := subprogram.refusal():
            raise ApiError(f"PDF files are not read here: {why}.", None, "no_pdf", 501)

        limits = self._settings.limits
        given = limits.document_s, pdf_text, body, limits.document_chars, limits.document_pages

        async def read() -> PdfText:
            async with self._turn:
                if await request.is_disconnected():
                    raise client_closed()
                return await asyncio.to_thread(partial(self._helper.call, *given))

        try:
            found = await in_time(read(), self._settings.limit_s)
        except HelperError as error:
            raise ApiError(f"The PDF {error} to read.", None, "invalid_document") from None
        if found.fault:
            raise ApiError(f"The PDF {found.fault}", None, "invalid_document")
        counts = {"pages": found.n_pages, "pages_read": found.n_read}
        return JsonAnswer({"object": "document.text", "text": found.text, **counts})
