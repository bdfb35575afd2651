"""`inferir doctor` names what is wrong with the surroundings, and what to do; a healthy machine passes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from inferir.doctor import artifact_layer, version_ranges
from inferir.doctor import self_test as doctor
from inferir.doctor.finding import Finding
from inferir.ir.contract.artifact import file_records, read_manifest, write_manifest
from inferir.ir.contract.gpu_kernel import GpuKernel, GpuLibrary
from inferir.ir.contract.target import Target
from inferir.ir.system import extras, held_folder
from inferir.runtime import machine

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed Oct 27 21:21:55 UTC 2021\nGCC version:  gcc\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for the compile cache, not made yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("INFERIR_CACHE", str(folder))
    return folder


@pytest.fixture
def art(tiny_artifact: Path, tmp_path: Path, cache: Path) -> Path:
    """A copy of the tiny artifact, to be harmed."""
    return shutil.copytree(tiny_artifact, tmp_path / "art")


@pytest.fixture
def faults(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Run `inferir doctor ARGS`, which must fail, and return its lines that are neither ok nor skipped."""
    monkeypatch.setattr("inferir.doctor.toolchain_layer._llvm", lambda: Finding("toolchain", "LLVM", "ok", "as always"))

    def invoke(*args: object, status: int = 1) -> list[str]:
        result = cli("doctor", *args)
        assert result.status == status, result.out
        return [x for x in result.out.splitlines()[:-1] if not x.startswith(("ok ", "skipped "))]

    return invoke


def changed(art: Path, **fields: Any) -> None:
    """Write other values into the artifact's manifest."""
    write_manifest(art, msgspec.structs.replace(read_manifest(art), **fields))


# --- planted faults ---------------------------------------------------------------------------------------------------


