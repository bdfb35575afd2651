"""Requests in the order in which they are served."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from inferir.runtime.requests.request import Request


class RequestQueue:
    """Requests by id, sorted by (priority, order); the first goes first, the last gives way first."""

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._ordered: list[Request] = []
        self._by_id: dict[str, Request] = {}

    def _key(self, request: Request) -> tuple[int, int, str]:
        return (request.priority if self._by_priority else 0, request.order, request.id)

    def add(self, request: Request) -> None:
        bisect.insort(self._ordered, request, key=self._key)
        self._by_id[request.id] = request

    def pop(self, request_id: str) -> Request | None:
        """Take a request out; None if it is not here."""
        request = self._by_id.pop(request_id, None)
        if request is not None:
            del self._ordered[bisect.bisect_left(self._ordered, self._key(request), key=self._key)]
        return request

    @property
    def first(self) -> Request:
        return self._ordered[0]

    @property
    def last(self) -> Request:
        return self._ordered[-1]

    def get(self, request_id: str) -> Request | None:
        return self._by_id.get(request_id)

    def values(self) -> list[Request]:
        """Requests in order; a copy."""
        return self._ordered.copy()

    def __iter__(self) -> Iterator[str]:
        return (request.id for request in self._ordered)

    def __len__(self) -> int:
        return len(self._ordered)
