"""Starts the module that has to import the project, in the environment where Flower is installed."""

from __future__ import annotations

from pathlib import Path

from tests.proof import programs
from tests.proof.plans import MISSED_ROUND, MISSING_SITE, SEED, Proved

_MODULE = "tests.integrations.proof_in_hand"


def run_in_hand(what: str, study: Proved, out: Path) -> None:
    """`what` is lab-loop, lab-vectorised or flower; the result is in `out`."""
    missing = [MISSING_SITE, str(MISSED_ROUND)] if study.has_absence else ["", "0"]
    python = programs.LAYER / "python"
    arguments = [what, study.plan, study.cohort, out, str(study.rounds), str(SEED), *missing]
    programs.run([python, "-m", _MODULE, *arguments])
