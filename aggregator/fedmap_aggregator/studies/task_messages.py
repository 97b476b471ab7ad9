"""An open task as the message that a site gets, over the network or in a file."""

from __future__ import annotations

from collections.abc import Mapping

from fedmap.contract import wire
from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.study.course.state import OpenTask, TaskKind
from fedmap_aggregator.studies.service import Study

_KINDS: Mapping[TaskKind, pb.TaskKind.ValueType] = {
    "statistics": pb.TASK_KIND_STATISTICS,
    "initialise": pb.TASK_KIND_INITIALISE,
    "fit": pb.TASK_KIND_FIT,
    "rule": pb.TASK_KIND_RULE,
    "evaluate": pb.TASK_KIND_EVALUATE,
}


def task_message(study: Study, task: OpenTask) -> pb.Task:
    """The prior is named by digest; the site fetches it by itself."""
    state = study.state
    message = pb.Task(
        study=state.study,
        id=task.id,
        kind=_KINDS[task.kind],
        round=task.round,
        terms_digest=study.terms.digest,
        prior_digest=state.prior_digest,
        prior_size=state.prior_size,
        deadline_unix_ms=task.deadline_at,
        attempt=task.attempt,
    )
    if task.kind == "evaluate" and state.rule is not None:
        message.rule.MergeFromString(wire.write(state.rule))
    return message
