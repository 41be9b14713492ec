"""Files with many requests: one JSON object a line, answered to a file with one result a line."""

from __future__ import annotations

from .defaults import LineDefaults
from .progress import BatchProgress
from .run import Batch

__all__ = ["Batch", "BatchProgress", "LineDefaults"]
