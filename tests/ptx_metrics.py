"""What a compiled kernel costs, read from its image with the tools inside the Triton wheel; no GPU needed."""

from __future__ import annotations

import collections
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

from inferir.ir.errors import CodegenError
from inferir.ir.system.held_folder import scratch_folder

_USAGE = re.compile(r"\b(REG|STACK|SHARED|LOCAL):(\d+)")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)


@dataclass(frozen=True)
class Usage:
    """registers: per thread; stack: bytes of local memory per thread, 0 if nothing spills; shared: bytes per block."""

    registers: int
    stack: int
    shared: int


def usage(image: bytes) -> Usage:
    """What a cubin's kernel needs. Raises `CodegenError` if the tool cannot read it."""
    found = {key: int(n) for key, n in _USAGE.findall(_run(triton.knobs.nvidia.cuobjdump, "-res-usage", image))}
    if not found:
        raise CodegenError("the image holds no kernel")
    return Usage(found["REG"], found["STACK"] + found["LOCAL"], found["SHARED"])


@dataclass(frozen=True)
class Opcodes:
    """How often every SASS instruction occurs in a kernel."""

    counts: Mapping[str, int]

    def count(self, *prefixes: str) -> int:
        """Instructions whose opcode starts with one of `prefixes`."""
        return sum(n for name, n in self.counts.items() if name.startswith(prefixes))


def opcodes(image: bytes) -> Opcodes:
    """The instructions of a cubin's kernel (a second per kernel). Raises `CodegenError` if the tool cannot read it."""
    found = collections.Counter(_INSTRUCTION.findall(_run(triton.knobs.nvidia.nvdisasm, "-c", image)))
    if not found:
        raise CodegenError("the image holds no instructions")
    return Opcodes(found)


def _run(tool: Any, option: str, image: bytes) -> str:
    with scratch_folder("triton") as folder:
        path = Path(folder.address, "kernel.cubin")
        path.write_bytes(image)
        done = subprocess.run(
            (tool.path, option, str(path)),
            capture_output=True,
            text=True,
            check=False,
            pass_fds=(folder.descriptor,),
        )
    if done.returncode:
        raise CodegenError(f"{Path(tool.path).name}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout
