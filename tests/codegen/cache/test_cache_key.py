"""Cache keys: stable digests, opt-out option fields, refused values, differences down to single options."""

import os
import subprocess
import sys
from dataclasses import dataclass, make_dataclass
from enum import Enum
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferir.codegen.cache.cache_key import JSON, CacheKey, canonical_json, differences, key_fields
from inferir.codegen.cache.source_hash import source_hash
from inferir.ir.errors import CacheError

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_components = st.dictionaries(st.text(min_size=1, max_size=5), _json, min_size=1, max_size=4)


class Mode(Enum):
    FAST = 1
    EXACT = 2


@dataclass(frozen=True)
class Inner:
    block: int = 16


@dataclass(frozen=True)
class Options:
    dtype: str = "f32"
    mode: Mode = Mode.FAST
    inner: Inner = Inner()
    passes: frozenset[str] = frozenset({"b", "a"})
    log_level: str = "info"


class Record(msgspec.Struct, frozen=True):
    name: str
    features: tuple[str, ...]


@given(_components)
def test_digest_ignores_order_and_container_type(components: dict[str, JSON]) -> None:
    turned = dict(reversed(components.items()))
    as_tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in turned.items()}
    assert CacheKey(components).digest == CacheKey(as_tuples).digest
    assert differences(CacheKey(components).summary, CacheKey(as_tuples).summary) == ()


@given(_components, _components)
def test_digests_and_differences_agree(one: dict[str, JSON], other: dict[str, JSON]) -> None:
    first, second = CacheKey(one), CacheKey(other)
    same = canonical_json(first.components) == canonical_json(second.components)
    assert (first.digest == second.digest) == same == (first == second)
    assert (differences(first.summary, second.summary) == ()) == same


def test_digest_is_fixed_across_processes_and_hash_seeds() -> None:
    program = (
        "from inferir.codegen.cache.cache_key import CacheKey, key_fields\n"
        "from dataclasses import make_dataclass\n"
        "o = make_dataclass('O', ['names'])({'x', 'y', 'zz', 'w'})\n"
        "print(CacheKey({'region': 'r', 'options': key_fields(o)}).digest)\n"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1", "2")
    }
    here = CacheKey({"region": "r", "options": {"names": ["w", "x", "y", "zz"]}}).digest
    assert printed == {here}


@pytest.mark.parametrize(
    ("component", "value"),
    [("a.b", {"b": float("nan")}), ("a[1]", [1, b"x"]), ("a.p", {"p": Path("x")}), ("a", {1: 2})],
)
def test_a_value_without_stable_form_is_refused_by_name(component: str, value: object) -> None:
    with pytest.raises(CacheError) as caught:
        CacheKey({"a": value})  # type: ignore[dict-item]
    assert component in str(caught.value)


def test_an_empty_key_is_refused() -> None:
    with pytest.raises(CacheError, match="at least one"):
        CacheKey({})


def test_a_key_keeps_its_own_copy() -> None:
    sizes = [1, 2]
    key = CacheKey({"sizes": sizes})
    sizes.append(3)
    assert key.digest == CacheKey({"sizes": [1, 2]}).digest


def test_integers_floats_and_booleans_are_different_values() -> None:
    assert len({CacheKey({"x": value}).digest for value in (1, 1.0, True, "1")}) == 4


def test_every_option_is_in_the_key_unless_ignored() -> None:
    assert key_fields(Options(), frozenset({"log_level"})) == {
        "dtype": "f32",
        "mode": "FAST",
        "inner": {"block": 16},
        "passes": ["a", "b"],
    }


def test_a_field_added_later_is_in_the_key() -> None:
    later = make_dataclass("Later", [("extra", int, 3)], bases=(Options,), frozen=True)
    assert key_fields(later()) == {**key_fields(Options()), "extra": 3}


def test_msgspec_records_are_taken_too() -> None:
    assert key_fields(Record("x86", ("avx512", "bf16"))) == {"name": "x86", "features": ["avx512", "bf16"]}


def test_a_stale_ignore_list_is_an_error() -> None:
    with pytest.raises(CacheError, match="Options has no field port to ignore"):
        key_fields(Options(), frozenset({"port"}))


def test_a_path_among_the_options_is_refused_by_name() -> None:
    holder = make_dataclass("Holder", [("dump", Path)])
    with pytest.raises(CacheError, match="dump is a PosixPath"):
        key_fields(holder(Path("somewhere")))


def test_something_without_fields_is_refused() -> None:
    with pytest.raises(CacheError, match="dict is not a record"):
        key_fields({"a": 1})


def test_differences_name_single_options() -> None:
    stored = CacheKey({"options": {"fast_math": False, "unroll": 4}, "target": "v3"})
    wanted = CacheKey({"options": {"fast_math": True, "unroll": 4}, "target": "v3", "bucket": [1, 2]})
    assert differences(stored.summary, wanted.summary) == (
        "bucket (stored nothing, now [1,2])",
        "options.fast_math (stored false, now true)",
    )


def test_long_texts_are_summarised_but_still_told_apart() -> None:
    one, other = CacheKey({"region": "x" * 9000 + "1"}), CacheKey({"region": "x" * 9000 + "2"})
    assert len(canonical_json(one.summary)) < 150
    (found,) = differences(one.summary, other.summary)
    assert found.startswith("region (stored ")


def _package(folder: Path) -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "a.py").write_text("a = 1\n")
    (folder / "sub" / "b.ll").write_text("define\n")
    return folder


def test_source_hash_is_of_contents_only(tmp_path: Path) -> None:
    first, second = _package(tmp_path / "one"), _package(tmp_path / "elsewhere" / "two")
    os.utime(second / "a.py", (1, 1))
    (second / "__pycache__").mkdir()
    (second / "__pycache__" / "a.cpython-311.pyc").write_bytes(b"bytecode")
    (second / ".hidden").write_text("editor state")
    link = tmp_path / "link"
    link.symlink_to(second)
    assert source_hash([first]) == source_hash([second]) == source_hash([link])


def test_source_hash_sees_every_change(tmp_path: Path) -> None:
    package = _package(tmp_path / "p")
    seen = {source_hash([package]), source_hash([package, package])}
    (package / "a.py").write_text("a = 2\n")
    seen.add(source_hash([package]))
    (package / "sub" / "b.ll").write_text("declare\n")
    seen.add(source_hash([package]))
    (package / "a.py").rename(package / "c.py")
    seen.add(source_hash([package]))
    (package / "new.py").write_text("")
    seen.add(source_hash([package]))
    assert len(seen) == 6


def test_source_hash_of_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="gone: not found"):
        source_hash([tmp_path / "gone"])
