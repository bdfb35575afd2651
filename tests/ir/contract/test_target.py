"""Target records and what a machine lacks."""

import json
from unittest.mock import patch

import pytest

from inferir.ir.contract.target import TARGETS, Target, host_features, missing_features
from inferir.ir.errors import TargetError

FULL = (
    "processor\t: 0\nflags\t\t: fpu sse4_2 popcnt avx avx2 bmi1 bmi2 f16c fma abm movbe avx512f avx512bw avx512cd "
    "avx512dq avx512vl avx512_bf16 avx512_vnni\nbugs\t\t: none\n"
)


@pytest.mark.parametrize("name", ["cuda:sm_90", "cpu:x86-64-v3"])
def test_the_kind_may_stand_before_a_name(name: str) -> None:
    assert Target.named(name) is TARGETS[name.partition(":")[2]]


@pytest.mark.parametrize("name", ["cpu:sm_90", "sm_10", "cuda:", "rocm:gfx942"])
def test_an_unknown_target_is_an_error_that_lists_the_known_ones(name: str) -> None:
    with pytest.raises(TargetError, match=f"unknown target '{name}'; known: host, .*, cuda:sm_90, cuda:sm_80"):
        Target.named(name)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_records_round_trip_through_json(name: str) -> None:
    target = Target.named(name)
    assert Target.from_record(json.loads(json.dumps(target.record()))) == target
    assert target.name == name


def test_missing_features_are_told_in_llvm_spelling() -> None:
    best = TARGETS["x86-64-v4+bf16+vnni"]
    assert missing_features(best, host_features(FULL)) == []
    assert missing_features(best, host_features(FULL.replace("avx512_bf16", "").replace("abm", ""))) == [
        "lzcnt",
        "avx512bf16",
    ]
    assert missing_features(TARGETS["x86-64-v3"], frozenset()) == list(TARGETS["x86-64-v3"].features)
    assert best.has("avx512vnni")
    assert not TARGETS["x86-64-v4"].has("avx512vnni")


@pytest.mark.parametrize(
    ("removed", "expected"),
    [((), "x86-64-v4+bf16+vnni"), (("avx512_vnni",), "x86-64-v4"), (("avx512_bf16", "avx512vl"), "x86-64-v3")],
)
def test_the_host_gets_the_best_target_it_can_run(removed: tuple[str, ...], expected: str) -> None:
    have = host_features(FULL) - set(removed)
    with patch("inferir.ir.contract.target.host_features", lambda: have):
        assert Target.named("host").name == expected


def test_a_host_without_any_target_is_told_what_is_needed() -> None:
    with (
        patch("inferir.ir.contract.target.host_features", frozenset),
        pytest.raises(TargetError, match="x86-64-v3 is needed"),
    ):
        Target.host()


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(TargetError, match=r"unknown target 'z80'; known: host, x86-64-v4"):
        Target.named("z80")


def test_cpuinfo_without_flags_has_none() -> None:
    assert host_features("processor: 0\n") == frozenset()
