"""Children end with their parent, also when it is killed, and at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from serving import alive

from inferir.ir.system.child import child_environment

CHILD = """
import os, time
from inferir.ir.system.child import die_with_parent
{before}
die_with_parent()
print(os.getpid(), "INFERIR_PARENT_PID" in os.environ, flush=True)
time.sleep(600)
"""
PARENT = """
import subprocess, sys, time
from inferir.ir.system.child import before_exec, child_environment
if sys.argv[1] == "ours":
    subprocess.Popen([sys.executable, "-c", sys.argv[2]], env=child_environment())
else:
    subprocess.Popen(["sh", "-c", "echo $$ False; exec sleep 600"], preexec_fn=before_exec())
time.sleep(600)
"""


def gone(pid: int, seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not alive(pid)


@pytest.mark.parametrize("kind", ["ours", "other"])
def test_a_child_dies_with_its_killed_parent(kind: str) -> None:
    command = [sys.executable, "-c", PARENT, kind, CHILD.format(before="")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, inherited = parent.stdout.readline().split()
    assert inherited == "False"  # grandchildren are not told that they are children
    assert alive(int(pid))
    parent.kill()
    parent.wait()
    assert gone(int(pid))
    parent.stdout.close()


def test_a_child_whose_parent_died_first_ends_itself() -> None:
    """The parent is gone before the child has asked to be told."""
    environment = {**child_environment(), "INFERIR_PARENT_PID": "1"}
    if os.getpid() == 1:
        environment["INFERIR_PARENT_PID"] = "2"
    done = subprocess.run(
        [sys.executable, "-c", CHILD.format(before="")], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_without_a_parent_that_said_so_nothing_happens() -> None:
    program = "from inferir.ir.system.child import die_with_parent; die_with_parent(); print('lives')"
    for value in ("", "what"):
        environment = {**os.environ, "INFERIR_PARENT_PID": value}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert done.stdout == "lives\n"
