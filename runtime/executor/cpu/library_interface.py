"""The C functions of a bucket's library (`inferir.ir.contract.abi`) as the host calls them."""

from __future__ import annotations

import ctypes
from typing import Any

from inferir.ir.errors import ArtifactError

_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "inferir_step": (ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p),
    "inferir_worker": (ctypes.c_void_p, ctypes.c_int32),
    "inferir_stop": (ctypes.c_void_p,),
}


def function(library: ctypes.CDLL, name: str) -> Any:
    """A function of the interface with its signature set. Calls release the interpreter lock.

    Raises `ArtifactError` if the library lacks it.
    """
    try:
        found = getattr(library, name)
    except AttributeError:
        raise ArtifactError(f"{library._name}: no function {name}; compile the model again") from None
    found.argtypes = _SIGNATURES[name]
    found.restype = ctypes.c_int32
    return found
