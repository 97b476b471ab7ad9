from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from fedmap.contract.v1 import values
from fedmap.errors import UnreachableError
from fedmap_aggregator.operator.status import overview, span, standing, status_line, study_view
from fedmap_aggregator.operator.watch import LOST, LineDisplay, LiveDisplay, follow

MINUTE = 60_000
NOW = 1_800_000_000_000


def rendered(view: RenderableType) -> str:
    console = Console(width=160, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def member(site: str, answer: str = "waiting", **more: Any) -> values.MemberStatus:
    return values.MemberStatus(site, "North", "approved", answer=answer, **more)


def running_study() -> values.StudyStatus:
    return values.StudyStatus(
        study="iron",
        title="Iron deficiency",
        phase="rounds",
        round=3,
        rounds=10,
        task_id="round-3",
        opened_unix_ms=NOW - 30 * MINUTE,
        deadline_unix_ms=NOW - 5 * MINUTE,
        waiting_for="Waiting for updates from beta (1 of 2 usable answer(s) so far).",
        terms_digest="ab" * 32,
        quorum=2,
        metric="auroc",
        members=(
            member("alpha", "accepted"),
            member("beta", stage="training", progress=0.4, late=True),
            member("gamma", late=True, silent=True),
            member("delta", "rejected"),
            values.MemberStatus(site="epsilon", membership="excluded", reason="had not approved"),
        ),
        history=(
            values.RoundStatus(round=1, answered=4, members=4, loss=0.61, penalty=0.01, largest_weight=0.3),
            values.RoundStatus(round=2, answered=3, members=4, loss=0.55, personal_metric=0.771),
        ),
        refusals=(
            values.Refusal(
                site="delta", task_id="round-3", code="rejected", reason="not finite", at_unix_ms=NOW - MINUTE
            ),
        ),
    )


def finished_study() -> values.StudyStatus:
    figures = (("alpha", 0.81, 0.78), ("beta", 0.71, 0.74), ("gamma", 0.76, None))
    scores = [
        values.SiteScore(site=site, model=model, metric="auroc", value=value)
        for site, own, shared in figures
        for model, value in (("personal", own), ("global", shared))
    ]
    return values.StudyStatus(
        study="iron",
        phase="complete",
        round=2,
        rounds=2,
        metric="auroc",
        quorum=2,
        members=(values.MemberStatus(site="delta", membership="approved", stage="sending"),),
        scores=(*scores, values.SiteScore(site="alpha", model="personal", metric="brier", value=0.2)),
    )


def with_first(study: values.StudyStatus, **changes: Any) -> values.StudyStatus:
    """With another first member."""
    return replace(study, members=(replace(study.members[0], **changes), *study.members[1:]))


def test_a_running_study_shows_who_answered_who_is_late_and_who_is_silent() -> None:
    study = with_first(running_study(), norm=14.0234)
    first, second = study.history
    history = (first, replace(second, absent=("gamma",)))
    text = rendered(study_view(replace(study, history=history), NOW))
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    for site, words in (
        ("alpha", ("answered", "norm 14.02")),
        ("beta", ("late", "training 40%")),
        ("gamma", ("silent",)),
        ("epsilon", ("excluded", "had not approved")),
    ):
        assert all(word in lines[site] for word in words), lines[site]
        assert ("norm" in lines[site]) is (site == "alpha")
    for told in (
        *("2 of 10 rounds", "deadline passed 5 min ago", "Waiting for updates from beta"),
        *("0.771", "AUROC is the median over sites", "not finite", "3 of 4; gamma by an earlier update"),
    ):
        assert told in text
    assert text.count("earlier update") == 1


def test_final_scores_stand_side_by_side_with_their_median() -> None:
    text = rendered(study_view(finished_study(), NOW))
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert lines["beta"][-2:] == ["0.71", "0.74"]
    assert lines["gamma"][-2:] == ["0.76", "-"]
    assert lines["median"] == ["median", "0.76", "0.76"]
    assert "took part" in text
    assert "sending" not in text  # nobody is shown at work


def test_a_text_from_a_site_cannot_steer_the_terminal_or_the_markup() -> None:
    study = with_first(running_study(), region="[bold]")
    (refusal,) = study.refusals
    refusal = replace(refusal, reason="\x1b[2J[red]gone[/red]\nnew line")
    study = replace(study, refusals=(refusal,))
    text = rendered(study_view(study, NOW))
    assert "\x1b" not in text
    assert "[red]gone[/red] new line" in text
    assert "[bold]" in text


def test_an_unknown_phase_and_metric_of_a_newer_aggregator_are_shown_as_they_are() -> None:
    study = replace(running_study(), phase="celebration", metric="beauty")
    text = rendered(study_view(study, NOW)) + rendered(overview([study]))
    assert "celebration" in text
    assert "beauty is the median" in text


def test_with_little_room_sites_in_trouble_come_first() -> None:
    study = running_study()
    more = tuple(member(f"site-{number:03}", "accepted") for number in range(200))
    text = rendered(study_view(replace(study, members=study.members + more), NOW, most_sites=4))
    assert all(site in text for site in ("beta", "gamma", "delta"))
    assert "and 201 more" in text


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (values.MemberStatus(membership="invited"), "invited"),
        (values.MemberStatus(membership="left"), "left"),
        (member("a", "accepted", silent=True), "answered"),
        (member("a", "abstained"), "nothing to weigh"),
        (member("a", "failed"), "failed"),
        (member("a", silent=True, late=True), "silent"),
        (member("a", late=True), "late"),
        (member("a", stage="training"), "working"),
        (member("a", stage="idle"), "waiting"),
        (member("a", ""), "ready"),
    ],
)
def test_each_standing_has_its_word(status: values.MemberStatus, expected: str) -> None:
    assert standing(status) == expected


