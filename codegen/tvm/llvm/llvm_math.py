"""Vector math helpers: accurate to a few float32 rounding steps, without library calls, in every lane count.

Polynomial coefficients are minimax fits (weighted for relative error) of the functions named beside them. NaN inputs
give NaN unless said otherwise.
"""

from __future__ import annotations

import math
from functools import partial

from inferir.codegen.tvm.llvm.llvm_body import Body, helper

_INF = math.inf
MAGIC = 12582912.0  # 1.5 * 2**23: adding it rounds a float below 2**22 to an integer held in the low mantissa bits
MAGIC_BITS = 0x4B400000
_LN2_HIGH = 0.693145751953125  # 16 leading bits, so that n * _LN2_HIGH is exact
_LN2_LOW = 1.428606765330187e-06


helper("inf_fma", "fff->f")(Body.fma)


@helper("inf_where", "fff->f")
def _where(b: Body, mask: str, x: str, y: str) -> str:
    """x where the mask is not zero, else y."""
    return b.select(b.fcmp("une", mask, b.const("f", 0.0)), x, y)


@helper("inf_vmax", "ff->f")
def _vmax(b: Body, x: str, y: str) -> str:
    """The larger one; the second argument if either is NaN (one instruction)."""
    return b.select(b.fcmp("ogt", x, y), x, y)


@helper("inf_max", "ff->f")
def _max(b: Body, x: str, y: str) -> str:
    """The larger one; NaN if either is NaN."""
    larger = b.select(b.fcmp("ogt", x, y), x, y)
    return b.select(b.fcmp("uno", x, x), x, larger)


@helper("inf_min", "ff->f")
def _min(b: Body, x: str, y: str) -> str:
    """The smaller one; NaN if either is NaN."""
    smaller = b.select(b.fcmp("olt", x, y), x, y)
    return b.select(b.fcmp("uno", x, x), x, smaller)


@helper("inf_abs", "f->f")
def _abs(b: Body, x: str) -> str:
    return b.intrinsic("fabs", "f", x)


@helper("inf_sqrt", "f->f")
def _sqrt(b: Body, x: str) -> str:
    return b.intrinsic("sqrt", "f", x)


@helper("inf_rsqrt", "f->f")
def _rsqrt(b: Body, x: str) -> str:
    return b.fdiv(b.const("f", 1.0), b.intrinsic("sqrt", "f", x))


@helper("inf_exp", "f->f")
def _exp(b: Body, x: str) -> str:
    """exp within 2e-7 relative; overflow gives inf, -inf gives 0, small results are exact denormals."""
    # Clamped so that |n| <= 151: comparisons are ordered so that NaN passes through.
    low, high = b.const("f", -104.0), b.const("f", 89.0)
    x = b.select(b.fcmp("olt", x, low), low, x)
    x = b.select(b.fcmp("ogt", x, high), high, x)
    t = b.fma(x, b.const("f", 1 / math.log(2)), b.const("f", MAGIC))
    n = b.fsub(t, b.const("f", MAGIC))
    f = b.fma(n, b.const("f", -_LN2_HIGH), x)
    f = b.fma(n, b.const("f", -_LN2_LOW), f)
    q = [0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.00836874544620514, 0.001381453825160861]
    p = b.horner(f, [1.0, 1.0, *q])
    if _has_scaling(b):
        return _scale(b, p, n)
    # 2**n as a product of two normal numbers, so that the result may overflow or be denormal.
    k = b.op("sub", "i", b.bits(t), b.const("i", MAGIC_BITS))
    half = b.op("ashr", "i", k, b.const("i", 1))
    rest = b.op("sub", "i", k, half)
    for part in (half, rest):
        power = b.op("shl", "i", b.op("add", "i", part, b.const("i", 127)), b.const("i", 23))
        p = b.fmul(p, b.floats(power))
    return p


def _has_scaling(b: Body) -> bool:
    return "avx512dq" in b.features and b.lanes == 16


def _scale(b: Body, x: str, n: str) -> str:
    """x * 2**floor(n), rounded once, in one instruction (if `_has_scaling`)."""
    kind = b.type("f")
    name = "@llvm.x86.avx512.mask.scalef.ps.512"
    b.declares.add(f"declare {kind} {name}({kind}, {kind}, {kind}, i16, i32)")
    return b.emit(f"call {kind} {name}({kind} {x}, {kind} {n}, {kind} {x}, i16 -1, i32 4)")


