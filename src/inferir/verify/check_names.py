"""Which checks a verification will make, told before anything runs."""

from __future__ import annotations

from inferir.ir.graph.dtypes import DType
from inferir.verify.baseline import Baseline
from inferir.verify.thresholds import Thresholds


def check_names(dtype: DType, thresholds: Thresholds, baseline: Baseline | None, speed: bool | None) -> list[str]:
    """Names of the checks, in the order of the report. speed: whether it is measured, None if where it is needed."""
    f32 = dtype is DType.F32
    asked = {
        "absolute KL": thresholds.kl is not None,
        "top-1": thresholds.top1 is not None,
        "logits": not f32 and (thresholds.max_abs is not None or thresholds.max_abs_rms is not None),
        "greedy ids": not f32 and thresholds.greedy_ids is not None,
        "decode speed": speed is not False and thresholds.decode_speed is not None,
        "prefill speed": speed is not False and thresholds.prefill_speed is not None,
    }
    names = [*(["logits", "greedy ids"] if f32 else ["KL"]), "batch invariance", "coverage"]
    names += [name for name, wanted in asked.items() if wanted]
    if baseline is not None:
        was = baseline.figures
        compared = {
            "KL": True,
            "top-1": True,
            "decode speed": speed is not False and was.decode_speed is not None,
            "prefill speed": speed is not False and was.prefill_speed is not None,
        }
        names += [f"{name} against baseline" for name, wanted in compared.items() if wanted]
    return names
