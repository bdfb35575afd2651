"""All layers in order. One that fails does not stop those that do not depend on it; those that do are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from inferir.doctor import cache_layer, machine_layer, server_layer, toolchain_layer
from inferir.doctor.artifact_layer import FILES, INTERFACE, MANIFEST, MEMORY, TARGET, check_artifact
from inferir.doctor.artifact_layer import LAYER as ARTIFACT
from inferir.doctor.compile_layer import COMPILE, STEP, TinyCompile
from inferir.doctor.driver_layer import LAYER as GPU
from inferir.doctor.driver_layer import check_driver
from inferir.doctor.finding import Finding, broken, failure, skipped
from inferir.ir.contract.gpu_driver import RECORD
from inferir.ir.system.held_folder import scratch_folder

Say = Callable[[str, int, int], object]
"""Is told of a layer: its name, done, and of how many."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """artifact: also examined. port: that of the server, 0 for a free one. quick: nothing is compiled or served.
    driver_record: what tells of the GPU driver.
    """

    artifact: Path | None = None
    port: int = 0
    quick: bool = False
    driver_record: Path = RECORD


def self_test(options: DoctorOptions, say: Say = lambda layer, done, total: None) -> list[Finding]:
    """All findings, in order. Raises nothing that a check meets; nothing is left behind."""
    run = _Run(say)
    run.layer(machine_layer.LAYER, machine_layer.check_machine)
    run.layer(toolchain_layer.LAYER, toolchain_layer.check_toolchain)
    run.layer(cache_layer.LAYER, lambda: cache_layer.check_cache(options.quick))
    run.layer(GPU, lambda: check_driver(options.artifact, options.driver_record))
    artifact = options.artifact
    if artifact is not None:
        run.layer(ARTIFACT, lambda: check_artifact(artifact))
    if options.quick:
        for layer in (COMPILE, STEP, server_layer.LAYER):
            run.findings.append(skipped(layer, "tiny model", "the test is a quick one"))
    elif (reason := run.broken(machine_layer.TEMPORARY)) is not None:
        for layer in (COMPILE, STEP, server_layer.LAYER):
            run.findings.append(skipped(layer, "tiny model", reason))
    else:
        _compile_and_serve(run, options)
    return run.findings


class _Run:
    def __init__(self, say: Say) -> None:
        self.findings: list[Finding] = []
        self._say = say

    def layer(self, name: str, check: Callable[[], Iterable[Finding]]) -> bool:
        """Make the checks of a layer; whether none failed."""
        self._say(name, 0, 1)
        before = len(self.findings)
        try:
            for finding in check():
                self.findings.append(finding)
        except Exception as error:
            self.findings.append(failure(name, "check", error, "report it with the output of `inferir doctor --json`"))
        self._say(name, 1, 1)
        return all(f.state != "failed" for f in self.findings[before:])

    def broken(self, *names: str, layer: str | None = None) -> str | None:
        return broken((f for f in self.findings if layer in (None, f.layer)), *names)


def _compile_and_serve(run: _Run, options: DoctorOptions) -> None:
    with scratch_folder("doctor") as folder:
        tiny = TinyCompile(folder.path)
        tools = (toolchain_layer.COMPILER, toolchain_layer.LINKER, toolchain_layer.LLVM)
        reason = run.broken(*tools, "instruction set", layer=None)
        compiled = False
        if reason is not None:
            run.findings.append(skipped(COMPILE, "tiny model", reason))
        else:
            compiled = run.layer(COMPILE, tiny.check_compile)
        if compiled:
            run.layer(STEP, tiny.check_step)
        else:
            run.findings.append(skipped(STEP, "tiny model", "there is no tiny artifact"))
        served = tiny.artifact if compiled else options.artifact
        if served is None:
            reason = "there is no artifact to serve: give one, inferir doctor ART"
        elif not compiled:
            reason = run.broken(MANIFEST, FILES, INTERFACE, TARGET, MEMORY, layer=ARTIFACT)
        else:
            reason = None
        if reason is not None or served is None:
            run.findings.append(skipped(server_layer.LAYER, "answers", reason or ""))
        else:
            run.layer(server_layer.LAYER, lambda: server_layer.check_server(served, options.port))
