"""A tiny model through the whole compiler, and a step of what came of it against the reference interpreter."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inferir.doctor.finding import Finding, failure
from inferir.doctor.tiny_model import write_tiny_model
from inferir.ir.system.quantities import seconds, size

if TYPE_CHECKING:
    from inferir.codegen.cache.compile_cache import CompileCache
    from inferir.compile.compile_types import CompileOptions

COMPILE, STEP = "compile", "step"
TOKENS = (256, 72, 101, 108, 108, 111)
TOLERANCE = 1e-4
"""Largest difference of a logit, relative to the largest logit. Both compute in float32, in other orders."""
_REPORT = "report it with the output of `inferir doctor --json`"


@dataclass
class TinyCompile:
    """The tiny model in the folder `place`, with everything that the compiler found out about it in memory."""

    place: Path
    cache: CompileCache = field(init=False)
    options: CompileOptions = field(init=False)

    @property
    def model(self) -> Path:
        return self.place / "tiny"

    @property
    def artifact(self) -> Path:
        return self.place / "artifact"

    def check_compile(self) -> Iterator[Finding]:
        """Compile for this machine with one bucket, without the user's cache."""
        advice = "mend what failed above; otherwise " + _REPORT
        start = time.perf_counter()
        try:
            self._compile()
        except Exception as error:
            yield failure(COMPILE, "tiny model", error, advice)
            return
        spent = seconds(time.perf_counter() - start)
        nbytes = sum(p.stat().st_size for p in self.artifact.rglob("*") if p.is_file())
        yield Finding(COMPILE, "tiny model", "ok", f"captured, lowered, built and packed in {spent}: {size(nbytes)}")

    def check_step(self) -> Iterator[Finding]:
        """Load the artifact and compare the logits of a short sequence, a token per step, with the reference's."""
        name = "tiny model against the reference"
        try:
            got, want = self._logits(), self._reference()
        except Exception as error:
            yield failure(STEP, name, error, _REPORT)
            return
        worst = float(abs(got - want).max() / abs(want).max())
        if worst <= TOLERANCE:
            yield Finding(STEP, name, "ok", f"logits of {len(TOKENS)} tokens equal within {worst:.1e}")
        else:
            message = f"logits differ by {worst:.1e} of the largest, accepted {TOLERANCE:.0e}: kernels compute wrongly"
            yield Finding(STEP, name, "failed", message, _REPORT)

    def _compile(self) -> None:
        from inferir.codegen.cache.compile_cache import CompileCache
        from inferir.compile.compile_types import CompileOptions
        from inferir.compile.compiler import compile_model

        write_tiny_model(self.model)
        self.cache = CompileCache(None)
        self.options = CompileOptions(
            max_num_batched_tokens=1, max_num_seqs=1, buckets="1", jobs=1, trace_check=False, max_model_len=64
        )
        compile_model(str(self.model), self.artifact, self.options, cache=self.cache)

    def _logits(self) -> Any:
        """[tokens, vocabulary] of the compiled model."""
        from inferir.runtime.build_engine import build_engine
        from inferir.runtime.engine.engine_options import EngineOptions
        from inferir.runtime.executor.executors import check_target
        from inferir.runtime.loader import load_artifact
        from inferir.runtime.probe import sequence_logits

        engine = build_engine(load_artifact(self.artifact, check_target), EngineOptions(threads=1))
        try:
            (logits,) = sequence_logits(engine, [TOKENS], chunk=1)
        finally:
            engine.close()
        return logits

    def _reference(self) -> Any:
        """The same by the interpreter, which runs the captured graph over the checkpoint with torch."""
        import torch

        from inferir.compile.compiler import capture, checkpoint
        from inferir.frontend.source.model_source import load_source
        from inferir.ir.graph.interpreter import interpret

        source = load_source(str(self.model))
        captured = capture(source, self.options, self.cache)
        weights = checkpoint(captured, source)
        inputs = {
            "ids": torch.tensor(TOKENS, dtype=torch.int32),
            "positions": torch.arange(len(TOKENS), dtype=torch.int32),
        }
        held = {name: weights[name] for name in captured.graph.weights()}
        with torch.no_grad():
            return interpret(captured.graph, inputs, held)["logits"].numpy()
