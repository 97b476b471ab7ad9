"""What the centre hears of a task that could not be done: a code, and one fixed sentence for each code.

An error's own words may hold counts below the floor, so they never leave; they stay in the site's log and
status. The sentences here hold no number at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedmap.contract.v1.values import FailureAnswer
from fedmap.errors import FedmapError
from fedmap.study.answer_names import WITHHELD

# What libraries raise when data or memory are not as they should be. The task fails; the agent goes on.
UNEXPECTED = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
_OWN_LOG = "the site's own log says more"
_SENTENCES: Mapping[str, str] = MappingProxyType(
    {
        "data": f"the site's data do not fit the plan or do not reach the floors: {_OWN_LOG}",
        "plan": f"the site cannot read the study's plan: {_OWN_LOG}",
        "model": f"the prior or the site's own model does not fit the plan: {_OWN_LOG}",
        "training": f"the fit gave no usable result: {_OWN_LOG}",
        "config": f"the site's configuration or policy cannot be used: {_OWN_LOG}",
        "rejected": f"the site's policy does not allow it: {_OWN_LOG}",
        "storage": f"the site's disk does not do its part: {_OWN_LOG}",
        "integrity": f"files of the site are damaged: {_OWN_LOG}",
        "incompatible": "the site's agent does not know this kind of task: it has to be updated",
        WITHHELD: "withheld by the site's reviewer",
    }
)


def failure_answer(error: FedmapError) -> FailureAnswer:
    """What leaves in place of an answer."""
    return failure_of(error.code)


def failure_of(code: str) -> FailureAnswer:
    """The sentence of a code; one that has none of its own gets the general one."""
    return FailureAnswer(code=code, reason=_SENTENCES.get(code, f"the site could not do it: {_OWN_LOG}"))
