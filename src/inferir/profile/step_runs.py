"""Bringing steps of given shapes about, with and without a recorder."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from inferir.ir.contract.manifest import Manifest
from inferir.ir.errors import InferirError
from inferir.runtime.engine.engine import Engine
from inferir.runtime.recording.recorded_steps import Recording
from inferir.runtime.recording.step_observer import NOBODY
from inferir.runtime.recording.step_recorder import RecordLimits, StepRecorder
from inferir.runtime.sampling.sampling_params import SamplingParams

_MEMORY = RecordLimits(steps=100_000, seconds=3600.0, bytes=512 << 20)


@dataclass(frozen=True)
class Shapes:
    """`batch` prompts of `prompt_tokens` random tokens, each of which then makes `steps` decode steps. With a
    temperature above 0, tokens are drawn from logits; else the most likely one is found without them.
    """

    prompt_tokens: int = 128
    batch: int = 1
    steps: int = 16
    temperature: float = 0.0

    def check(self, engine: Engine) -> None:
        """Raise `InferirError` for what the engine cannot run at once."""
        length = self.prompt_tokens + self.steps + 1
        if self.batch > (most := engine.scheduler.options.max_seqs):
            raise InferirError(f"--batch is {self.batch}; the engine runs at most {most} sequences at once")
        if length > engine.capacity:
            raise InferirError(
                f"--prompt-tokens and --steps make sequences of {length} tokens; the engine holds {engine.capacity}"
            )


@dataclass(frozen=True)
class Run:
    """One run of the shapes: seconds of each step as its caller saw them, and the recording if it was recorded."""

    walls: list[float]
    recording: Recording | None = None


def run_shapes(engine: Engine, shapes: Shapes, manifest: Manifest, *, record: bool) -> Run:
    """Run the shapes to their end. Every run has the same steps in the same order."""
    rng = random.Random(0)
    vocabulary = manifest.model.vocab_size
    params = SamplingParams(max_tokens=shapes.steps + 1, temperature=shapes.temperature, ignore_eos=True, seed=0)
    prompts = [[rng.randrange(vocabulary) for _ in range(shapes.prompt_tokens)] for _ in range(shapes.batch)]
    for prompt in prompts:
        engine.queue(engine.requests.make(prompt, params))
    recorder = None
    if record:
        recorder = StepRecorder(engine.executor, engine.stats, _MEMORY, manifest.kv)
        engine.observer = recorder
    walls: list[float] = []
    try:
        while engine.has_unfinished:
            start = time.perf_counter()
            updates = engine.step()
            walls.append(time.perf_counter() - start)
            failed = next((u.request.error for u in updates if u.finish_reason == "error"), None)
            if failed is not None:
                raise InferirError(failed)
    finally:
        engine.observer = NOBODY
        recording = None if recorder is None else recorder.finish()
    return Run(walls, recording)
