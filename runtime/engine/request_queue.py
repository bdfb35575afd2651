"""Requests in the order in which they are served."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from inferir.runtime.requests.request import Request


class RequestQueue:
    """Requests by id, sorted by (priority, order); the first goes first, the last gives way first."""

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._keys: list[tuple[int, int, str]] = []
        self._requests: dict[str, Request] = {}
        self._ordered: list[Request] | None = []  # None after a change

    def key(self, request: Request) -> tuple[int, int, str]:
        return (request.priority if self._by_priority else 0, request.order, request.id)

    def add(self, request: Request) -> None:
        bisect.insort(self._keys, self.key(request))
        self._requests[request.id] = request
        self._ordered = None

    def pop(self, request_id: str) -> Request | None:
        """Take a request out; None if it is not here."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            del self._keys[bisect.bisect_left(self._keys, self.key(request))]
            self._ordered = None
        return request

    @property
    def first(self) -> Request:
        return self._requests[self._keys[0][2]]

    @property
    def last(self) -> Request:
        return self._requests[self._keys[-1][2]]

    def get(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    def values(self) -> list[Request]:
        """Requests in order; a copy."""
        if self._ordered is None:
            self._ordered = [self._requests[k[2]] for k in self._keys]
        return self._ordered.copy()

    def __iter__(self) -> Iterator[str]:
        return (k[2] for k in self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._requests
