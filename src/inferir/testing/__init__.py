"""Checks for whoever adds a pass, an op, a weight format or a backend: `docs/testing.md`.

    from inferir.testing import check_backend, check_format, check_op, check_pass

Each returns a report if nothing is wrong and raises `CheckFailedError` with the smallest case that it found otherwise.
Needs `pip install 'inferir[testing,compile]'`.
"""

from inferir.testing.check_backend import check_backend
from inferir.testing.check_format import check_format
from inferir.testing.check_op import check_op
from inferir.testing.check_pass import check_pass
from inferir.testing.failures import CheckFailedError

__all__ = ["CheckFailedError", "check_backend", "check_format", "check_op", "check_pass"]
