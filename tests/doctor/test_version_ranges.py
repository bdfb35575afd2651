"""Versions against ranges, and the package's own metadata."""

from __future__ import annotations

import pytest

from inferir.doctor.version_ranges import in_range, release, requirements


@pytest.mark.parametrize(
    ("version", "spec", "fits"),
    [
        ("2.11.0+cpu", ">=2.11", True),
        ("2.9.1", ">=2.11", False),
        ("1.10", "<2,>=1.9", True),
        ("2.0", "<2,>=1.9", False),
        ("0.27.0.post1", ">=0.27", True),
        ("3.0.0", "==3", True),
        ("3.1", "!=3.1", False),
        ("1.4.9", "~=1.4.2", True),
        ("1.5", "~=1.4.2", False),
        ("5", "<=5.0,>4.9", True),
    ],
)
def test_ranges(version: str, spec: str, fits: bool) -> None:
    assert in_range(version, spec) is fits


def test_release_of_odd_versions() -> None:
    assert [release(v) for v in ("1.0.0", "nightly", "22.1rc1")] == [(1,), (), (22, 1)]


def test_the_package_states_its_needs() -> None:
    found = {r.name: r for r in requirements()}
    assert (found["torch"].extra, found["msgspec"].extra) == ("compile", "")
    assert found["triton"].extra == "compile"  # behind a marker for the platform
    assert found["llguidance"].spec in ("llguidance<2,>=1.9", "llguidance>=1.9,<2")
    assert all(r.fits for r in found.values() if r.extra in ("", "compile"))
