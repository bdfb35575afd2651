"""Whether this processor can run an artifact's kernels."""

from __future__ import annotations

from inferir.ir.contract.target import Target, host_features, missing_features
from inferir.ir.errors import TargetError


def check_features(target: Target, features: frozenset[str] | None = None) -> None:
    """Raise `TargetError` unless a processor with these feature flags (default: this machine's) can run the kernels."""
    missing = missing_features(target, host_features() if features is None else features)
    if missing:
        raise TargetError(
            f"the artifact was compiled for {target.name}, but this processor lacks {', '.join(missing)}; "
            "compile the model again with --target host on this machine or with an older target"
        )
