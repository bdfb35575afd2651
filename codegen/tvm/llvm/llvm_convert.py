"""Storage conversions, dot products of bf16 pairs and of bytes, and horizontal reductions."""

from __future__ import annotations

from collections.abc import Callable

from inferir.codegen.tvm.llvm.llvm_body import Body, helper, llvm_type


@helper("inf_bf16_to_f32", "h->f")
def _bf16_to_f32(b: Body, x: str) -> str:
    return b.floats(b.op("shl", "i", b.convert("zext", x, "h", "i"), b.const("i", 16)))


@helper("inf_f32_to_bf16", "f->h")
def _f32_to_bf16(b: Body, x: str) -> str:
    """Round to nearest even. With the native instruction denormal inputs become zero."""
    if "avx512bf16" in b.features:
        if b.lanes >= 4:
            return b.convert("bitcast", b.convert("fptrunc", x, "f", "B"), "B", "h")
        wide = _widen(b, x, "f")
        cut = b.emit(f"fptrunc <4 x float> {wide} to <4 x bfloat>")
        return _narrow(b, b.emit(f"bitcast <4 x bfloat> {cut} to <4 x i16>"), "h")
    bits = b.bits(x)
    odd = b.op("and", "i", b.op("lshr", "i", bits, b.const("i", 16)), b.const("i", 1))
    rounded = b.op("add", "i", b.op("add", "i", bits, odd), b.const("i", 0x7FFF))
    quiet = b.op("or", "i", bits, b.const("i", 0x400000))
    kept = b.select(b.fcmp("uno", x, x), quiet, rounded, "i")
    return b.convert("trunc", b.op("lshr", "i", kept, b.const("i", 16)), "i", "h")


@helper("inf_round_bf16", "f->f")
def _round_bf16(b: Body, x: str) -> str:
    """Round to bf16 precision, result as float32."""
    return b.call("inf_bf16_to_f32", b.call("inf_f32_to_bf16", x))


@helper("inf_join_bf16", "ff->i")
def _join_bf16(b: Body, first: str, rest: str) -> str:
    """Both vectors as bf16, one after the other: pair i is the i-th pair of the row that they form."""
    if "avx512bf16" in b.features and b.lanes == 16:
        name = "@llvm.x86.avx512bf16.cvtne2ps2bf16.512"
        b.declares.add(f"declare <32 x bfloat> {name}(<16 x float>, <16 x float>)")
        row = b.emit(f"call <32 x bfloat> {name}(<16 x float> {rest}, <16 x float> {first})")
        return b.emit(f"bitcast <32 x bfloat> {row} to <16 x i32>")
    low, high = b.call("inf_f32_to_bf16", first), b.call("inf_f32_to_bf16", rest)
    if b.lanes == 1:
        above = b.op("shl", "i", b.convert("zext", high, "h", "i"), b.const("i", 16))
        return b.op("or", "i", b.convert("zext", low, "h", "i"), above)
    kind, order = b.type("h"), ", ".join(f"i32 {i}" for i in range(2 * b.lanes))
    row = b.emit(f"shufflevector {kind} {low}, {kind} {high}, <{2 * b.lanes} x i32> <{order}>")
    return b.emit(f"bitcast <{2 * b.lanes} x i16> {row} to {b.type('i')}")


@helper("inf_dot_bf16", "fii->f")
def _dot_bf16(b: Body, acc: str, x: str, y: str) -> str:
    """acc + x[0] * y[0] + x[1] * y[1] per lane, for bf16 pairs x and y."""
    if "avx512bf16" in b.features:
        lanes = max(b.lanes, 4)
        if b.lanes < 4:
            acc, x, y = _widen(b, acc, "f"), _widen(b, x, "i"), _widen(b, y, "i")
        kind, pairs = f"<{lanes} x float>", f"<{2 * lanes} x bfloat>"
        name = f"@llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
        b.declares.add(f"declare {kind} {name}({kind}, {pairs}, {pairs})")
        x = b.emit(f"bitcast <{lanes} x i32> {x} to {pairs}")
        y = b.emit(f"bitcast <{lanes} x i32> {y} to {pairs}")
        r = b.emit(f"call {kind} {name}({kind} {acc}, {pairs} {x}, {pairs} {y})")
        return _narrow(b, r, "f") if b.lanes < 4 else r
    for opcode, operand in (("shl", 16), ("and", -65536)):
        shift = b.const("i", operand)
        x_half, y_half = (b.floats(b.op(opcode, "i", v, shift)) for v in (x, y))
        acc = b.fma(x_half, y_half, acc)
    return acc


