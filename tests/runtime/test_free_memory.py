"""Free memory within every limit that holds for the process."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from inferir.runtime.machine import available_bytes

PLENTY = "MemTotal: 9 kB\nMemAvailable: 1000000 kB\n"
MiB = 1 << 20


def group(folder: Path, **files: str) -> None:
    """Files of a control group: `memory__max` is `memory.max`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".", 1)).write_text(text)


def test_what_the_system_has() -> None:
    nowhere = Path("/nowhere")
    assert available_bytes(PLENTY, root=nowhere, membership=nowhere) == 1000000 * 1024


def test_groups_of_version_2(tmp_path: Path) -> None:
    """The smallest of the process's own group and those around it; hard and soft limits alike."""
    root, member = tmp_path / "cgroup", tmp_path / "self"
    member.write_text("0::/pod/app\n")
    group(root / "pod", memory__max=f"{100 * MiB}\n", memory__high="max\n", memory__current=f"{30 * MiB}\n")
    group(root / "pod/app", memory__max="max\n", memory__high="max\n", memory__current=f"{20 * MiB}\n")
    assert available_bytes(PLENTY, root=root, membership=member) == 70 * MiB
    group(root / "pod/app", memory__high=f"{50 * MiB}\n")
    assert available_bytes(PLENTY, root=root, membership=member) == 30 * MiB
    group(root / "pod/app", memory__stat=f"anon 5\ninactive_file {15 * MiB}\n")
    assert available_bytes(PLENTY, root=root, membership=member) == 45 * MiB
    group(root / "pod/app", memory__current=f"{90 * MiB}\n")
    assert available_bytes(PLENTY, root=root, membership=member) == 0
    group(root / "other", memory__max="1\n", memory__current="0\n")
    group(root / "pod/app", memory__current="0\n")
    assert available_bytes(PLENTY, root=root, membership=member) == 50 * MiB


def test_groups_of_version_1(tmp_path: Path) -> None:
    root, member = tmp_path / "cgroup", tmp_path / "self"
    member.write_text("9:cpu,cpuacct:/job\n4:memory:/job/step\n0::/\n")
    group(root / "memory/job", memory__limit_in_bytes=f"{64 * MiB}\n", memory__usage_in_bytes=f"{4 * MiB}\n")
    group(root / "memory/job/step", memory__limit_in_bytes=f"{1 << 63}\n", memory__usage_in_bytes="0\n")
    assert available_bytes(PLENTY, root=root, membership=member) == 60 * MiB
    group(root / "memory/job", memory__stat=f"inactive_file 1\ntotal_inactive_file {3 * MiB}\n")
    assert available_bytes(PLENTY, root=root, membership=member) == 63 * MiB


def test_limits_of_the_process() -> None:
    program = "from inferir.runtime.machine import available_bytes; print(available_bytes())"

    def free(limit: int, most: int) -> int:
        def restrict() -> None:
            resource.setrlimit(limit, (most, most))

        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, preexec_fn=restrict, check=True)
        return int(done.stdout)

    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        assert 0 < free(limit, 300 * MiB) < 300 * MiB
