"""Studies and their members as Prometheus sees them: read from memory at the moment of a scrape.

Nothing of a study is kept here, so one that is gone is gone from the next scrape. Whoever can read /metrics
sees names of studies and sites, where each stands, and means and medians over the sites of a round: what
`status` shows, less what it shows of single sites' scores. Members are listed while their study runs.
No database, no lock: a scrape never waits for a study.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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


class StudyMetrics(Collector):
    """A collector of the aggregator's registry."""

    def __init__(
        self,
        studies: Callable[[], Iterable[Study]],
        presence: Callable[[str], Presence],
        progress: Callable[[str], Progress],
        clock_ms: Callable[[], int],
    ) -> None:
        self._studies = studies
        self._presence = presence
        self._progress = progress
        self._clock_ms = clock_ms

    def collect(self) -> Iterable[GaugeMetricFamily]:
        page, now = _Page(), self._clock_ms()
        heard: dict[str, int] = {}
        for study in self._studies():
            self._show_study(page, study, now)
            _show_rounds(page, study, self._progress(study.state.study))
            if not study.state.over:
                self._show_members(page, study, now, heard)
        for site, at in sorted(heard.items()):
            page.site_seen.add_metric((site,), at / 1000)
        return page.families

    def _show_study(self, page: _Page, study: Study, now: int) -> None:
        state = study.state
        name = (state.study,)
        for phase in get_args(Phase):
            page.phase.add_metric((*name, phase), phase == state.phase)
        page.paused.add_metric(name, state.paused)
        page.held.add_metric(name, bool(state.problem))
        page.running.add_metric(name, not (state.over or state.paused or state.phase == "approvals"))
        page.rounds_done.add_metric(name, state.rounds_done)
        page.rounds_planned.add_metric(name, state.rounds)
        page.quorum.add_metric(name, state.quorum)
        page.live.add_metric(name, 0 if state.over else len(live_sites(state)))
        page.silent.add_metric(name, 0 if state.over else len(state.silent))
        page.late.add_metric(name, sum(is_late(state, site, now) for site in state.members))
        task = state.task if not state.computing else None
        page.open.add_metric(name, task is not None)
        page.step_limit.add_metric(name, state.deadline_seconds)
        progressed = self._progress(state.study).at
        if state.task is not None and state.task.attempt == 1:
            progressed = max(progressed, _opened_at(state.task, state.deadline_seconds))
        if progressed:
            page.progressed.add_metric(name, progressed / 1000)
        if task is not None:
            page.usable.add_metric(name, usable_count(task))
            page.needed.add_metric(name, answers_needed(state, task, now))
            page.deadline.add_metric(name, task.deadline_at / 1000)

    def _show_members(self, page: _Page, study: Study, now: int, heard: dict[str, int]) -> None:
        state = study.state
        for site in sorted(state.members):
            seen = self._presence(site)
            labels = (state.study, site)
            word = standing(member_status(study, site, "", seen, now))
            page.member_state.add_metric((*labels, word), 1)
            late = 0
            if state.task is not None and is_late(state, site, now):
                late = now - state.task.deadline_at
            page.lateness.add_metric(labels, late / 1000)
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
    page.round_answers.add_metric(name, newest.answered)
    page.penalty.add_metric(name, newest.penalty)
    page.largest_weight.add_metric(name, newest.largest_weight)
    for family, value in ((page.loss, newest.loss), (page.validation_loss, newest.validation_loss)):
        if value is not None:
            family.add_metric(name, value)
    for model, value in ((PERSONAL, progress.own_metric), (GLOBAL, progress.global_metric)):
        if value is not None:
            page.metric.add_metric((*name, study.terms.plan.task.metric, model), value)


class _Page:
    """All families of one scrape."""

    def __init__(self) -> None:
        self.families: list[GaugeMetricFamily] = []
        new = self._new
        self.phase = new("study_phase", "1 for the phase a study is in", "study", "phase")
        self.paused = new("study_paused", "1 while the operator has paused the study", "study")
        self.held = new("study_held", "1 while a failed computation waits for the operator", "study")
        self.running = new("study_running", "1 from the start to the end, but for pauses", "study")
        self.rounds_done = new("study_rounds_done", "Rounds whose prior is computed", "study")
        self.rounds_planned = new("study_rounds_planned", "Rounds of the study's terms", "study")
        self.quorum = new("study_quorum", "Sites that a round needs", "study")
        self.live = new("live_sites", "Members that take part and give signs of life", "study")
        self.silent = new("silent_sites", "Members without a sign of life in the limit", "study")
        self.late = new("late_sites", "Members past the deadline of the open task", "study")
        self.open = new("open_tasks", "Tasks that wait for answers", "study")
        self.step_limit = new("study_step_limit_seconds", "Time that sites have for a step", "study")
        self.progressed = new(
            "study_last_progress_timestamp_seconds",
            "When a step was closed or begun, or an answer taken, last",
            "study",
        )
        self.usable = new("task_answers", "Answers to the open task that count", "study")
        self.needed = new("task_answers_needed", "Answers that close the open task at its deadline", "study")
        self.deadline = new("task_deadline_timestamp_seconds", "Deadline of the open task", "study")
        self.member_state = new(
            "member_state", "1 for where a member stands, in the words of `status`", "study", "site", "state"
        )
        self.lateness = new("member_lateness_seconds", "Time since the deadline it missed", "study", "site")
        self.site_seen = new("site_last_seen_timestamp_seconds", "Last sign of life of a member", "site")
        self.round_answers = new("round_answers", "Weighted answers in the last closed round", "study")
        self.loss = new("round_loss", "Mean training loss of the last closed round", "study")
        self.validation_loss = new(
            "round_validation_loss", "Mean validation loss of the last closed round", "study"
        )
        self.penalty = new("round_penalty", "Weighted penalty of the last closed round", "study")
        self.largest_weight = new("round_largest_weight", "Largest weight of a site in that round", "study")
        self.metric = new(
            "round_metric",
            "Median of the plan's metric over sites, on validation rows; newest round that has it",
            *("study", "metric", "model"),
        )

    def _new(self, name: str, text: str, *labels: str) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=labels)
        self.families.append(family)
        return family
