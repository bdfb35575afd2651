"""hypothesis, driven from a function: the smallest example that fails, reproducible by its seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferir.testing.failures import CheckFailedError


def smallest_failure(
    check: Callable[[Any], None], examples_of: Any, examples: int, seed: int
) -> CheckFailedError | None:
    """Call `check` with up to `examples` examples of a strategy; the failure of the smallest one, or None.

    Nothing is stored on disk: the same seed gives the same examples.
    """
    import hypothesis

    last: list[CheckFailedError] = []

    def run(example: Any) -> None:
        try:
            check(example)
        except CheckFailedError as error:
            last[:] = [error]
            raise

    settings = hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )
    test: Callable[[], None] = hypothesis.seed(seed)(settings(hypothesis.given(examples_of)(run)))  # type: ignore[no-untyped-call]
    try:
        test()
    except CheckFailedError:
        return CheckFailedError(f"{last[0]}\nseed: {seed}", last[0].graph)
    return None
