"""The command `inferir`, also `python -m inferir`: quiet about Ctrl-C while the command line is being loaded."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from inferir.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
