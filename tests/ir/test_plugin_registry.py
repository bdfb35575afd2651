"""Registries: built-in entries, entries of other distributions, and what becomes of those that cannot be used."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from plugin_distributions import Plugged, forget

import inferir
from inferir.codegen.cache import source_hash
from inferir.codegen.cache.through import frontend_key
from inferir.ir.errors import CodegenError, PluginError
from inferir.ir.plugin_kinds import COMPILE, kinds_of
from inferir.ir.plugin_registry import (
    ACTIVE,
    BUILT_IN,
    KNOWN,
    LEFT_OUT,
    PluginInfo,
    PluginRegistry,
    PluginWarning,
)

Install = Callable[..., Path]


@pytest.fixture
def install(plugged: Plugged) -> Install:
    """Puts a distribution on the path: `install(name, code, entries)`, with entries by group; the module's file."""
    return lambda name, code, **entries: plugged([], name, code, **entries)


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
    with pytest.warns(PluginWarning, match=rf"the thing 'seven' of acme 1\.5 is left out: {reason}"):
        assert registry.load() == {"one": 1}
    assert registry.names() == ("one",)
    assert (registry.outside("seven"), registry.left_out()) == (None, registry.all()[1:])
    left = registry.all()[1]
    assert (left.name, left.state) == ("seven", LEFT_OUT)
    assert reason in left.reason
    with pytest.raises(PluginError, match=f"thing 'seven' of acme 1.5 is not usable: {reason}"):
        registry.get("seven")


def test_an_entry_of_another_type_is_left_out(install: Install) -> None:
    install("acme", "SEVEN = 'seven'", things={"seven": "SEVEN"})
    registry = things(check=lambda v: None if isinstance(v, int) else "it is no number")
    with pytest.warns(PluginWarning, match="it is no number"):
        assert registry.load() == {}
    assert registry.all() == [PluginInfo("seven", "acme 1.5", LEFT_OUT, "it is no number")]


def test_a_name_that_is_taken_is_refused(install: Install) -> None:
    install("acme", "SEVEN = 7", things={"one": "SEVEN"})
    registry = things()
    registry.add("one", 1)
    with pytest.warns(PluginWarning, match="that of a built-in thing"):
        assert registry.load() == {"one": 1}
    assert registry.all()[1:] == [PluginInfo("one", "acme 1.5", LEFT_OUT, "the name 'one' is that of a built-in thing")]


def test_two_distributions_with_one_name_are_both_left_out(install: Install) -> None:
    for name in ("acme", "zeta"):
        install(name, "SEVEN = 7", things={"seven": "SEVEN"})
    registry = things()
    with pytest.warns(PluginWarning, match="both bring a thing"):
        assert registry.load() == {}
    with pytest.raises(PluginError, match=r"acme 1\.5 and zeta 1\.5 both bring a thing 'seven'"):
        registry.get("seven")


def test_a_warning_is_given_once(install: Install) -> None:
    install("acme", "", things={"seven": "SEVEN"})
    registry = things()
    with pytest.warns(PluginWarning):
        registry.load()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.load() == {}


def test_whose_an_entry_is_and_what_a_caller_leaves_out(install: Install) -> None:
    install("acme-tools", "SEVEN = 7", things={"seven": "SEVEN"})
    registry = things()
    registry.add("one", 1)
    info = registry.outside("seven")
    assert info is not None
    assert (info.distribution, info.version, registry.outside("one")) == ("acme-tools", "1.5", None)
    registry.leave_out("seven", "not today")
    registry.leave_out("one", "ours stays")
    with pytest.warns(PluginWarning, match="not today"):
        assert registry.load() == {"one": 1}


@pytest.mark.parametrize("kind", kinds_of(COMPILE))
def test_the_code_of_a_plug_in_is_part_of_every_cache_key(install: Install, kind: str) -> None:
    """Of kernels, of captured graphs and of packed weights: all of them are made by `keyed`."""
    without = source_hash.keyed(what="x"), frontend_key(what="x")
    assert without[0].components == {"what": "x"}
    file = install("acme", "SEVEN = 7", **{kind: {"seven": "SEVEN"}})
    first = source_hash.keyed(what="x"), frontend_key(what="x")
    assert list(first[0].components["plugins"]) == ["acme 1.5"]  # type: ignore[arg-type]
    assert "acme_code" not in sys.modules
    file.write_text("SEVEN = 8")
    forget()
    changed = source_hash.keyed(what="x"), frontend_key(what="x")
    for keys in zip(without, first, changed, strict=True):
        assert len({key.digest for key in keys}) == 3


def test_every_key_is_made_where_plug_ins_enter_it() -> None:
    """Nobody else makes a `CacheKey`."""
    root = Path(next(iter(inferir.__path__)))
    sources = [p for folder in root.iterdir() for p in folder.resolve().rglob("*.py")]
    makers = {p.name for p in sources if re.search(r"\bCacheKey\(", p.read_text())}
    assert makers == {"source_hash.py"}


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
