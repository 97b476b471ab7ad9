"""The stored digests: written, read, and held against what was found.

Where the machine is of the type of the record, digests are compared; elsewhere the figures beside them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tests.proof.findings import Finding, Findings

RECORDED = Path(__file__).with_name("recorded.json")
RELATIVE, ABSOLUTE = 0.05, 0.05
"""Figures of another machine agree within the larger of the two: trained for rounds, sums in another order
drift apart, and one test row more or less moves a score by hundredths."""

_FORMAT = 1
AllFindings = Mapping[str, Findings]  # by "plan / driver"


@dataclass(frozen=True)
class Difference:
    """One line of the answer."""

    where: str  # plan / driver
    what: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.where} / {self.what} / expected {self.expected} / found {self.found}"


@dataclass(frozen=True)
class Record:
    """What was recorded, and on which type of machine."""

    machine: Mapping[str, str]
    findings: AllFindings


def machine() -> dict[str, str]:
    """What bits may depend on. The vectorised engine makes its blocks by the number of cores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "torch": str(torch.__version__),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": models[0] if models else "unknown",
        "cores": str(os.cpu_count()),
    }


def write(found: AllFindings) -> None:
    """One line for each finding, so that a change of the file can be read."""
    lines = [f'{{"format": {_FORMAT},', f'"machine": {json.dumps(machine())},', '"findings": {']
    for number, (where, findings) in enumerate(sorted(found.items())):
        lines.append(("," if number else "") + f"{json.dumps(where)}: {{")
        entries = [
            f"  {json.dumps(what)}: {json.dumps([finding.digest, dict(finding.figures)])}"
            for what, finding in sorted(findings.items())
        ]
        lines += [",\n".join(entries), "}"]
    RECORDED.write_text("\n".join([*lines, "}}"]) + "\n")


def read() -> Record:
    told = json.loads(RECORDED.read_text())
    findings = {
        where: {what: Finding(digest, figures) for what, (digest, figures) in of_driver.items()}
        for where, of_driver in told["findings"].items()
    }
    return Record(told["machine"], findings)


def differences(record: Record, found: AllFindings) -> list[Difference]:
    """Of the drivers that were run. A finding that is gone or new is one too."""
    same_machine = record.machine == machine()
    wrong = []
    for where in sorted(found):
        expected, here = record.findings.get(where, {}), found[where]
        for what in sorted(expected.keys() | here.keys()):
            old, new = expected.get(what), here.get(what)
            agree = old is not None and new is not None and _agree(old, new, same_machine)
            if not agree:
                wrong.append(Difference(where, what, _words(old), _words(new)))
    return wrong


def _agree(old: Finding, new: Finding, same_machine: bool) -> bool:
    if same_machine:
        return old.digest == new.digest
    return old.figures.keys() == new.figures.keys() and all(
        math.isclose(figure, new.figures[name], rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        for name, figure in old.figures.items()
    )


def _words(finding: Finding | None) -> str:
    if finding is None:
        return "nothing"
    figures = " ".join(f"{name}={value:g}" for name, value in finding.figures.items())
    return f"{finding.digest} {figures}".strip()
