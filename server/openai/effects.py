"""What may become of a request's field."""

from __future__ import annotations

OBEYED = "obeyed"
IDLE = "no effect"
REFUSED = "refused"
DEPENDS = "depends"

EFFECTS = {
    OBEYED: "it does what it says",
    IDLE: "accepted, and nothing here could differ by it",
    REFUSED: "a 400 that names it, unless its value asks for nothing",
    DEPENDS: "obeyed, refused or warned about, as the row says",
}
