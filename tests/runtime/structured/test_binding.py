"""The adapter of llguidance: nothing heavy comes with it, and only known versions are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from inferir.ir.errors import EngineError
from inferir.runtime.structured import binding
from inferir.runtime.structured.vocabulary import Vocabulary

HEAVY = ("torch", "tvm", "tvm_ffi", "triton", "transformers")
PROGRAM = f"""
import sys
from inferir.runtime.structured import GrammarCompiler, StructuredSpec
from inferir.runtime.structured.vocabulary import Vocabulary
compiler = GrammarCompiler(Vocabulary([b"a", b"b", b""], [2]))
before = "llguidance" in sys.modules
state = compiler.compile(StructuredSpec("regex", "a+b")).new_state()
print(before, state.accept(0), state.accept(0), state.accept(1), state.accept(1), state.accept(2), state.finished)
compiler.close()
print(*[m for m in {HEAVY!r} if m in sys.modules])
import importlib.util
print(importlib.util.find_spec("torch") is not None)
"""


def test_grammars_work_without_torch_and_the_core_is_loaded_late() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines() == ["False True True True False True True", "", "True"]


def test_the_installed_version_is_known() -> None:
    core = binding.load()
    assert core is binding.load()
    assert core.version == binding.installed_version()


@pytest.mark.parametrize("version", ["1.8.9", "2.0.0", "2", "0.1", None])
def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    monkeypatch.setattr(binding, "installed_version", lambda: version)
    binding.load.cache_clear()
    try:
        with pytest.raises(EngineError, match=r"install llguidance >=1\.9,<2"):
            binding.load()
    finally:
        binding.load.cache_clear()


@pytest.mark.parametrize("version", ["1.9.0", "1.9.1", "1.10", "1.9.2.post1", "1.9.3rc1"])
def test_versions_in_the_range(version: str) -> None:
    assert binding.VERSIONS[0] <= binding._numbers(version) < binding.VERSIONS[1]


def test_a_token_of_a_byte_that_no_text_has_is_not_taken_for_a_special_one() -> None:
    core = binding.load()
    vocabulary = Vocabulary([b"\xff", b"a", b"", b"<t>"], [2], {3: "<t>"})
    tokenizer = core.tokenizer(vocabulary)
    assert [tokenizer.is_special_token(i) for i in range(4)] == [False, False, False, True]
