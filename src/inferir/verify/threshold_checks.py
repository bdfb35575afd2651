"""Checks that are made only because a file of thresholds asks for them."""

from __future__ import annotations

from inferir.ir.graph.dtypes import DType
from inferir.verify.checks import Check, Greedy, Measured, buckets_beyond, check_greedy, of
from inferir.verify.speed import Speed
from inferir.verify.thresholds import Thresholds


def threshold_checks(
    measured: Measured, greedy: list[Greedy], dtype: DType, bound: float, thresholds: Thresholds
) -> list[Check]:
    """Hold what was measured against thresholds that have no built-in bound for `dtype`.

    bound: what a logit may differ by, in its units, if max_abs or max_abs_rms is set.
    """
    source, checks = thresholds.source, []
    if thresholds.kl is not None:
        have = measured.mean_kl()
        text = f"mean KL {have:.3e}, bound {thresholds.kl:.3e}{of(source)}, over {measured.kept().sum():,} positions"
        passed = have <= thresholds.kl
        beyond = () if passed else tuple(dict.fromkeys(r.bucket for r in measured.rows if not r.kl <= thresholds.kl))
        checks.append(Check("absolute KL", passed, text, have, thresholds.kl, source, beyond))
    if thresholds.top1 is not None:
        share = top1_share(measured)
        text = f"eager's most likely token in {share:.2%} of all positions, at least {thresholds.top1:.2%}{of(source)}"
        checks.append(Check("top-1", share >= thresholds.top1, text, share, thresholds.top1, source))
    if dtype is not DType.F32 and (thresholds.max_abs is not None or thresholds.max_abs_rms is not None):
        worst = max(measured.rows, key=lambda r: r.max_abs)
        text = f"largest difference {worst.max_abs:.2e} ({worst.bucket} {worst.kind}), bound {bound:.2e}{of(source)}"
        far = buckets_beyond(measured.rows, bound)
        checks.append(Check("logits", not far, text, worst.max_abs, bound, source, far))
    if dtype is not DType.F32 and thresholds.greedy_ids is not None:
        checks.append(check_greedy(greedy, thresholds))
    return checks


def speed_checks(speed: Speed, thresholds: Thresholds) -> list[Check]:
    """Hold ratios to eager's speed against thresholds."""
    checks = []
    for name, ratio, least in (
        ("decode speed", speed.decode.ratio, thresholds.decode_speed),
        ("prefill speed", speed.prefill.ratio, thresholds.prefill_speed),
    ):
        if least is not None:
            text = f"{ratio:.2f} times eager's tokens/s, at least {least:.2f}{of(thresholds.source)}"
            checks.append(Check(name, ratio >= least, text, ratio, least, thresholds.source))
    return checks


def top1_share(measured: Measured) -> float:
    """The share of all positions, each counted once, with eager's most likely token."""
    assert measured.sequences is not None
    flags = [bool(x) for sequence in measured.sequences for x in sequence.top1]
    return sum(flags) / len(flags)