def test_a_cache_that_cannot_be_written_to(
    faults: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file stands where a folder of its path should be, which stops root as well."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("INFERIR_CACHE", str(tmp_path / "file" / "cache"))
    (line,) = faults("--quick")
    assert line.startswith(f"failed   cache: folder: compile cache {tmp_path}/file/cache: cannot write ")
    assert line.endswith("; free or unlock that folder, or set INFERIR_CACHE to another one, or to off for none")


def test_a_cache_that_others_may_write_to(faults: Callable[..., list[str]], cache: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    (line,) = faults("--quick")
    assert f"{cache} can be written to by other users" in line
    assert line.endswith("mend that (chmod, chown), or set INFERIR_CACHE to another folder")


def test_an_artifact_for_another_processor(faults: Callable[..., list[str]], art: Path) -> None:
    changed(art, target=with_feature(read_manifest(art).target, "amx-none"))
    (line,) = faults(art, "--quick")
    assert line.startswith("failed   artifact: target: the artifact was compiled for ")
    assert "this processor lacks amx-none" in line
    assert line.endswith("compile the model again with --target host on this machine or with an older target")


def with_feature(target: Target, feature: str) -> Target:
    return Target.from_record({**target.record(), "features": [*target.features, feature]})


def test_no_linker(cli: Callable[..., Any], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs it is skipped, with the reason."""
    monkeypatch.setenv("PATH", str(tmp_path))
    lines = cli("doctor").out.splitlines()
    assert "failed   toolchain: linker: no linker found (ld.lld or ld on PATH); " in " ".join(lines)
    assert next(x for x in lines if "linker:" in x).endswith("install binutils (ld) or LLVM's lld")
    assert "skipped  compile: tiny model: skipped because toolchain: linker failed" in lines
    assert "skipped  step: tiny model: skipped because there is no tiny artifact" in lines
    assert any(x.startswith("skipped  server: answers: skipped because there is no artifact to serve") for x in lines)
    assert lines[-1].split(", ")[1:] == ["1 failed", "3 skipped"]


def test_a_damaged_artifact(faults: Callable[..., list[str]], art: Path) -> None:
    """Every damaged file is named."""
    kernels, weights = sorted((art / "kernels").iterdir())[0], next((art / "weights").iterdir())
    kernels.write_bytes(kernels.read_bytes()[:-1])
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    first, second = faults(art, "--quick")
    assert first.startswith(f"failed   artifact: files: {kernels}: {len(kernels.read_bytes())} bytes instead of ")
    assert second.startswith(f"failed   artifact: files: {weights}: checksum mismatch, the file is damaged")
    assert first.endswith("copy or compile it again")
    assert second.endswith("copy or compile it again")


def test_a_port_in_use(faults: Callable[..., list[str]], art: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be compiled, the artifact is what is served."""
    monkeypatch.setattr(extras, "lacks", lambda extra: "torch, which is not installed: pip install 'inferir[compile]'")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (line,) = faults(art, "--port", port)
    expected = f"port {port} on 127.0.0.1 is in use; choose another with --port"
    assert line == f"failed   server: answers: {expected}"


def test_too_little_memory(faults: Callable[..., list[str]], art: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_bytes", lambda: 100 << 10)
    own, served = faults(art, "--quick")
    assert own.startswith("failed   machine: memory: 100.0 KiB available within the limits")
    assert own.endswith("raise the limit (memory.max of the control group, ulimit -v, ulimit -d)")
    assert served.startswith("failed   artifact: memory: needs at least ")
    assert "100.0 KiB are available" in served
    assert served.endswith("raise the limit (control group, ulimit), or serve it on a larger machine")


def test_the_more_memory_the_better(tiny_artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little for the smallest cache, too little for a sequence of full length, enough."""
    manifest, states = read_manifest(tiny_artifact), []
    for free in range(0, 4 << 20, 8 << 10):
        monkeypatch.setattr(machine, "available_bytes", lambda free=free: free)
        states.append(artifact_layer._memory(manifest).state)
    assert list(dict.fromkeys(states)) == ["failed", "warning", "ok"]
    assert states == sorted(states, key=["failed", "warning", "ok"].index)


def test_an_old_driver(faults: Callable[..., list[str]], art: Path, tmp_path: Path) -> None:
    record = tmp_path / "version"
    record.write_text(DRIVER)
    (line,) = faults("--quick", "--driver-record", record, status=0)
    assert line.startswith("warning  gpu: driver: 470.82.01 is too old: kernels made with CUDA 13 need 580.65.06")
    for_gpu(art)
    lines = faults(art, "--quick", "--driver-record", record)
    (line,) = [x for x in lines if "gpu: driver" in x]
    assert line == (
        "failed   gpu: driver: 470.82.01 is too old: kernels made with CUDA 12 need 525.60.13; "
        "update the NVIDIA driver to 525.60.13 or newer"
    )
    (line,) = [x for x in faults(art, "--quick", "--driver-record", tmp_path / "none") if "gpu: driver" in x]
    assert f"no GPU: {tmp_path}/none does not exist, and the artifact was compiled for one" in line


def for_gpu(art: Path) -> None:
    """Make it one whose libraries hold a device image that CUDA 12.8 made."""
    sizes = dict.fromkeys((f.name for f in msgspec.structs.fields(GpuKernel) if f.type is int), 1)
    texts = {"name": "k", "target": "sm_90", "image": b"\x7fELF", "grid": (), "params": ()}
    flags = {"launch_pdl": False, "launch_cooperative_grid": False, "versions": {"triton": "3.6", "ptxas": "12.8"}}
    kernel = GpuKernel(**{**sizes, **texts, **flags})  # type: ignore[arg-type]
    for file in (art / "kernels").iterdir():
        file.write_bytes(GpuLibrary(kernels=(kernel,)).to_bytes())
    changed(art, target=Target.named("cuda:sm_90"), files=file_records(art))


def test_an_artifact_of_another_version(faults: Callable[..., list[str]], art: Path) -> None:
    changed(art, abi=3)
    (line,) = faults(art, "--quick")
    assert line == f"failed   artifact: interface: {art}: kernels speak interface 3, this runtime 4; compile it again"
    file = art / "manifest.json"
    file.write_bytes(file.read_bytes().replace(b'"format":3', b'"format":2', 1))
    (line,) = faults(art, "--quick")
    assert line.startswith(f"failed   artifact: manifest: {file}: format 2, this version of Inferir reads format 3")
    assert line.endswith("; compile the model again")


def test_a_library_outside_of_its_range(
    faults: Callable[..., list[str]], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = version_ranges.installed_version
    found = {"tokenizers": "0.19.1", "msgspec": None}
    monkeypatch.setattr(version_ranges, "installed_version", lambda name: found.get(name, real(name)))
    absent, old = faults("--quick")
    assert absent.startswith("failed   toolchain: serving libraries: msgspec is not installed; inferir needs msgspec")
    assert absent.endswith("; pip install 'msgspec>=0.19'")
    assert "tokenizers 0.19.1 is installed, outside of the range; inferir needs tokenizers>=0.22" in old
    assert old.endswith("; pip install 'tokenizers>=0.22'")


def test_a_missing_tokenizer_file(faults: Callable[..., list[str]], art: Path) -> None:
    (art / "tokenizer" / "tokenizer.json").unlink()
    files, tokenizer = faults(art, "--quick")
    assert files.startswith(f"failed   artifact: files: {art}/tokenizer/tokenizer.json: missing from the artifact")
    assert files.endswith("copy or compile it again")
    assert tokenizer.startswith(f"failed   artifact: tokenizer: {art}/tokenizer/tokenizer.json: not found")


def test_a_stale_lock(faults: Callable[..., list[str]], cache: Path) -> None:
    incoming = cache / "v2" / "incoming"
    incoming.mkdir(parents=True)
    descriptor = os.open(incoming, os.O_RDONLY)
    held = held_folder.make_held(descriptor, incoming, "entry")
    assert faults("--quick", status=0) == []  # as long as its maker lives
    held.abandon()
    (line,) = faults("--quick", status=0)
    assert line.startswith(f"warning  cache: locks: stale lock of a process that was killed: {held.path}")
    assert line.endswith("the next compile removes it, and so does inferir cache verify")
    assert held.path.exists()
    os.close(descriptor)


# --- the test itself --------------------------------------------------------------------------------------------------


def test_a_healthy_machine(tmp_path: Path) -> None:
    """Every layer is ok, and nothing is left: no file, no cache, no process."""
    scratch, cache = tmp_path / "tmp", tmp_path / "cache"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch), "INFERIR_CACHE": str(cache)}
    command = [sys.executable, "-P", "-m", "inferir", "doctor", "--json"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    out, errors = process.communicate(timeout=120)
    report = msgspec.json.decode(out)
    assert (process.returncode, report["passed"]) == (0, True), out
    assert {f["layer"] for f in report["findings"]} == {
        "machine",
        "toolchain",
        "cache",
        "gpu",
        "compile",
        "step",
        "server",
    }
    assert [f for f in report["findings"] if f["state"] in ("failed", "skipped")] == []
    assert errors == ""
    assert list(scratch.iterdir()) == []
    assert not cache.exists()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_without_the_compiler_it_says_so(cli: Callable[..., Any], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "lacks", lambda extra: "torch, which is not installed: pip install 'inferir[compile]'")
    result = cli("doctor")
    assert result.status == 0, result.out
    reason = "skipped because the compiler is not installed (torch is missing): this installation serves only"
    assert f"skipped  toolchain: compiler libraries: {reason}" in result.out
    assert "to compile here: pip install 'inferir[compile]'" in result.out


def test_a_check_that_breaks_stops_no_other(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(quick: bool) -> list[Finding]:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(doctor.cache_layer, "check_cache", broken)
    findings = doctor.self_test(doctor.DoctorOptions(quick=True))
    (found,) = [f for f in findings if f.layer == "cache"]
    assert (found.state, "division by zero" in found.message) == ("failed", True)
    assert findings[-1].layer == "server"


def test_it_takes_what_is_no_artifact(faults: Callable[..., list[str]], tmp_path: Path, cache: Path) -> None:
    (line,) = faults(tmp_path, "--quick")
    assert line.startswith(f"failed   artifact: manifest: {tmp_path}/manifest.json: not found")
