"""Studies and their members as Prometheus sees them: read from memory at the moment of a scrape.

Nothing of a study is kept here, so one that is gone is gone from the next scrape. Whoever can read /metrics
sees names of studies and sites, where each stands, and means and medians over the sites of a round: what
`status` shows, less what it shows of single sites' scores. Members are listed while their study runs.
No database, no lock: a scrape never waits for a study.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import get_args

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from fedmap.study.answer_names import GLOBAL, PERSONAL
from fedmap.study.course.questions import answers_needed, is_late, live_sites, usable_count
from fedmap.study.course.state import OpenTask, Phase
from fedmap_aggregator.metrics import PREFIX, Progress
from fedmap_aggregator.operator.status import standing
from fedmap_aggregator.studies.liveness import Presence
from fedmap_aggregator.studies.service import Study
from fedmap_aggregator.studies.status_report import member_status

_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "study_phase": ("1 for the phase a study is in", "study", "phase"),
    "study_paused": ("1 while the operator has paused the study", "study"),
    "study_held": ("1 while a failed computation waits for the operator", "study"),
    "study_running": ("1 from the start to the end, but for pauses", "study"),
    "study_rounds_done": ("Rounds whose prior is computed", "study"),
    "study_rounds_planned": ("Rounds of the study's terms", "study"),
    "study_quorum": ("Sites that a round needs", "study"),
    "live_sites": ("Members that take part and give signs of life", "study"),
    "silent_sites": ("Members without a sign of life in the limit", "study"),
    "late_sites": ("Members past the deadline of the open task", "study"),
    "open_tasks": ("Tasks that wait for answers", "study"),
    "study_step_limit_seconds": ("Time that sites have for a step", "study"),
    "study_last_progress_timestamp_seconds": (
        "When a step was closed or begun, or an answer taken, last",
        "study",
    ),
    "task_answers": ("Answers to the open task that count", "study"),
    "task_answers_needed": ("Answers that close the open task at its deadline", "study"),
    "task_deadline_timestamp_seconds": ("Deadline of the open task", "study"),
    "member_state": ("1 for where a member stands, in the words of `status`", "study", "site", "state"),
    "member_lateness_seconds": ("Time since the deadline it missed", "study", "site"),
    "site_last_seen_timestamp_seconds": ("Last sign of life of a member", "site"),
    "round_answers": ("Weighted answers in the last closed round", "study"),
    "round_loss": ("Mean training loss of the last closed round", "study"),
    "round_validation_loss": ("Mean validation loss of the last closed round", "study"),
    "round_penalty": ("Weighted penalty of the last closed round", "study"),
    "round_largest_weight": ("Largest weight of a site in that round", "study"),
    "round_metric": (
        "Median of the plan's metric over sites, on validation rows; newest round that has it",
        "study",
        "metric",
        "model",
    ),
}
"""What is told, and by which labels."""
_Page = Mapping[str, GaugeMetricFamily]


@dataclass(frozen=True)
class StudyMetrics(Collector):
    """A collector of the aggregator's registry."""

    studies: Callable[[], Iterable[Study]]
    presence: Callable[[str], Presence]
    progress: Callable[[str], Progress]
    clock_ms: Callable[[], int]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        now = self.clock_ms()
        page = {
            name: GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
            for name, (text, *labels) in _FAMILIES.items()
        }
        heard: dict[str, int] = {}
        for study in self.studies():
            self._show_study(page, study, now)
            _show_rounds(page, study, self.progress(study.state.study))
            if not study.state.over:
                self._show_members(page, study, now, heard)
        for site, at in sorted(heard.items()):
            page["site_last_seen_timestamp_seconds"].add_metric((site,), at / 1000)
        return page.values()

    def _show_study(self, page: _Page, study: Study, now: int) -> None:
        state = study.state
        name = (state.study,)
        for phase in get_args(Phase):
            page["study_phase"].add_metric((*name, phase), phase == state.phase)
        page["study_paused"].add_metric(name, state.paused)
        page["study_held"].add_metric(name, bool(state.problem))
        page["study_running"].add_metric(name, not (state.over or state.paused or state.phase == "approvals"))
        page["study_rounds_done"].add_metric(name, state.rounds_done)
        page["study_rounds_planned"].add_metric(name, state.rounds)
        page["study_quorum"].add_metric(name, state.quorum)
        page["live_sites"].add_metric(name, 0 if state.over else len(live_sites(state)))
        page["silent_sites"].add_metric(name, 0 if state.over else len(state.silent))
        page["late_sites"].add_metric(name, sum(is_late(state, site, now) for site in state.members))
        task = state.task if not state.computing else None
        page["open_tasks"].add_metric(name, task is not None)
        page["study_step_limit_seconds"].add_metric(name, state.deadline_seconds)
        progressed = self.progress(state.study).at
        if state.task is not None and state.task.attempt == 1:
            progressed = max(progressed, _opened_at(state.task, state.deadline_seconds))
        if progressed:
            page["study_last_progress_timestamp_seconds"].add_metric(name, progressed / 1000)
        if task is not None:
            page["task_answers"].add_metric(name, usable_count(task))
            page["task_answers_needed"].add_metric(name, answers_needed(state, task, now))
            page["task_deadline_timestamp_seconds"].add_metric(name, task.deadline_at / 1000)

    def _show_members(self, page: _Page, study: Study, now: int, heard: dict[str, int]) -> None:
        state = study.state
        for site in sorted(state.members):
            seen = self.presence(site)
            labels = (state.study, site)
            word = standing(member_status(study, site, "", seen, now))
            page["member_state"].add_metric((*labels, word), 1)
            late = 0
            if state.task is not None and is_late(state, site, now):
                late = now - state.task.deadline_at
            page["member_lateness_seconds"].add_metric(labels, late / 1000)
            if seen.heard_at:
                heard[site] = seen.heard_at


def _opened_at(task: OpenTask, limit_seconds: float) -> int:
    """Unix ms, pauses not counted: a resume moves the deadline by the length of the pause."""
    return task.deadline_at - round(limit_seconds * 1000)


def _show_rounds(page: _Page, study: Study, progress: Progress) -> None:
    """Means and medians over the sites that answered; what they did not measure or withheld is not there."""
    name, newest = (study.state.study,), progress.newest
    if newest is None:
        return
    page["round_answers"].add_metric(name, newest.answered)
    page["round_penalty"].add_metric(name, newest.penalty)
    page["round_largest_weight"].add_metric(name, newest.largest_weight)
    for family, loss in (("round_loss", newest.loss), ("round_validation_loss", newest.validation_loss)):
        if loss is not None:
            page[family].add_metric(name, loss)
    for model, value in ((PERSONAL, progress.own_metric), (GLOBAL, progress.global_metric)):
        if value is not None:
            page["round_metric"].add_metric((*name, study.terms.plan.task.metric, model), value)