def test_the_overview_has_a_line_per_study_and_a_hint_where_there_is_none() -> None:
    assert "study create" in rendered(overview([]))
    text = rendered(overview([running_study(), finished_study()]))
    assert len(text.strip().splitlines()) == 3
    assert "2 of 4" in text


def test_a_paused_or_computing_study_says_so() -> None:
    study = replace(running_study(), computing=True)
    assert "rounds (computing)" in status_line(study)
    study = replace(study, paused=True)
    assert "rounds (paused)" in status_line(study)
    assert "(paused)" in rendered(study_view(study, NOW))


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (-5, "0 s"),
        (90_000, "90 s"),
        (10 * MINUTE, "10 min"),
        (180 * MINUTE, "3 h"),
        (5000 * MINUTE, "3 days"),
    ],
)
def test_spans_read_as_people_say_them(milliseconds: int, text: str) -> None:
    assert span(milliseconds) == text


class Script:
    """Gives one prepared answer after another; None stands for an aggregator that cannot be reached."""

    def __init__(self, *answers: values.StudyStatus | None) -> None:
        self._answers: Iterator[values.StudyStatus | None] = iter(answers)

    def __call__(self) -> values.GetStatusResponse:
        study = next(self._answers)
        if study is None:
            raise UnreachableError("restarting", hint="wait")
        return values.GetStatusResponse((study,), NOW)


def test_watching_says_each_change_once_and_ends_with_the_study() -> None:
    lines: list[str] = []
    running = running_study()
    alpha, beta, *others = running.members
    answered = replace(running, members=(alpha, replace(beta, answer="accepted"), *others))
    script = Script(running, running, answered, finished_study())
    follow(script, LineDisplay(lines.append, as_json=False), lambda: None, until_over=True)
    assert len(lines) == 3
    assert "2 of 4 answered" in lines[0]
    assert "gamma silent" in lines[0]
    assert "3 of 4 answered" in lines[1]
    assert "complete" in lines[2]


def test_watching_outlives_a_restart_of_the_aggregator_and_says_so_once() -> None:
    lines: list[str] = []
    script = Script(running_study(), None, None, finished_study())
    follow(script, LineDisplay(lines.append, as_json=False), lambda: None, until_over=True)
    assert lines[1] == LOST
    assert lines.count(LOST) == 1
    assert "complete" in lines[-1]


def test_the_live_view_keeps_the_last_state_while_the_aggregator_is_away() -> None:
    console = Console(width=160, height=60, color_system=None, force_terminal=True)
    display = LiveDisplay(console, in_full=True)
    with console.capture() as capture, display.live:
        follow(Script(running_study(), None, finished_study()), display, lambda: None, until_over=True)
    text = capture.get()
    assert LOST in text
    assert "median" in text
