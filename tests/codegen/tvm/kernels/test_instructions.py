"""What the code generator makes of hot loops: the instructions that matter are there, and no register is spilled.

Speed itself is not tested here; a lost vector instruction or a spill is what would lose it.
"""

import re
from functools import cache

import pytest
from store_epilogue import store_epilogue

from inferir.codegen.tunables import Product
from inferir.codegen.tvm.build.build_module import compile_object
from inferir.codegen.tvm.driver.step_driver import bucket_module_source
from inferir.codegen.tvm.kernels.argmax_parts import argmax_shape
from inferir.codegen.tvm.kernels.argmax_region import argmax_kernels
from inferir.codegen.tvm.kernels.attention import attention_kernels
from inferir.codegen.tvm.kernels.matmul import MatmulTile, choose_tile, matmul_kernel
from inferir.codegen.tvm.kernels.microkernel import micro_kernel
from inferir.codegen.tvm.source import TaskKernel
from inferir.ir.contract.kv_reads import FullAttention
from inferir.ir.contract.target import Target

BF16, V4, V3 = "x86-64-v4+bf16+vnni", "x86-64-v4", "x86-64-v3"
_LABEL = re.compile(r"^(\.LBB\w+):")


def _loops(assembly: str) -> list[list[str]]:
    """The instructions of every loop that is one basic block."""
    found: list[list[str]] = []
    label, block = "", []
    for line in assembly.splitlines():
        text = line.split("#")[0].strip()
        if match := _LABEL.match(text):
            label, block = match[1], []
        elif text and not text.startswith("."):
            block.append(text)
            if text.startswith("j") and text.split()[-1] == label:
                found.append(block)
    return found


def _hot(kernel: TaskKernel, target: str, instruction: str) -> list[list[str]]:
    module = compile_object(bucket_module_source([kernel]), Target.named(target))
    return [b for b in _loops(module.inspect_source("asm")) if any(instruction in line for line in b)]


def _spills(block: list[str]) -> list[str]:
    """Vector registers that go to the stack and back."""
    return [line for line in block if "(%rsp)" in line and re.search(r"%[xyz]mm", line)]


@cache
def _matmul(target: str, dtype: str, rows: int) -> TaskKernel:
    epilogue, extra = store_epilogue("f32", 256)
    features = frozenset(Target.named(target).features)
    tile = MatmulTile(rows, rows, 1)
    return matmul_kernel(
        "product", Product(576, 256, dtype, 1, 1, 1), tile=tile, features=features, epilogue=epilogue, extra=extra
    )


@pytest.mark.parametrize("rows", range(1, 7))
def test_a_bf16_tile_multiplies_with_native_dot_products_in_registers(rows: int) -> None:
    vectors = micro_kernel("panels", "bf16").tile_vectors(rows, frozenset(Target.named(BF16).features))
    loops = _hot(_matmul(BF16, "bf16", rows), BF16, "vdpbf16ps")
    assert loops
    for block in loops:
        assert not _spills(block)
    # Each variant of the tile, and LLVM's unrolling of it, does whole steps: rows x vectors products each.
    products = {sum("vdpbf16ps" in line and "%zmm" in line for line in block) for block in loops}
    assert any(count and count % (rows * vectors) == 0 for count in products)


def test_tiles_of_many_rows_ask_for_the_weights_that_come_next() -> None:
    epilogue, extra = store_epilogue("f32", 256)
    features = frozenset(Target.named(BF16).features)
    tile = choose_tile(Product(576, 256, "bf16", 1, 1, 64), features)
    kernel = matmul_kernel(
        "product", Product(576, 256, "bf16", 1, 1, 1), tile=tile, features=features, epilogue=epilogue, extra=extra
    )
    loops = _hot(kernel, BF16, "vdpbf16ps")
    assert len(loops) >= tile.rows
    for block in loops:
        assert any("prefetcht1" in line for line in block)
        assert not _spills(block)
    few = _hot(_matmul(BF16, "bf16", 4), BF16, "vdpbf16ps")
    assert not any("prefetch" in line for block in few for line in block)


