"""Text of PDF files. It runs in a child process with limits: such files come from anywhere."""

from __future__ import annotations

import io
import logging
from typing import NamedTuple


class PdfText(NamedTuple):
    """The text of a file, or what is wrong with the file.

    Attributes:
        n_pages: Its pages.
        n_read: Those whose text is here; fewer where all of it is too long.
    """

    text: str
    n_pages: int = 0
    n_read: int = 0
    fault: str = ""


def pdf_text(data: bytes, most_chars: int, most_pages: int) -> PdfText:
    """Return the text of a PDF file, as far as its pages fit into a number of characters."""
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it quotes what is damaged
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            return PdfText("", fault="has a password.")
        n_pages, pages, n_chars = len(reader.pages), list[str](), 0
        for page in reader.pages[:most_pages]:
            text = page.extract_text().strip().encode("utf-8", "replace").decode()
            n_chars += len(text) + 2
            if n_chars > most_chars:
                break
            pages.append(text)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file has any of them
        return PdfText("", fault=f"cannot be read ({type(error).__name__}).")
    text = "\n\n".join(filter(None, pages))
    if not text and len(pages) == n_pages:
        return PdfText("", n_pages, fault="has no text: its pages may be images.")
    if not text:
        return PdfText("", n_pages, fault=f"has a page with more than {most_chars:,} characters.")
    return PdfText(text, n_pages, len(pages))
