"""What checks say without their libraries, and how tensors are compared."""

import subprocess
import sys

import pytest
import torch

from inferir.ir.errors import MissingExtraError
from inferir.ir.system import extras
from inferir.testing import check_backend, check_format, check_op, check_pass
from inferir.testing.compare import compare, distance


@pytest.mark.parametrize("check", [check_pass, check_op, check_format, check_backend])
def test_a_check_without_hypothesis_says_what_to_install(check, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setitem(extras.LIBRARIES, "testing", ("no_such_library",))
    with pytest.raises(MissingExtraError) as found:
        check("cse")
    need = f"{check.__name__} needs no_such_library, which is not installed: pip install 'inferir[testing]'"
    assert str(found.value) == need


def test_the_checks_are_imported_without_their_libraries() -> None:
    code = (
        "import sys; import inferir.testing;"
        "print(sorted({'torch', 'hypothesis', 'transformers', 'tvm', 'triton'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_worst_place_is_named() -> None:
    want = torch.tensor([[1.0, 2.0], [float("nan"), float("inf")]])
    assert compare(want, want) is None
    found = compare(torch.tensor([[1.5, 2.0], [float("nan"), 3.0]]), want, relative=0.1)
    assert found is not None
    assert str(found) == "3.0 instead of inf at [1, 1]: off by inf, allowed 0"
    found = compare(torch.tensor([1.5, 2.0]), torch.tensor([1.0, 2.0]), relative=0.1)
    assert str(found) == "1.5 instead of 1.0 at [0]: off by 0.5, allowed 0.1"
    assert compare(torch.tensor([1.5]), torch.tensor([1.0]), relative=0.1, scale=5.0) is None
    tiny = torch.tensor([1e-39], dtype=torch.bfloat16)
    assert compare(torch.zeros_like(tiny), tiny) is not None
    assert compare(torch.zeros_like(tiny), tiny, flushes=True) is None


def test_distances_are_relative_to_what_is_wanted() -> None:
    assert distance(torch.tensor([3.0, 4.5]), torch.tensor([3.0, 4.0])) == pytest.approx(0.1)
    assert distance(torch.tensor([float("inf")]), torch.tensor([1.0])) == float("inf")
    assert distance(torch.tensor([float("nan")]), torch.tensor([float("nan")])) == 0.0
