"""Compiled GPU kernels as they lie in an artifact: device images and everything that a launch needs to know.

Launching: parameters are the pointers in order, then two 64-bit addresses (global scratch, profile scratch; 0 where
their size is 0); block size is warp_size · num_warps threads, grid size that of `grid` with the first axis times
num_ctas, dynamic shared memory `shared` bytes.
"""

from __future__ import annotations

import msgspec

from inferir.ir.errors import ArtifactError

FORMAT = 1


class GpuKernel(msgspec.Struct, frozen=True, kw_only=True):
    """One kernel.

    name: symbol in `image`; params: pointer types in order, such as `*bf16`; alignment: bytes that every pointer must
    be a multiple of; grid: programs per grid axis as dimensions (`ir.dims`) of the run-time counts; versions: of the
    tools that made it, by name.
    """

    name: str
    target: str
    image: bytes
    grid: tuple[str, ...]
    params: tuple[str, ...]
    alignment: int
    num_warps: int
    num_ctas: int
    warp_size: int
    shared: int
    global_scratch_size: int
    global_scratch_align: int
    profile_scratch_size: int
    profile_scratch_align: int
    launch_pdl: bool
    launch_cooperative_grid: bool
    versions: dict[str, str]


class GpuLibrary(msgspec.Struct, frozen=True, kw_only=True):
    """The kernels of a bucket, in dispatch order."""

    format: int = FORMAT
    kernels: tuple[GpuKernel, ...]

    def to_bytes(self) -> bytes:
        """The library as one MessagePack document."""
        return msgspec.msgpack.encode(self)

    @staticmethod
    def from_bytes(data: bytes, source: str = "library") -> GpuLibrary:
        """Read what `to_bytes` wrote. Raises `ArtifactError` naming `source` if it is damaged or of another format."""
        try:
            library = msgspec.msgpack.decode(data, type=GpuLibrary)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise ArtifactError(f"{source} is no library of GPU kernels: {error}") from None
        if library.format != FORMAT:
            raise ArtifactError(f"{source} has kernel format {library.format}, expected {FORMAT}; compile again")
        return library