@helper("inf_dot_u8", "fii->f")
def _dot_u8(b: Body, acc: str, x: str, w: str) -> str:
    """acc + x[0] * w[0] + … + x[3] * w[3] per lane, modulo 2**32, for four signed bytes x and four unsigned bytes w.

    The sum is an int32 whose bits travel as a float, like other accumulators.
    """
    total = b.bits(acc)
    if "avx512vnni" in b.features and b.lanes == 16:
        kind = "<16 x i32>"
        name = "@llvm.x86.avx512.vpdpbusd.512"
        b.declares.add(f"declare {kind} {name}({kind}, {kind}, {kind})")
        return b.floats(b.emit(f"call {kind} {name}({kind} {total}, {kind} {w}, {kind} {x})"))
    for byte in range(4):
        unsigned = b.op("and", "i", b.op("lshr", "i", w, b.const("i", 8 * byte)), b.const("i", 255))
        signed = b.op("ashr", "i", b.op("shl", "i", x, b.const("i", 24 - 8 * byte)), b.const("i", 24))
        total = b.op("add", "i", total, b.op("mul", "i", unsigned, signed))
    return b.floats(total)


@helper("inf_hsum", "f->F")
def _hsum(b: Body, x: str) -> str:
    """The sum of all lanes, upper half onto lower half repeatedly: a fixed order."""
    return _fold(b, x, lambda kind, p, q: b.emit(f"fadd {kind} {p}, {q}"))


@helper("inf_hmax", "f->F")
def _hmax(b: Body, x: str) -> str:
    """The largest lane (NaN lanes give an unspecified result)."""

    def larger(kind: str, p: str, q: str) -> str:
        test = b.emit(f"fcmp ogt {kind} {p}, {q}")
        flag = "i1" if kind == "float" else kind.replace("float", "i1")
        return b.emit(f"select {flag} {test}, {kind} {p}, {kind} {q}")

    return _fold(b, x, larger)


def _fold(b: Body, x: str, combine: Callable[[str, str, str], str]) -> str:
    lanes = b.lanes
    while lanes > 1:
        half = lanes // 2
        kind, undef = f"<{lanes} x float>", f"<{lanes} x float> poison"
        masks = (", ".join(f"i32 {i + at}" for i in range(half)) for at in (0, half))
        low, high = (b.emit(f"shufflevector {kind} {x}, {undef}, <{half} x i32> <{mask}>") for mask in masks)
        if half == 1:
            low, high = (b.emit(f"extractelement <1 x float> {v}, i32 0") for v in (low, high))
        x = combine("float" if half == 1 else f"<{half} x float>", low, high)
        lanes = half
    return x


def _widen(b: Body, x: str, letter: str) -> str:
    """One or two lanes as four; the new lanes are zero."""
    element = llvm_type(letter, 1)
    if b.lanes == 1:
        return b.emit(f"insertelement <4 x {element}> zeroinitializer, {element} {x}, i32 0")
    return b.emit(
        f"shufflevector <2 x {element}> {x}, <2 x {element}> zeroinitializer, <4 x i32> <i32 0, i32 1, i32 2, i32 3>"
    )


def _narrow(b: Body, x: str, letter: str) -> str:
    """The first one or two of four lanes."""
    element = llvm_type(letter, 1)
    if b.lanes == 1:
        return b.emit(f"extractelement <4 x {element}> {x}, i32 0")
    return b.emit(f"shufflevector <4 x {element}> {x}, <4 x {element}> poison, <2 x i32> <i32 0, i32 1>")
