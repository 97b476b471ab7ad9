"""Any order of events: the state never contradicts itself, and honest sites always reach the end."""

from __future__ import annotations

from typing import get_args

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedmap.errors import ConflictError, NotFoundError, StaleError, StateError
from fedmap.study.course import events
from fedmap.study.course.coordinator import advance
from fedmap.study.course.events import Compute, Event, Finished, TaskOpened
from fedmap.study.course.questions import (
    answers_needed,
    current_step,
    due_compute,
    is_open,
    live_sites,
    next_tick,
    participants,
    pending_sites,
    step_ids,
    tasks_for,
    usable_count,
    waiting_for,
)
from fedmap.study.course.state import AnswerStatus, Phase, new_study, state_from_json, state_to_json
from tests.aggregator.coordinator_course import DEADLINE_MS

SITES = ("a", "b", "c", "d")
PHASES: tuple[Phase, ...] = get_args(Phase)
STATUSES: tuple[AnswerStatus, ...] = get_args(AnswerStatus)

a_site = st.sampled_from(SITES)
most_sites = st.sampled_from([SITES, SITES, SITES[:3], SITES[:1]]).map(set)
steps = st.integers(0, 6)
most_of_the_time = st.sampled_from([True, True, True, False])


class AnyOrder(RuleBasedStateMachine):
    @initialize(
        quorum=st.integers(1, 3),
        rounds=st.integers(1, 3),
        approved=most_sites,
        steps=steps,
        seed=st.integers(0),
    )
    def create(self, quorum: int, rounds: int, approved: set[str], steps: int, seed: int) -> None:
        """A study that has gone well for some steps, so that trouble comes at each of them."""
        self.now = 1_000_000
        self.state = new_study(
            "study",
            quorum=quorum,
            rounds=rounds,
            seed=seed,
            deadline_seconds=DEADLINE_MS / 1000,
            sites=SITES,
        )
        for site in sorted(approved):
            self.send(events.Approved(self.now, site))
        if steps:
            self.start()
        for _ in range(steps - 1):
            self.everybody_answers(True)
            self.finish_computing(True, set(), 1)

    def send(self, event: Event) -> None:
        before = self.state
        written = state_to_json(before)
        try:
            step = advance(before, event)
        except (NotFoundError, ConflictError, StaleError, StateError):
            assert state_to_json(before) == written
            return
        self.state = step.state
        assert PHASES.index(before.phase) <= PHASES.index(step.state.phase), "the study went back"
        assert before.rounds_done <= step.state.rounds_done <= before.rounds_done + 1
        assert (step.state == before) == (step.state is before), "a copy that changes nothing"
        for decision in step.decisions:
            self.check_decision(decision)
        again = advance(step.state, events.Tick(event.at))
        assert again.state is step.state, "the same moment, and something more is due"

    def check_decision(self, decision: events.Decision) -> None:
        state = self.state
        match decision:
            case Compute():
                assert state.computing
                assert decision == due_compute(state)
                assert decision.kind != "initialise" or len(decision.sites) == 1
                assert decision.kind not in ("statistics", "fit") or len(decision.sites) >= state.quorum
            case TaskOpened():
                assert not state.computing
                assert not state.paused
                assert decision.task == state.task
            case Finished():
                assert state.over

    @rule(site=a_site)
    def approve(self, site: str) -> None:
        self.send(events.Approved(self.now, site))

    @rule(site=a_site, really=st.integers(0, 5))
    def leave(self, site: str, really: int) -> None:
        if not really:
            self.send(events.Left(self.now, site, "gone"))

    @rule()
    def start(self) -> None:
        self.send(events.Started(self.now))

    @rule()
    def pause(self) -> None:
        self.send(events.Paused(self.now))

    @rule()
    def resume(self) -> None:
        self.send(events.Resumed(self.now))

    @rule(really=st.integers(0, 50))
    def abort(self, really: int) -> None:
        if not really:
            self.send(events.Aborted(self.now))

    @rule(site=a_site)
    def fall_silent(self, site: str) -> None:
        self.send(events.Silent(self.now, site))

    @rule(site=a_site)
    def be_heard(self, site: str) -> None:
        self.send(events.Heard(self.now, site))

    @rule(ms=st.sampled_from([1, 1_000, DEADLINE_MS, 10 * DEADLINE_MS]))
    def let_time_pass(self, ms: int) -> None:
        self.now += ms
        self.send(events.Tick(self.now))

    @precondition(lambda self: self.state.task is not None)
    @rule(site=a_site, status=st.sampled_from(STATUSES), late=st.integers(-1, 1), norm=st.floats(0, 1e9))
    def answer(self, site: str, status: AnswerStatus, late: int, norm: float) -> None:
        assert self.state.task is not None
        attempt = self.state.task.attempt + late
        self.send(events.Answered(self.now, site, self.state.task.id, attempt, status, norm))

    @precondition(lambda self: self.state.task is not None)
    @rule(good=most_of_the_time)
    def everybody_answers(self, good: bool) -> None:
        for site in SITES:
            task = tasks_for(self.state, site)
            if task is not None:
                status: AnswerStatus = "accepted" if good else "failed"
                self.send(events.Answered(self.now, site, task.id, task.attempt, status, 1.0))

    @rule(site=a_site, step=st.integers(0, 6))
    def answer_out_of_turn(self, site: str, step: int) -> None:
        known = step_ids(self.state)
        self.send(events.Answered(self.now, site, known[step % len(known)], 1, "accepted"))

    @rule(good=most_of_the_time, excluded=st.sets(a_site, max_size=1), excludes=st.integers(0, 5))
    def finish_computing(self, good: bool, excluded: set[str], excludes: int) -> None:
        task_id = current_step(self.state)
        if good:
            out = dict.fromkeys(excluded, "does not fit") if not excludes else {}
            self.send(events.Computed(self.now, task_id, f"prior-{task_id}", 10, out))
        else:
            self.send(events.ComputeFailed(self.now, task_id, "not finite"))

    @invariant()
    def the_state_does_not_contradict_itself(self) -> None:
        state, task = self.state, self.state.task
        running = not state.over and state.phase != "approvals"
        assert running or task is None
        assert task is not None or not state.computing
        assert not state.problem or state.paused  # not computing once a site has left with its answer
        assert not (running and task is None) or state.paused, "a study that runs and asks nobody"
        if task is None:
            return
        assert task.id == current_step(state)
        assert all(1 <= answer.attempt <= task.attempt for answer in task.answers.values())
        assert len(set(task.asked)) == len(task.asked)
        assert {*task.asked, *task.answers} <= set(state.members)
        if state.computing:
            assert not pending_sites(state)
            assert not any(is_open(state, site, task.id) for site in SITES)
        else:
            assert {*task.asked, *task.answers} <= set(participants(state)), "somebody who is out is asked"

    @invariant()
    def nobody_who_could_help_is_left_without_a_task_and_a_deadline(self) -> None:
        state, task = self.state, self.state.task
        if task is None or state.computing or state.paused:
            return
        assert next_tick(state, self.now) is not None or usable_count(task) < answers_needed(
            state, task, self.now
        )
        able = [s for s in live_sites(state) if (s not in task.answers or not task.answers[s].stands)]
        asked = any(tasks_for(state, site) is not None for site in able)
        assert not able or asked or next_tick(state, self.now) is not None, "the study is stuck in silence"

    @invariant()
    def the_state_survives_the_store(self) -> None:
        text = state_to_json(self.state)
        assert state_from_json(text) == self.state
        assert state_to_json(state_from_json(text)) == text

    @invariant()
    def the_operator_is_told_what_the_study_waits_for(self) -> None:
        assert waiting_for(self.state, self.now).endswith(".")

    def teardown(self) -> None:
        """From wherever the events led: once all who take part are alive and honest, the study completes."""
        if not hasattr(self, "state") or self.state.over:
            return
        if self.state.phase == "approvals":
            self.start()
        for site in participants(self.state):
            self.be_heard(site)
        self.resume()
        task = self.state.task
        without_weight = 0
        if task is not None and task.kind == "fit":
            without_weight = sum(answer.status == "abstained" for answer in task.answers.values())
        if len(participants(self.state)) - without_weight < self.state.quorum:
            return  # too few sites are left, which `waiting_for` says
        for _ in range(4 * len(step_ids(self.state))):
            if self.state.computing:
                self.finish_computing(True, set(), 1)
            elif not self.state.over:
                self.everybody_answers(True)
                if not self.state.computing:
                    self.let_time_pass(10 * DEADLINE_MS)
        assert self.state.phase == "complete", waiting_for(self.state, self.now)


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase
