"""The page of `inferir verify --html`: well-formed, self-contained, and everything that was measured is on it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np

from inferir.ir.graph.dtypes import DType
from inferir.verify.baseline import Baseline, Figures
from inferir.verify.checks import Check, Greedy, Measured, Row
from inferir.verify.divergence import Distances
from inferir.verify.divergence_plot import HEIGHT, Line, plot
from inferir.verify.html_report import report_page
from inferir.verify.report_section import Section
from inferir.verify.speed import Rate, Speed
from inferir.verify.thresholds import Thresholds
from inferir.verify.verify_artifact import VerifyReport

FIGURES = Figures("<b>&model", "bf16", "x86-64-v3", True, 5, 2e-3, 0.8, 0.5, 3e-3, 4.0, 2.0)


def report(**changes: object) -> VerifyReport:
    def each(values: list[float]) -> Distances:
        a = np.array(values)
        return Distances(a * 10, a, a, np.ones(len(a), np.bool_))

    kl, own = [[1e-3, 2e-3, np.inf], [4e-3, 0.0]], np.array([2e-3, 2e-3, 1e-3, 5e-3, 1e-3])
    rate = Rate(32, (40.0, 44.0, 48.0), (11.0, 11.0, 11.0))
    values: dict[str, object] = {
        "artifact": Path("build/<art>"),
        "model": "m.gguf",
        "dtype": DType.BF16,
        "rows": [
            Row("t1", "decode", 3, np.inf, 0.1, 2e-3, 0.875, 3e-3),
            Row("t2-8", "mixed", 2, 0.5, 0.1, 1e-3, 1, 2e-3),
        ],
        "greedy": [
            Greedy(2, 3, 3, None, prompt=(5, 6), ours=(1, 2, 3), theirs=(1, 2, 3)),
            Greedy(2, 12, 9, 0.25, prompt=(5, 6), ours=(*range(9), 1, 2, 3), theirs=(*range(9), 7, 8, 9)),
        ],
        "checks": [
            Check("KL", False, "mean KL too large", 2e-3, 1e-3, "mine.toml", ("t1",)),
            Check("coverage", True, "all 2 buckets ran"),
        ],
        "seconds": {"engine": 1.5},
        "measured": Measured([], np.concatenate(kl), own, [each(v) for v in kl]),
        "figures": FIGURES,
        "speed": Speed(rate, rate, 2),
        "thresholds": Thresholds(kl=1e-3, source="mine.toml"),
        "baseline": Baseline(FIGURES, "old.json"),
        "texts": {i: f"<{i}>\n" for i in range(9)},
        "environment": {"processor": "Some & CPU"},
    }
    return VerifyReport(**{**values, **changes})  # type: ignore[arg-type]


def page(text: str) -> ET.Element:
    return ET.fromstring(text.replace("<!DOCTYPE html>", ""))


def texts(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def test_everything_is_on_the_page() -> None:
    root = page(report_page(report()))
    told = texts(root)
    for words in (
        "<b>&model: FAILED",
        "build/<art> against eager m.gguf",
        "Failed: KL.",
        "0.0020.001mine.tomlmean KL too large In t1.",
        "built inall 2 buckets ran",
        "t1decode3inf1.00e-012.00e-033.00e-0387.5%",
        "Mean KL divergence from eager in float32",
        "eager in bf16",
        "leaves eager's ids at token 10 of 12",
        "best logits there: 0.25",
        "all 3 ids are eager's",
        "decode3244.011.04.003.64, 4.00, 4.36",
        "From old.json.",
        "decode_speed44+0.0%",
        "From mine.toml.",
        "tolerance.decode_speed0.25",
        "Some & CPU",
    ):
        assert words in told, words
    ids = {e.attrib["id"] for e in root.iter() if "id" in e.attrib}
    assert {e.attrib["href"].removeprefix("#") for e in root.iter("a")} == ids


def test_it_needs_nothing_else() -> None:
    text = report_page(report())
    assert not re.search(r"https?://|<script|<link|<img|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_generations_stand_side_by_side_from_a_little_before_they_part() -> None:
    root = page(report_page(report()))
    (pair,) = [e for e in root.iter("div") if e.attrib.get("class") == "pair"]
    sides = [[(s.attrib["title"], s.attrib.get("class")) for s in side.iter("span")] for side in pair]
    assert [i for i, _ in sides[0]] == ["3", "4", "5", "6", "7", "8", "1", "2", "3"]
    assert [i for i, kind in sides[1] if kind == "other"] == ["7", "8", "9"]
    assert "<3>⏎" in texts(pair)
    assert "9" in texts(pair)  # a token without text is its id


def test_a_report_without_extras_has_no_empty_sections() -> None:
    plain = report(speed=None, baseline=None, thresholds=Thresholds(), measured=None, greedy=[], figures=None)
    root = page(report_page(plain))
    assert [texts(e) for e in root.iter("h2")] == [
        "Checks",
        "Buckets and kinds of steps",
        "Divergence by position",
        "Greedy generations",
        "Environment",
    ]
    assert "<art>: FAILED" in texts(root)


def test_other_parts_add_sections() -> None:
    section = Section("Layers & more", "Where it begins.", ("layer", "KL"), [["<0>", "1"]], ("KL",), "line 1\nline 2")
    root = page(report_page(report(), [section]))
    told = texts(root)
    assert "Layers & more Where it begins. layerKL <0>1 line 1 line 2" in told
    assert "layers-more" in {e.attrib.get("id") for e in root.iter("h2")}
    assert [texts(e) for e in root.iter("td") if e.attrib.get("class") == "n"][-1] == "1"


def points(svg: str) -> list[tuple[float, float]]:
    found = re.search(r'<polyline class="ours" points="([^"]*)"', svg)
    assert found
    return [(float(x), float(y)) for x, y in (p.split(",") for p in found[1].split())]


def test_a_plot_is_logarithmic_and_holds_every_value_inside() -> None:
    svg = plot("KL", [Line("ours", "ours", [1e-3, 1e-2, 1e-1, np.inf, 0.0, np.nan, 1e-3])], ("bound", 1e-2))
    at = points(svg)
    (_, a), (_, b), (_, c), (_, top), (_, bottom), (_, again) = at
    assert abs((a - b) - (b - c)) < 0.2 < a - b
    assert (a, top < c, bottom >= a) == (again, True, True)
    assert all(0 < y < HEIGHT for _, y in at)
    assert f'class="bound" d="M64 {b:.1f} ' in svg
    ET.fromstring(svg)


def test_a_long_line_is_put_together_and_keeps_its_peaks() -> None:
    values = [1e-5] * 5000
    values[3333] = 1e-1
    at = points(plot("KL", [Line("ours", "ours", values)]))
    assert len(at) <= 300
    assert min(y for _, y in at) < sorted(y for _, y in at)[1]
    assert "<circle" in plot("one", [Line("ours", "ours", [1.0])])
    ET.fromstring(plot("none", []))
