"""Targets by name: ours, and those that backends of other distributions know."""

from __future__ import annotations

import pytest
from plugin_distributions import Plugged

from inferir.codegen.backends import BACKENDS, backend_for, target_named
from inferir.ir.contract.target import Target
from inferir.ir.errors import TargetError

CODE = """
from inferir.ir.contract.target import Target
class Backend:
    name, suffix = "fpga", ".bit"
    targets = {"small": Target("fpga", "small", "small")}
BACKEND = Backend()
"""


def test_a_backend_from_outside_brings_targets_of_its_kind(plugged: Plugged) -> None:
    plugged([BACKENDS], "acme", CODE, backends={"fpga": "BACKEND", "lost": "LOST"})
    target = target_named("fpga:small")
    assert (target.kind, target.name, backend_for(target).name) == ("fpga", "small", "fpga")
    with pytest.raises(TargetError, match=r"unknown target 'fpga:big'; .* of kind 'fpga' knows: fpga:small"):
        target_named("fpga:big")
    with pytest.raises(
        TargetError, match=r"backend for targets of kind 'lost' of acme 1\.5 is not usable: AttributeErr"
    ):
        target_named("lost:any")
    with pytest.raises(TargetError, match=r"target 'lost:any': .* of acme 1\.5, is left out: AttributeError"):
        target_named("lost:any")  # known by now


def test_our_own_targets_need_no_look_at_others() -> None:
    assert target_named("x86-64-v3") == target_named("cpu:x86-64-v3") == Target.named("x86-64-v3")
    with pytest.raises(TargetError, match="unknown target 'fpga:small'; known: host"):
        target_named("fpga:small")
