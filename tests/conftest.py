"""Settings shared by all tests: one compute thread, and no file outside pytest's own temporary folders."""

import os
from collections.abc import Iterator

import hypothesis
import pytest

pytest_plugins = ["artifacts", "cli_fixtures", "compiled_artifact"]

# A busy machine must not fail a property test for being slow.
hypothesis.settings.register_profile("inferir", deadline=None)
hypothesis.settings.load_profile("inferir")

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session", autouse=True)
def _own_compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the test session a compile cache of its own, unless the caller names one."""
    with pytest.MonkeyPatch.context() as patch:
        if "INFERIR_CACHE" not in os.environ:
            patch.setenv("INFERIR_CACHE", str(tmp_path_factory.mktemp("compile-cache")))
        yield
