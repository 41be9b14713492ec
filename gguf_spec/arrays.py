"""Array types: logits of shape `(V,)` or `(n, V)`, and token ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
Ids = NDArray[np.int64]
