"""Whether llama-cpp-python fits its library: the functions that exist, and the size of structures.

llama-cpp-python declares llama.cpp's structures once more, in Python. With a library of another
version (LLAMA_CPP_LIB_PATH, a build from other sources) options would be read at wrong places, and
a function that returns a larger structure would write past its end.
"""

from __future__ import annotations

import ctypes
import platform
from typing import Any

# the version that the tests run with; the sources of 0.3.30 have all that is needed, too
TESTED = "0.3.36"
# functions and methods that older versions lack
NEEDED: tuple[str, ...] = (
    "llama_n_rs_seq",
    "llama_state_seq_get_data_ext",
    "llama_model_is_diffusion",
)
# functions that return a structure, and values in it that are the same in all these versions
DEFAULTS: dict[str, dict[str, object]] = {
    "llama_context_default_params": {
        "n_rs_seq": 0, "rope_scaling_type": -1, "pooling_type": -1, "attention_type": -1,
        "flash_attn_type": -1, "yarn_ext_factor": -1.0, "type_k": 1, "type_v": 1,
        "embeddings": False, "offload_kqv": True, "op_offload": True, "kv_unified": False,
    },
    "llama_model_default_params": {
        "split_mode": 1, "main_gpu": 0, "vocab_only": False, "check_tensors": False,
        "use_extra_bufts": True,
    },
    "llama_model_quantize_default_params": {
        "nthread": 0, "allow_requantize": False, "quantize_output_tensor": True, "dry_run": False,
    },
}  # fmt: skip
# bytes; more than any of these structures
_ROOM = 4096
# here the caller passes the place of a returned structure as the first argument
PLACE_FIRST: bool = platform.machine().lower() in ("x86_64", "amd64")


def misfit(binding: Any, place_first: bool = PLACE_FIRST) -> str:
    """Return why llama-cpp-python cannot be used, without a full stop; empty if it can.

    On x86-64 every larger or smaller structure is found. Elsewhere its size cannot be seen: a
    member that is missing or was inserted is found, one that was appended is not.

    Args:
        place_first: Whether functions get the place of a structure that they return as their first
            argument.
    """
    missing = [name for name in (*NEEDED, *DEFAULTS) if not hasattr(binding, name)]
    if missing:
        return f"it lacks {', '.join(missing)}"
    for name, defaults in DEFAULTS.items():
        function = getattr(binding, name)
        kind, struct = function.restype, function.restype.__name__
        data, size = _returned(function, place_first)
        declared = ctypes.sizeof(kind)
        *_, (last, *_) = kind._fields_
        used = getattr(kind, last).offset + getattr(kind, last).size
        if size is not None and not used <= size <= declared:
            return f"{struct} has {size} bytes in its library, but {used} in its declaration"
        values = kind.from_buffer_copy(data)
        for member, default in defaults.items():
            found = getattr(values, member, None)
            if found != default:
                return f"{struct}.{member} is {found} by default, not {default}"
    return ""


def _returned(function: Any, place_first: bool) -> tuple[bytes, int | None]:
    """Return the structure that a function returns, and the bytes that it writes, if seen."""
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    if not place_first:
        fields = [("room", ctypes.c_uint8 * _ROOM)]
        larger = type("larger", (function.restype,), {"_fields_": fields})
        return bytes(ctypes.CFUNCTYPE(larger)(address)()), None
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
    seen = []
    for filler in (b"\xa5", b"\x5a"):
        place = ctypes.create_string_buffer(filler * _ROOM, _ROOM)
        call(ctypes.addressof(place))
        seen.append(place.raw)
    one, other = seen
    return one, max((i for i in range(_ROOM) if one[i] == other[i]), default=-1) + 1
