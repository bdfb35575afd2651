"""Installed libraries against the ranges that the package's own metadata states."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

_REQUIREMENT = re.compile(r"([\w.-]+)\s*([^;]*)(?:;(.*))?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>|~=)\s*([\d.]+)")


@dataclass(frozen=True)
class Requirement:
    """A distribution that Inferir needs; `extra`: only with that extra. installed: its version, None if it is not."""

    name: str
    bounds: tuple[tuple[str, str], ...]
    extra: str
    installed: str | None

    @property
    def spec(self) -> str:
        """As `pip install` takes it."""
        return self.name + ",".join(f"{operator}{version}" for operator, version in self.bounds)

    @property
    def fits(self) -> bool:
        """Whether the installed version is within the range."""
        return self.installed is not None and all(_holds(self.installed, *bound) for bound in self.bounds)


def requirements(distribution: str = "inferir") -> Iterator[Requirement]:
    """What `distribution` requires. Raises `PackageNotFoundError` if it is not installed as a distribution."""
    for text in metadata.requires(distribution) or ():
        found = _REQUIREMENT.match(text)
        assert found is not None, text
        extra = _EXTRA.search(found[3] or "")
        bounds = tuple((operator, version) for operator, version in _BOUND.findall(found[2]))
        yield Requirement(found[1], bounds, extra[1] if extra else "", installed_version(found[1]))


def installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def in_range(version: str, spec: str) -> bool:
    """Whether a version is within a range such as ">=3.11"."""
    return all(_holds(version, operator, bound) for operator, bound in _BOUND.findall(spec))


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: 2.11.0+cpu is (2, 11)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    numbers = [int(n) for n in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _holds(version: str, operator: str, bound: str) -> bool:
    have, limit = release(version), release(bound)
    match operator:
        case ">=":
            return have >= limit
        case "<=":
            return have <= limit
        case "<":
            return have < limit
        case ">":
            return have > limit
        case "==":
            return have == limit
        case "!=":
            return have != limit
    fixed = tuple(int(n) for n in bound.split("."))[:-1]  # ~=
    return have >= limit and have[: len(fixed)] == fixed
