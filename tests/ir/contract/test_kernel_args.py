"""Kernel arguments: told apart by type, and stored as they are."""

import msgspec
import pytest

from inferir.ir.contract.kernel_args import KernelArg, Of, Operand, Resident, Result, Workspace

ALL = (Operand(0), Operand(1), Result(0), Result(1), Workspace(), Workspace(64), Resident("k"), Of("attention", "k"))


def test_arguments_are_told_apart() -> None:
    assert len({*ALL}) == len(ALL)
    assert Operand(0) != Result(0)


@pytest.mark.parametrize("codec", [msgspec.json, msgspec.msgpack])
def test_arguments_are_stored_as_they_are(codec) -> None:
    assert codec.decode(codec.encode(ALL), type=tuple[KernelArg, ...]) == ALL


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'["pointer", 1]', type=KernelArg)
