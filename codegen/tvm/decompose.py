"""The decomposition that all backends share."""

from inferir.codegen.decompose import decompose

__all__ = ["decompose"]
