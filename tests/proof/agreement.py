"""What must be equal bit for bit between drivers, on any machine.

The services and Flower give what the loop engine gives. Whatever two of them both tell under one name is
compared; a list says what each pair has to tell at least, so that nothing drops out unseen.
"""

from __future__ import annotations

from tests.proof.plans import Proved
from tests.proof.record import AllFindings, Difference

PAIRS = (("lab-loop", "services"), ("lab-loop", "flower"), ("services", "flower"))
_ALWAYS = ("mu", "psi", "buffers", "rule", "scores", "losses")
DIFFERENT: dict[tuple[str, str, str], tuple[str, ...]] = {
    # Two sites have a class of few test rows: agents keep those scores back, the lab shows all.
    ("classes", "lab-loop", "services"): ("scores",),
    ("classes", "lab-loop", "flower"): ("scores",),
}
"""Study and pair: what differs by nature."""


def disagreements(studies: tuple[Proved, ...], found: AllFindings) -> tuple[int, list[Difference]]:
    """How many findings were compared between drivers, and which of them differ."""
    compared, wrong = 0, []
    for study in studies:
        for one, other in PAIRS:
            left, right = found.get(f"{study.name} / {one}"), found.get(f"{study.name} / {other}")
            if left is None or right is None:
                continue
            own = tuple(f"own model of {site}" for site in study.sites)
            excepted = DIFFERENT.get((study.name, one, other), ())
            for what in sorted({*(left.keys() & right.keys()), *_ALWAYS, *own} - {*excepted}):
                first = left[what].digest if what in left else "nothing"
                second = right[what].digest if what in right else "nothing"
                compared += 1
                if first != second:
                    where = f"{study.name} / {other}"
                    wrong.append(Difference(where, what, f"{first} as {one}", second))
    return compared, wrong
