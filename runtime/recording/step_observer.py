"""Who is told how a step goes: nobody, unless somebody records.

A step tells its observer when it begins, and when each of its phases ends. The observer that does nothing costs some
calls of empty functions per step, well below a microsecond.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferir.runtime.executor.base import Step
from inferir.runtime.requests.request import Scheduled

PHASES = ("schedule", "prepare", "constrain", "submit", "wait", "complete", "deliver", "record")
"""The phases of a step, in their order. schedule: who gets how many tokens. prepare: the inputs of the step. constrain:
what grammars allow, and the rows of prompt scores. submit: hand the step to the device. wait: until it is done; on a
CPU the step program runs here. complete: note what was computed. deliver: give the tokens to their requests. record:
what the recorder itself takes at the step's end."""


class StepObserver:
    """Does nothing with what it is told."""

    def begin(self) -> None:
        """A step begins."""

    def planned(self, scheduled: Sequence[Scheduled]) -> None:
        """The phase "schedule" ends; these requests take part."""

    def ends(self, phase: str) -> None:
        """A phase of the step ends, and the next one begins."""

    def end(self, step: Step) -> None:
        """The last phase, and with it the step, ends. A step that computed nothing has no end."""


NOBODY = StepObserver()
