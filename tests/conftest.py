"""Settings shared by all tests: one compute thread, and no file outside pytest's own temporary folders."""

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

pytest_plugins = ["artifacts", "cli_fixtures", "compiled_artifact", "kept_workers", "plugin_distributions"]

# A busy machine must not fail a property test for being slow.
hypothesis.settings.register_profile("inferir", deadline=None)
hypothesis.settings.load_profile("inferir")

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

MAY_SKIP = ("this machine cannot run", "mounting")
"""What the processor or the kernel forbids; all else that a test needs can be installed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="A test that lacks something that can be installed fails.")


SLOW = (
    "docs/test_extending.py",
    "e2e/test_real_model.py",
    "verify/test_bisect.py",
    "plugins/test_acme.py",
    "e2e/test_families.py",
    "e2e/test_compile_cache.py",
    "e2e/test_levels_and_batches.py",
    "server/test_doors.py",
    "cli/test_doors.py",
    "e2e/test_kv_groups.py",
    "e2e/test_long_sequences.py",
    "verify/test_verify_artifact.py",
    "e2e/test_gguf.py",
    "codegen/tvm/kernels/test_attention.py",
    "frontend/capture/test_numerics.py",
    "tune/test_tune_model.py",
    "codegen/tvm/kernels/test_matmul.py",
    "codegen/tvm/kernels/test_sample_tokens.py",
    "api/test_llm_requests.py",
    "testing/test_check_pass.py",
    "testing/test_check_op.py",
    "doctor/test_self_test.py",
    "docs/test_workflow.py",
)
"""Files with the longest tests, which begin first: a process that has nothing left takes short ones from the others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {Path(__file__).parent / name: place for place, name in enumerate(SLOW)}
    items.sort(key=lambda item: places.get(item.path, len(SLOW)))


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
    """Give the test session, all its processes together, a compile cache of its own, unless the caller names one."""
    with pytest.MonkeyPatch.context() as patch:
        if "INFERIR_CACHE" not in os.environ:
            root = tmp_path_factory.getbasetemp()
            shared = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
            patch.setenv("INFERIR_CACHE", str(shared / "compile-cache"))
        yield
