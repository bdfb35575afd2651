"""The adapter of xgrammar: nothing heavy comes with it, and only known versions are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from inferir.ir.errors import EngineError
from inferir.runtime.structured import binding

HEAVY = ("torch", "tvm", "triton", "transformers", "xgrammar")
PROGRAM = f"""
import sys
from inferir.runtime.structured import GrammarCompiler, StructuredSpec
from inferir.runtime.structured.vocabulary import Vocabulary
compiler = GrammarCompiler(Vocabulary([b"a", b"b", b""], [2]))
before = "tvm_ffi" in sys.modules
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


@pytest.mark.parametrize("version", ["0.2.8", "0.3.0", "1.0", "0.1", None])
def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch, version: str | None) -> None:
    monkeypatch.setattr(binding, "installed_version", lambda: version)
    binding._load.cache_clear()
    try:
        with pytest.raises(EngineError, match=r"install xgrammar >=0\.2\.9,<0\.3"):
            binding.load()
    finally:
        binding._load.cache_clear()


@pytest.mark.parametrize("version", ["0.2.9", "0.2.10", "0.2.9.post1", "0.2.11rc1"])
def test_versions_in_the_range(version: str) -> None:
    assert binding.VERSIONS[0] <= binding._numbers(version) < binding.VERSIONS[1]


def test_strings_with_a_length_hold_no_control_characters() -> None:
    core = binding.load()
    info = core.tokenizer_info([bytes([i]) for i in range(256)] + [b""], [256])
    compiled = core.from_json_schema(
        core.compiler(info), '{"type": "string", "maxLength": 3}', strict=True, whitespace=2
    )
    matcher = core.matcher(compiled)
    assert matcher.accept_string('"a', False)
    assert not matcher.accept_string("\x01", False)
    assert matcher.accept_string('é"', False)
