"""`pytest --inferir-verify ART`: the checks of `inferir verify` as tests.

pytest loads this module in every run of an environment that has Inferir. So it imports nothing but pytest, and what the
options need is loaded only if they are given. (PYTEST_DONT_REWRITE: there is no assertion here.)
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("inferir", "verifying artifacts of Inferir")
    each = "Once for all artifacts, or once for each, in their order."

    def option(name: str, metavar: str, help: str) -> None:
        group.addoption(f"--inferir-{name}", action="append", default=[], metavar=metavar, help=help)

    option("verify", "ART", "Verify this artifact: one test per check and per bucket. May be repeated.")
    option("model", "MODEL", f"The model that the artifact was compiled from. {each}")
    option("thresholds", "FILE", f"Bounds of your own, in TOML or JSON. {each}")
    option("baseline", "FILE", f"What an earlier run measured, behind which this one may not fall. {each}")
    option("write-baseline", "FILE", "Write what was measured, if all bounds are held. Once for each artifact.")
    option("html", "FILE", "Also write a page that shows everything. Once for each artifact.")
    group.addoption("--inferir-quick", action="store_true", help="Short sequences and few of them.")
    group.addoption(
        "--inferir-speed",
        choices=("auto", "yes", "no"),
        default="auto",
        help="Measure speed as a ratio to eager's; auto: if a threshold or a baseline needs it.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "inferir_verify: a check of an artifact, made by --inferir-verify")
    if config.getoption("--inferir-verify"):
        from inferir.verify.pytest_items import ArtifactTests

        config.pluginmanager.register(ArtifactTests(config), "inferir-artifact-tests")
