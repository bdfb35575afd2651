"""A file of thresholds: what it may say, what is refused by name, and which checks come of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from inferir.ir.errors import InferirError
from inferir.ir.graph.dtypes import DType
from inferir.verify.checks import Check, Greedy, Measured, Row, check_greedy
from inferir.verify.divergence import Distances
from inferir.verify.speed import Rate, Speed
from inferir.verify.threshold_checks import speed_checks, threshold_checks
from inferir.verify.thresholds import BOUNDS, Thresholds, Tolerance, load_thresholds
from inferir.verify.verify_artifact import logit_bound


def written(folder: Path, text: str, name: str = "bounds.toml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    toml = load_thresholds(written(tmp_path, "kl = 1e-3\ntop1 = 1\n[tolerance]\ndecode_speed = 0.3\n"))
    text = '{"kl": 0.001, "top1": 1, "tolerance": {"decode_speed": 0.3}}'
    json = load_thresholds(written(tmp_path, text, "bounds.json"))
    assert (
        (toml.kl, toml.top1, toml.tolerance)
        == (json.kl, json.top1, json.tolerance)
        == (
            1e-3,
            1.0,
            Tolerance(decode_speed=0.3),
        )
    )
    assert toml.source == str(tmp_path / "bounds.toml")
    assert not toml.need_speed
    assert all(load_thresholds(written(tmp_path, f"{key} = 0.5")) == _only(key, tmp_path) for key in BOUNDS)


def _only(key: str, folder: Path) -> Thresholds:
    return Thresholds(**{key: 0.5}, source=str(folder / "bounds.toml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kls = 1", "unknown key kls; known: kl, kl_ratio"),
        ("[tolerance]\nspeed = 1", "unknown key tolerance.speed; known: tolerance.kl, "),
        ("tolerance = 1", "tolerance must be a table"),
        ('kl = "1e-3"', 'kl must be a number, not "1e-3"'),
        ("top1 = true", "top1 must be a number, not true"),
        ("top1 = 99.5", "top1 must be from 0 to 1, not 99.5"),
        ("tolerance = {top1 = 2}", "tolerance.top1 must be from 0 to 1, not 2"),
        ("kl = -1", "kl must be finite and not negative, not -1"),
        ("kl = nan", "kl must be finite and not negative, not nan"),
        ("kl = inf", "kl must be finite and not negative, not inf"),
        ("max_abs = 1\nmax_abs_rms = 1", "max_abs and max_abs_rms bound the same"),
        ("kl 1", "Expected '='"),
    ],
)
def test_what_a_file_may_not_say(text: str, message: str, tmp_path: Path) -> None:
    file = written(tmp_path, text)
    with pytest.raises(InferirError) as caught:
        load_thresholds(file)
    assert str(caught.value).startswith(f"--thresholds {file}: {message}")


@pytest.mark.parametrize("text", ["[1]", '{"kl": 1e999}', '{"kl": null}', "{" * 100_000, f'{{"kl": {"9" * 400}}}'])
def test_json_that_is_no_table_of_numbers(text: str, tmp_path: Path) -> None:
    with pytest.raises(InferirError, match=r"--thresholds .*bounds\.json: "):
        load_thresholds(written(tmp_path, text, "bounds.json"))


def test_a_multiple_of_eagers_own_divergence_needs_one(tmp_path: Path) -> None:
    bounds = load_thresholds(written(tmp_path, "kl_ratio = 2"))
    bounds.check_type(DType.BF16)
    with pytest.raises(InferirError, match="kl_ratio is a multiple of what eager"):
        bounds.check_type(DType.F32)


def test_the_bound_of_a_logit() -> None:
    reference = [np.full((2, 3), 4.0, np.float32)]
    assert logit_bound(reference, Thresholds()) == pytest.approx(8e-4)
    assert logit_bound(reference, Thresholds(max_abs_rms=0.5)) == pytest.approx(2.0)
    assert logit_bound(reference, Thresholds(max_abs=0.5)) == 0.5


def measured(eager: bool = True) -> Measured:
    """Three positions; the last is one where eager in bfloat16 goes astray."""
    kl = np.array([1e-3, 3e-3, 9.0])
    each = Distances(np.array([0.1, 0.2, 7.0]), kl, kl, np.array([True, True, False]))
    row = Row("t1", "decode", 3, 7.0, 0.1, float(kl.mean()), 2 / 3, 1e-3)
    return Measured([row], kl, np.array([1e-3, 1e-3, 1.0]) if eager else None, [each])


def found(dtype: DType, thresholds: Thresholds, bound: float = 1.0) -> dict[str, Check]:
    greedy = [Greedy(3, 8, 8), Greedy(3, 8, 5, 1e-3, tie=1e-4 if thresholds.tie is None else thresholds.tie)]
    checks = threshold_checks(measured(dtype is DType.BF16), greedy, dtype, bound, thresholds)
    return {c.name: c for c in checks}


def test_nothing_is_demanded_without_a_file() -> None:
    assert found(DType.BF16, Thresholds()) == found(DType.F32, Thresholds()) == {}


def test_bounds_tighten_and_loosen() -> None:
    for kl, passes in ((2.1e-3, True), (1.9e-3, False)):
        check = found(DType.BF16, Thresholds(kl=kl, source="b.toml"))["absolute KL"]
        assert (check.passed, check.measured, check.bound, check.source) == (passes, pytest.approx(2e-3), kl, "b.toml")
        assert "(from b.toml)" in check.detail
    assert found(DType.F32, Thresholds(kl=3.0))["absolute KL"].measured == pytest.approx(9.004 / 3)
    assert found(DType.BF16, Thresholds(top1=0.66))["top-1"].passed
    assert not found(DType.BF16, Thresholds(top1=0.67))["top-1"].passed
    assert found(DType.BF16, Thresholds(max_abs=7.0), 7.0)["logits"].passed
    assert found(DType.BF16, Thresholds(max_abs=6.9), 6.9)["logits"].buckets == ("t1",)
    assert found(DType.F32, Thresholds(max_abs=6.9)) == {}  # the built-in check has it
    assert found(DType.BF16, Thresholds(greedy_ids=0.5))["greedy ids"].passed
    assert not found(DType.BF16, Thresholds(greedy_ids=0.6))["greedy ids"].passed
    assert found(DType.BF16, Thresholds(greedy_ids=1.0, tie=2e-3))["greedy ids"].passed


def test_a_built_in_bound_is_named_as_the_files_where_it_is_the_files() -> None:
    greedy = [Greedy(3, 8, 8), Greedy(3, 8, 5, 1e-3)]
    loose = check_greedy(greedy, Thresholds(greedy_ids=0.5, source="b.toml"))
    assert (loose.passed, loose.source, check_greedy(greedy, Thresholds()).passed) == (True, "b.toml", False)
    assert check_greedy(greedy, Thresholds(kl=1.0, source="b.toml")).source == ""


def test_speed_is_a_ratio_of_medians() -> None:
    rate = Rate(32, (30.0, 40.0, 90.0), (10.0, 20.0, 20.0))
    assert (rate.medians, rate.ratio, rate.ratios) == ((40.0, 20.0), 2.0, (3.0, 2.0, 4.5))
    speed = Speed(rate, rate, 2)
    assert Thresholds(decode_speed=1.0).need_speed
    assert speed_checks(speed, Thresholds()) == []
    checks = speed_checks(speed, Thresholds(decode_speed=2.0, prefill_speed=2.1, source="b.toml"))
    assert [(c.name, c.passed) for c in checks] == [("decode speed", True), ("prefill speed", False)]
    assert checks[1].detail == "2.00 times eager's tokens/s, at least 2.10 (from b.toml)"