def _fraction(b: Body, x: str) -> str:
    """x - floor(x), 0 for infinities, in one instruction (if `_has_scaling`)."""
    kind = b.type("f")
    name = "@llvm.x86.avx512.mask.reduce.ps.512"
    b.declares.add(f"declare {kind} {name}({kind}, i32, {kind}, i16, i32)")
    return b.emit(f"call {kind} {name}({kind} {x}, i32 1, {kind} {x}, i16 -1, i32 4)")


@helper("inf_exp2_neg", "f->f")
def _exp2_neg(b: Body, x: str) -> str:
    """2**x for x <= 0 within 2e-7 relative, 0 below -126 (also for -inf): the cheap form that softmax needs."""
    c = [0.6931471824645996, 0.24022647738456726, 0.05550331994891167, 0.00961843878030777, 0.001339900423772633]
    return _exp2_of_negative(b, x, [1.0, *c, 0.00015353257185779512])


@helper("inf_exp2_weight", "f->f")
def _exp2_weight(b: Body, x: str) -> str:
    """2**x for x <= 0 within 1e-4 relative, 0 far below (also for -inf): softmax weights that are stored as bf16."""
    if _has_scaling(b):
        c = [0.9999251961708069, 0.6958335041999817, 0.22606730461120605, 0.07802441716194153]
        return _scale(b, b.horner(_fraction(b, x), c), x)
    return _exp2_of_negative(b, x, [0.9999280729173707, 0.6932609864391124, 0.2426111327916374, 0.05517166876298003])


def _exp2_of_negative(b: Body, x: str, coefficients: list[float]) -> str:
    """2**x for x <= 0, with the polynomial for what is left beside an integer; 0 below -126."""
    low = b.const("f", -126.0)
    kept = b.fcmp("uge", x, low)
    x = b.select(b.fcmp("olt", x, low), low, x)
    # The exponent's bias rides in the magic number: the low bits of t are n + 127, the exponent field of 2**n.
    magic = b.const("f", MAGIC + 127.0)
    t = b.fadd(x, magic)
    f = b.fsub(x, b.fsub(t, magic))
    p = b.horner(f, coefficients)
    scaled = b.fmul(p, b.floats(b.op("shl", "i", b.bits(t), b.const("i", 23))))
    return b.select(kept, scaled, b.const("f", 0.0))


@helper("inf_log", "f->f")
def _log(b: Body, x: str) -> str:
    """Natural logarithm within 2e-7 relative; 0 gives -inf, negative numbers NaN."""
    tiny = b.fcmp("olt", x, b.const("f", 2.0**-126))
    scaled = b.select(tiny, b.fmul(x, b.const("f", 2.0**23)), x)
    bits = b.bits(scaled)
    # Split as m * 2**e with m in [sqrt(1/2), sqrt(2)): 0x3F3504F3 is the bit pattern of sqrt(1/2).
    shifted = b.op("sub", "i", bits, b.const("i", 0x3F3504F3))
    e = b.op("ashr", "i", shifted, b.const("i", 23))
    m = b.floats(b.op("sub", "i", bits, b.op("shl", "i", e, b.const("i", 23))))
    e = b.op("sub", "i", e, b.select(tiny, b.const("i", 23), b.const("i", 0), "i"))
    n = b.convert("sitofp", e, "i", "f")
    f = b.fsub(m, b.const("f", 1.0))
    s = b.fmul(f, f)
    c = [0.3333331346511841, -0.25000008940696716, 0.2000211924314499, -0.1666799634695053, 0.14219550788402557]
    p = b.horner(f, [*c, -0.12405592203140259, 0.11888177692890167, -0.1167563870549202, 0.06746591627597809])
    low = b.fma(n, b.const("f", _LN2_LOW), b.fmul(p, b.fmul(f, s)))
    low = b.fma(s, b.const("f", -0.5), low)
    r = b.fma(n, b.const("f", _LN2_HIGH), b.fadd(low, f))
    r = b.select(b.fcmp("oeq", x, b.const("f", _INF)), x, r)
    r = b.select(b.fcmp("oeq", x, b.const("f", 0.0)), b.const("f", -_INF), r)
    return b.select(b.fcmp("ult", x, b.const("f", 0.0)), b.const("f", math.nan), r)


