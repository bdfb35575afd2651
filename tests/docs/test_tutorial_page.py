"""The reader of tutorial pages notices what a page says wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest
from tutorial_page import Command, File, difference, steps

PAGE = """# Title

```python
# acme/one.py
X = 1
```

```console
$ first --long \\
    option
12.5 ms   a
$ second
…
last line
```

```python
>>> 1 + 1
2
```
"""


def test_steps_come_in_order(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    assert list(steps(tmp_path / "page.md")) == [
        File("acme/one.py", "# acme/one.py\nX = 1\n"),
        Command("first --long option", ("12.5 ms   a",)),
        Command("second", ("…", "last line")),
    ]


@pytest.mark.parametrize(
    ("page", "printed", "same"),
    [
        ("took 12.5 ms", "took 3 s", True),
        ("took 12.5 ms", "took 3 s\nmore", False),
        ("took 12.5 ms\n…", "took 3 s\nmore", True),
        ("…\nlast", "a\nb\nlast", True),
        ("…\nlast", "a\nb\nlast\nafter", False),
        ("…\nlast", "a\nb", False),
        ("a\nc", "a\nb\nc", False),
        ("a   b\n────", "a b\n──────", True),
        ("k1_linear", "k2_linear", False),
        ("for …, 1 bucket", "for x86-64-v3, 2 bucket", True),
        ("for …, 1 bucket", "for x86-64-v3, 2 buckets", False),
        ("bound 2.00e-04, 3 of 4", "bound 1e-5, 4 of 4", True),
        ("", "something", False),
        ("something", "", False),
        ("failed", "passed", False),
    ],
)
def test_what_is_printed_is_compared(page: str, printed: str, same: bool) -> None:
    assert (difference(tuple(page.splitlines()), printed) is None) == same
