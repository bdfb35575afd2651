"""The control groups of this process, of either version."""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def directories(controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP) -> list[Path]:
    """Directories of the process's group and its ancestors, under every hierarchy that may limit `controller`.

    root: where control groups are mounted. membership: lines `id:controllers:path`, without controllers in version 2.
    """
    try:
        lines = membership.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        lines = []
    out = [root, root / controller]
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        for base in {root / controllers, root / controller} if controllers else {root}:
            directory = base
            out.append(directory)
            for part in path.strip("/").split("/"):
                directory = directory / part
                out.append(directory)
    return list(dict.fromkeys(out))