@helper("inf_log1p", "f->f")
def _log1p(b: Body, x: str) -> str:
    """log(1 + x) within 4e-7 relative; -1 gives -inf, less gives NaN."""
    one = b.const("f", 1.0)
    u = b.fadd(x, one)
    # What rounding 1 + x lost, put back to first order.
    lost = b.fsub(x, b.fsub(u, one))
    log = b.call("inf_log", u)
    r = b.fadd(log, b.fdiv(lost, u))
    exact = b.emit(f"or {b.type('b')} {b.fcmp('oeq', u, b.const('f', _INF))}, {b.fcmp('oeq', u, b.const('f', 0.0))}")
    r = b.select(exact, log, r)
    return b.select(b.fcmp("oeq", u, one), x, r)


@helper("inf_softplus", "f->f")
def _softplus(b: Body, x: str) -> str:
    """log(1 + exp(x))."""
    z = b.call("inf_exp", b.emit(f"fneg {b.type('f')} {b.intrinsic('fabs', 'f', x)}"))
    zero = b.const("f", 0.0)
    positive = b.select(b.fcmp("olt", x, zero), zero, x)
    return b.fadd(positive, b.call("inf_log1p", z))


@helper("inf_sigmoid", "f->f")
def _sigmoid(b: Body, x: str) -> str:
    one = b.const("f", 1.0)
    return b.fdiv(one, b.fadd(one, b.call("inf_exp", b.emit(f"fneg {b.type('f')} {x}"))))


@helper("inf_tanh", "f->f")
def _tanh(b: Body, x: str) -> str:
    """tanh within 3e-7 relative: an odd polynomial near 0, 1 - 2 / (exp(2|x|) + 1) elsewhere."""
    a = b.intrinsic("fabs", "f", x)
    s = b.fmul(x, x)
    c = [-0.3333328068256378, 0.13331441581249237, -0.05373971164226532, 0.020639078691601753, -0.005704978480935097]
    small = b.fma(b.fmul(b.horner(s, c), s), x, x)
    e = b.call("inf_exp", b.fadd(a, a))
    one = b.const("f", 1.0)
    large = b.fsub(one, b.fdiv(b.const("f", 2.0), b.fadd(e, one)))
    large = b.intrinsic("copysign", "f", large, x)
    return b.select(b.fcmp("olt", a, b.const("f", 0.625)), small, large)


@helper("inf_erf", "f->f")
def _erf(b: Body, x: str) -> str:
    """erf within 3e-7 relative: an odd polynomial below 0.92, 1 - exp(polynomial) above."""
    a = b.intrinsic("fabs", "f", x)
    s = b.fmul(x, x)
    c = [1.128379225730896, -0.37612631916999817, 0.11283687502145767, -0.026858940720558167, 0.005199906416237354]
    small = b.fmul(b.horner(s, [*c, -0.0008130011847242713, 8.316771709360182e-05]), x)
    top = b.const("f", 4.05)
    t = b.select(b.fcmp("ogt", a, top), top, a)
    c = [0.00017587459296919405, -1.1295207738876343, -0.6333346366882324, -0.10829395055770874, 0.025128625333309174]
    e = b.call("inf_exp", b.horner(t, [*c, -0.004174643196165562, 0.00043521891348063946, -2.1161908080102876e-05]))
    large = b.intrinsic("copysign", "f", b.fsub(b.const("f", 1.0), e), x)
    return b.select(b.fcmp("olt", a, b.const("f", 0.92)), small, large)


