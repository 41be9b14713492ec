"""Draft models with a trimmed vocabulary: the rows of the most used tokens only.

Each draft pass multiplies with the whole output matrix, which is a third and more of the weights
of a small model. Returns data and prints nothing.
"""

from .trimming import KEEP, Trimmed, trim

__all__ = ["KEEP", "Trimmed", "trim"]
