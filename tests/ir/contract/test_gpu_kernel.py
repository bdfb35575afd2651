"""Compiled GPU kernels as bytes."""

import msgspec
import pytest

from inferir.ir.contract.gpu_kernel import GpuKernel, GpuLibrary
from inferir.ir.errors import ArtifactError

KERNEL = GpuKernel(
    name="k",
    target="sm_90",
    image=b"\x7fELF\x00\xff",
    grid=("T", "2"),
    params=("*bf16", "*i32"),
    alignment=16,
    num_warps=4,
    num_ctas=1,
    warp_size=32,
    shared=1024,
    global_scratch_size=0,
    global_scratch_align=1,
    profile_scratch_size=0,
    profile_scratch_align=1,
    launch_pdl=False,
    launch_cooperative_grid=False,
    versions={"triton": "3.7.1"},
)
LIBRARY = GpuLibrary(kernels=(KERNEL, KERNEL))


def test_bytes_round_trip() -> None:
    assert GpuLibrary.from_bytes(LIBRARY.to_bytes()) == LIBRARY
    assert LIBRARY.to_bytes() == LIBRARY.to_bytes()


def test_damage_is_named() -> None:
    data = LIBRARY.to_bytes()
    for bad in (b"", data[:-3], data.replace(b"num_warps", b"num_wraps"), data.replace(b"*i32", b"\xff\xff\xff\xff")):
        with pytest.raises(ArtifactError, match="kernels/k is no library of GPU kernels"):
            GpuLibrary.from_bytes(bad, "kernels/k")
    later = msgspec.structs.replace(LIBRARY, format=2)
    with pytest.raises(ArtifactError, match="kernel format 2, expected 1; compile again"):
        GpuLibrary.from_bytes(later.to_bytes())
