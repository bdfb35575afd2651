"""`inferir profile --html`: one page with the tables and a roofline; it needs no other file."""

from __future__ import annotations

from pathlib import Path

import jinja2
from markupsafe import Markup

from inferir.profile.profile_artifact import ProfileReport
from inferir.profile.roofline_svg import roofline_svg

_TEMPLATE = Path(__file__).with_name("profile_page.html")


def profile_page(report: ProfileReport) -> str:
    """The page, as well-formed HTML."""
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        report=report,
        model=report.manifest.model.name,
        limits=report.limits,
        tables=report.tables,
        roofline=Markup(roofline_svg(report.tables, report.limits)),
    )
