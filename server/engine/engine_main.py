"""`python -m inferir.server.engine.engine_main PIPE SOCKET ARTIFACT OPTIONS`: the engine process from its start.

Whatever ends it, also while it is being loaded, is said in the pipe with this file number, in one line and without a
trace on standard error (INFERIR_DEBUG=1 shows one there).
"""

from __future__ import annotations

import json
import os
import sys
import traceback

from inferir.ir.errors import InferirError
from inferir.ir.system import env, log_levels
from inferir.ir.system.error_report import describe


def main(pipe: int, *arguments: str) -> int:
    """Run the engine process and return its exit status."""
    os.set_inheritable(pipe, False)
    try:
        log_levels.write_to(sys.stderr)
        log_levels.set_levels()
        from inferir.server.engine.engine_process import main as serve

        serve(*arguments)
    except Exception as error:
        message, status = describe(error)
        if env.debug():
            traceback.print_exc()
        os.write(pipe, json.dumps([message, status, isinstance(error, InferirError)]).encode())
        return status
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