def _sincos(b: Body, x: str, quarter: int) -> str:
    """sin(x + quarter * pi/2), absolute error below 2e-7 for |x| up to 1e5."""
    t = b.fma(x, b.const("f", 2 / math.pi), b.const("f", MAGIC))
    n = b.fsub(t, b.const("f", MAGIC))
    r = x
    for part in (1.570796251296997, 7.549789415861596e-08, 5.390302953474238e-15):
        r = b.fma(n, b.const("f", -part), r)
    s = b.fmul(r, r)
    sine = b.horner(s, [-0.16666655242443085, 0.008332155644893646, -0.00019514630548655987])
    sine = b.fma(b.fmul(sine, s), r, r)
    cosine = b.horner(s, [1.0, -0.5, 0.04166664555668831, -0.001388736185617745, 2.4437727915938012e-05])
    k = b.op("add", "i", b.bits(t), b.const("i", quarter))
    odd = b.icmp("ne", b.op("and", "i", k, b.const("i", 1)), b.const("i", 0))
    sign = b.op("shl", "i", b.op("and", "i", k, b.const("i", 2)), b.const("i", 30))
    return b.floats(b.op("xor", "i", b.bits(b.select(odd, cosine, sine)), sign))


helper("inf_sin", "f->f")(partial(_sincos, quarter=0))
helper("inf_cos", "f->f")(partial(_sincos, quarter=1))


@helper("inf_pow", "ff->f")
def _pow(b: Body, x: str, y: str) -> str:
    """x ** y, computed in double precision; a negative base needs an integer exponent (else NaN)."""
    one = b.const("f", 1.0)
    wide = b.convert("fpext", b.intrinsic("fabs", "f", x), "f", "d")
    bits = b.convert("bitcast", wide, "d", "l")
    shifted = b.op("sub", "l", bits, b.const("l", 0x3FE6A09E667F3BCD))
    e = b.op("ashr", "l", shifted, b.const("l", 52))
    m = b.convert("bitcast", b.op("sub", "l", bits, b.op("shl", "l", e, b.const("l", 52))), "l", "d")
    unit = b.const("d", 1.0)
    s = b.op("fdiv", "d", b.op("fsub", "d", m, unit), b.op("fadd", "d", m, unit))
    z = b.op("fmul", "d", s, s)
    series = b.op("fmul", "d", s, b.horner(z, [2.0 / (2 * k + 1) for k in range(9)], "d"))
    log = b.fma(b.convert("sitofp", e, "l", "d"), b.const("d", math.log(2)), series, "d")
    # log|x| of 0 and inf: far enough out that any exponent but 0 overflows or underflows.
    log = b.select(b.fcmp("oeq", wide, b.const("d", 0.0), "d"), b.const("d", -1e60), log, "d")
    log = b.select(b.fcmp("oeq", wide, b.const("d", _INF), "d"), b.const("d", 1e60), log, "d")
    p = b.op("fmul", "d", log, b.convert("fpext", y, "f", "d"))
    for bound, predicate in ((-700.0, "olt"), (600.0, "ogt")):
        limit = b.const("d", bound)
        p = b.select(b.fcmp(predicate, p, limit, "d"), limit, p, "d")
    magic = b.const("d", 1.5 * 2.0**52)
    t = b.fma(p, b.const("d", 1 / math.log(2)), magic, "d")
    f = b.fma(b.op("fsub", "d", t, magic), b.const("d", -math.log(2)), p, "d")
    r = b.horner(f, [1.0 / math.factorial(k) for k in range(11)], "d")
    n = b.convert("bitcast", t, "d", "l")
    exponent = b.op("shl", "l", b.op("add", "l", n, b.const("l", 1023)), b.const("l", 52))
    r = b.convert("fptrunc", b.op("fmul", "d", r, b.convert("bitcast", exponent, "l", "d")), "d", "f")
    # The sign: an odd integer exponent keeps it; y / 2 is no integer then.
    half = b.fmul(y, b.const("f", 0.5))
    odd = b.fcmp("one", half, b.intrinsic("floor", "f", half))
    signed = b.select(odd, b.intrinsic("copysign", "f", r, x), r)
    whole = b.fcmp("oeq", y, b.intrinsic("floor", "f", y))
    negative = b.fcmp("olt", x, b.const("f", 0.0))
    r = b.select(negative, b.select(whole, signed, b.const("f", math.nan)), b.select(whole, signed, r))
    r = b.select(b.fcmp("uno", x, y), b.fadd(x, y), r)
    r = b.select(b.fcmp("oeq", y, b.const("f", 0.0)), one, r)
    return b.select(b.fcmp("oeq", x, one), one, r)
