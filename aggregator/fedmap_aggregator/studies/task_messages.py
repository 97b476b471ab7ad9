"""An open task as the message that a site gets, over the network or in a file."""

from __future__ import annotations

from fedmap.contract.v1.values import Task
from fedmap.study.course.state import OpenTask
from fedmap_aggregator.studies.service import Study


def task_message(study: Study, task: OpenTask) -> Task:
    """The prior is named by digest; the site fetches it by itself."""
    state = study.state
    return Task(
        study=state.study,
        id=task.id,
        kind=task.kind,
        round=task.round,
        terms_digest=study.terms.digest,
        prior_digest=state.prior_digest,
        prior_size=state.prior_size,
        deadline_unix_ms=task.deadline_at,
        attempt=task.attempt,
        rule=state.rule if task.kind == "evaluate" else None,
    )
