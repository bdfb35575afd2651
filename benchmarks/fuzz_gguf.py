"""Thousands of GGUF files that are wrong in one way each: every one is right or one clear line.

    python -m benchmarks.fuzz_gguf --cases 5000 --seed 1

Prints every case that is not, the slowest, and how much the process grew.
"""

from __future__ import annotations

import argparse
import collections
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path


def main() -> int:
    """Exit status 1 if a case is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from gguf_mutations import bases, generate, judge, load

    outcomes: collections.Counter[str] = collections.Counter()
    slowest, wrong = (0.0, ""), 0
    with tempfile.TemporaryDirectory() as folder:
        unchanged = {name: load(gguf.write(Path(folder) / f"{name}.gguf")) for name, gguf in bases().items()}
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for case in generate(options.seed, options.cases):
            path = Path(folder) / f"{case.base}-changed.gguf"
            path.write_bytes(case.data)
            start = time.perf_counter()
            try:
                result = load(path)
                problem = judge(case, result, unchanged[case.base])
                outcomes["refused" if result.error else "read"] += 1
            except Exception:
                problem = traceback.format_exc()
            slowest = max(slowest, (time.perf_counter() - start, f"{case.base}: {case.what}"))
            if problem:
                wrong += 1
                print(f"WRONG {case.base}: {case.what} (expected {case.expect}): {problem}", flush=True)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"{options.cases} cases, {dict(outcomes)}, {wrong} wrong; slowest {slowest[0]:.2f} s ({slowest[1]})")
    print(f"the process grew by {grown:.0f} MiB")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
