"""Registries: built-in entries, entries of other distributions, and what becomes of those that cannot be used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inferir.codegen.cache import source_hash
from inferir.ir import plugin_registry
from inferir.ir.errors import CodegenError, PluginError
from inferir.ir.plugin_registry import ACTIVE, BUILT_IN, KNOWN, LEFT_OUT, PluginInfo, PluginRegistry

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a distribution on the path: `install(name, code, entries)`, with entries by group."""

    def forget() -> None:
        plugin_registry._entry_points.cache_clear()
        source_hash.plugin_digests.cache_clear()

    def put(name: str, code: str, **entries: dict[str, str]) -> Path:
        package = tmp_path / f"{name}_code"
        package.mkdir()
        (package / "__init__.py").write_text(code)
        info = tmp_path / f"{name}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        lines = []
        for kind, points in entries.items():
            lines += [f"[inferir.{kind}]", *(f"{n} = {name}_code:{attr}" for n, attr in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        forget()
        return package

    monkeypatch.syspath_prepend(tmp_path)
    yield put
    for name in [n for n in sys.modules if n.endswith("_code")]:
        del sys.modules[name]
    forget()


def things(**options: object) -> PluginRegistry[int]:
    return PluginRegistry("things", "thing", **options)  # type: ignore[arg-type]


def test_built_in_entries_are_objects_or_places() -> None:
    registry = things()
    registry.add("one", 1)
    registry.add("maxsize", "sys:maxsize")
    assert registry.all() == [PluginInfo("one", BUILT_IN, ACTIVE), PluginInfo("maxsize", BUILT_IN, KNOWN)]
    assert registry.get("maxsize") == sys.maxsize
    assert registry.load() == {"one": 1, "maxsize": sys.maxsize}
    assert [e.state for e in registry.all()] == [ACTIVE, ACTIVE]


def test_a_name_stands_for_one_thing() -> None:
    registry = things()
    registry.add("one", 1)
    with pytest.raises(PluginError, match="thing 'one' is defined twice"):
        registry.add("one", 2)
    assert registry.get("one") == 1


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    registry = things(error=CodegenError)
    registry.add("one", 1)
    registry.add("two", 2)
    with pytest.raises(CodegenError, match="unknown thing 'three'; known: one, two"):
        registry.get("three")


def test_distributions_add_entries_that_are_loaded_when_they_are_asked_for(install: Install) -> None:
    install("acme", "SEVEN = 7", things={"seven": "SEVEN"})
    registry = things()
    registry.add("one", 1)
    assert registry.names() == ("one", "seven")
    assert "acme_code" not in sys.modules
    assert registry.all()[1] == PluginInfo("seven", "acme 1.5", KNOWN)
    assert registry.get("seven") == 7
    assert registry.all()[1].state == ACTIVE


@pytest.mark.parametrize(
    ("code", "reason"), [("import no_such_module", "ModuleNotFoundError: No module named"), ("", "AttributeError")]
)
def test_an_entry_that_cannot_be_loaded_is_left_out_with_the_reason(install: Install, code: str, reason: str) -> None:
    install("acme", code, things={"seven": "SEVEN"})
    registry = things()
    registry.add("one", 1)
    assert registry.load() == {"one": 1}
    assert registry.names() == ("one",)
    left = registry.all()[1]
    assert (left.name, left.state) == ("seven", LEFT_OUT)
    assert reason in left.reason
    with pytest.raises(PluginError, match=f"thing 'seven' of acme 1.5 is not usable: {reason}"):
        registry.get("seven")


def test_an_entry_of_another_type_is_left_out(install: Install) -> None:
    install("acme", "SEVEN = 'seven'", things={"seven": "SEVEN"})
    registry = things(check=lambda v: None if isinstance(v, int) else "it is no number")
    assert registry.load() == {}
    assert registry.all() == [PluginInfo("seven", "acme 1.5", LEFT_OUT, "it is no number")]


def test_a_name_that_is_taken_is_refused(install: Install) -> None:
    install("acme", "SEVEN = 7", things={"one": "SEVEN"})
    registry = things()
    registry.add("one", 1)
    assert registry.load() == {"one": 1}
    assert registry.all()[1:] == [PluginInfo("one", "acme 1.5", LEFT_OUT, "the name 'one' is that of a built-in thing")]


def test_two_distributions_with_one_name_are_both_left_out(install: Install) -> None:
    for name in ("acme", "zeta"):
        install(name, "SEVEN = 7", things={"seven": "SEVEN"})
    registry = things()
    assert registry.load() == {}
    with pytest.raises(PluginError, match=r"acme 1\.5 and zeta 1\.5 both bring a thing 'seven'"):
        registry.get("seven")


def test_the_code_of_a_plug_in_is_part_of_cache_keys(install: Install) -> None:
    without = source_hash.keyed(what="x")
    assert without.components == {"what": "x"}
    package = install("acme", "SEVEN = 7", passes={"seven": "SEVEN"})
    key = source_hash.keyed(what="x")
    assert list(key.components["plugins"]) == ["acme 1.5"]  # type: ignore[arg-type]
    assert "acme_code" not in sys.modules
    (package / "helper.py").write_text("EIGHT = 8")
    source_hash.plugin_digests.cache_clear()
    assert len({without.digest, key.digest, source_hash.keyed(what="x").digest}) == 3


def test_what_serves_only_is_no_part_of_cache_keys(install: Install) -> None:
    install("acme", "SEVEN = 7", routes={"seven": "SEVEN"})
    assert source_hash.plugin_digests() == {}


def test_a_registry_loads_no_heavy_library() -> None:
    program = (
        "import sys\n"
        "from inferir.ir.plugin_registry import PluginRegistry\n"
        "PluginRegistry('backends', 'backend').all()\n"
        "print(sorted({'torch', 'transformers', 'tvm', 'triton', 'sympy', 'numpy'} & sys.modules.keys()))\n"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