@pytest.mark.parametrize(
    ("target", "dtype", "instruction", "register"),
    [(V4, "f32", "vfmadd", "%zmm"), (V3, "f32", "vfmadd", "%ymm"), (V4, "bf16", "vfmadd", "%zmm")],
)
def test_tall_tiles_of_every_target_stay_in_registers(target: str, dtype: str, instruction: str, register: str) -> None:
    features = frozenset(Target.named(target).features)
    rows = choose_tile(Product(576, 256, dtype, 1, 1, 2048), features).rows
    loops = _hot(_matmul(target, dtype, rows), target, instruction)
    assert loops
    for block in loops:
        assert not _spills(block)
        assert all(register in line for line in block if instruction in line)


@pytest.mark.parametrize(("rows", "tiles"), [(1, {8}), (4, {4, 8, 12, 16}), (64, {4, 8, 12, 16, 20, 24})])
def test_the_prefilter_multiplies_bytes_in_registers(rows: int, tiles: set[int]) -> None:
    """Tiles of 1 to 6 rows by 4 vectors; a single row has its low and high bytes as two."""
    features = frozenset(Target.named(BF16).features)
    prefilter = argmax_kernels("argmax", argmax_shape(576, 2048, 2048, "bf16", rows, features), features)[1]
    loops = _hot(prefilter, BF16, "vpdpbusd")
    assert loops
    for block in loops:
        assert not _spills(block)
        products = sum("vpdpbusd" in line and "%zmm" in line for line in block)
        assert any(products % tile == 0 for tile in tiles)
    ahead = sum(any("prefetch" in line for line in block) for block in loops)
    assert ahead >= 6 if rows > 6 else ahead == 0


@cache
def _attention() -> TaskKernel:
    attend, _ = attention_kernels(
        "attention",
        heads=9,
        kv_heads=3,
        head_dim=64,
        v_dim=64,
        block_size=32,
        reads=FullAttention(),
        softcap=0.0,
        scale=0.125,
        dtype="bf16",
        q_row_stride=576,
        out_row_stride=576,
        tile_tokens=16,
        max_blocks_per_seq=64,
        features=frozenset(Target.named(BF16).features),
    )
    return attend


def test_attention_multiplies_with_native_dot_products_in_registers() -> None:
    loops = _hot(_attention(), BF16, "vdpbf16ps")
    # Scores and weighted sums; two products or fewer in a loop are the sum of weights.
    assert sum(sum("vdpbf16ps" in line for line in block) > 2 for block in loops) >= 2
    for block in loops:
        assert not _spills(block)
    # Tiles of one token, three rows here, ask for a line of what comes next for each line that they load.
    ahead = [block for block in loops if any("prefetcht1" in line for line in block)]
    assert len(ahead) == 2
    for block in ahead:
        lines = sum("prefetcht1" in line for line in block)
        assert lines > 0
        assert 3 * lines == sum("vdpbf16ps" in line for line in block)


def test_softmax_weights_are_made_two_registers_at_a_time_without_spills() -> None:
    loops = _hot(_attention(), BF16, "vscalefps")
    joined = [block for block in loops if any("vcvtne2ps2bf16" in line for line in block)]
    assert joined
    for block in joined:
        count = {name: sum(line.startswith(name) for line in block) for name in ("vscalefps", "vreduceps", "vdpbf16ps")}
        assert count["vscalefps"] == count["vreduceps"] == 2 * count["vdpbf16ps"]
        assert not _spills(block)


def test_a_spill_would_be_seen() -> None:
    block = ["vmovaps\t%zmm3, 64(%rsp)", "vdpbf16ps\t(%rdi){1to16}, %zmm1, %zmm0", "movq\t8(%rsp), %rax"]
    assert _spills(block) == block[:1]
