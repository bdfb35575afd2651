"""A stats logger: a line of JSON per snapshot, in the file that ACME_STATS names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any


def note(stats: Mapping[str, Any]) -> None:
    with open(os.environ["ACME_STATS"], "a", encoding="utf-8") as file:
        file.write(json.dumps(dict(stats)) + "\n")
