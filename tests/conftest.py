"""Settings shared by all tests: one compute thread, and no file outside pytest's own temporary folders."""

import os
from collections.abc import Generator, Iterator

import hypothesis
import pytest

pytest_plugins = ["artifacts", "cli_fixtures", "compiled_artifact"]

# A busy machine must not fail a property test for being slow.
hypothesis.settings.register_profile("inferir", deadline=None)
hypothesis.settings.load_profile("inferir")

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

MAY_SKIP = ("this machine cannot run", "mounting")
"""What the processor or the kernel forbids; all else that a test needs can be installed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="A test that lacks something that can be installed fails.")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple) and item.config.getoption("--no-skips"):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith(MAY_SKIP):
            report.outcome, report.longrepr = "failed", f"skipped: {reason}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _own_compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the test session a compile cache of its own, unless the caller names one."""
    with pytest.MonkeyPatch.context() as patch:
        if "INFERIR_CACHE" not in os.environ:
            patch.setenv("INFERIR_CACHE", str(tmp_path_factory.mktemp("compile-cache")))
        yield
