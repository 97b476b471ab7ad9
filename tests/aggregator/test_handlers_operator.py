"""The operator's calls without a network: bad input is refused with the reason, repeats change nothing."""

from __future__ import annotations

import pytest

from fedmap.contract.v1 import values
from fedmap.errors import NotFoundError, PlanError, RejectedError, StateError
from fedmap.study.models import model_of
from fedmap.study.tensors.parameter_files import decode_parameters
from tests.aggregator import small_study as made
from tests.aggregator.centre import OPERATOR, Centre, failed, run_until


@pytest.mark.parametrize(
    "request_",
    [
        values.InviteRequest(site="Bad Name", tier=1),
        values.InviteRequest(site="north", tier=0),
        values.InviteRequest(site="north", tier=4),
        values.InviteRequest(site="north", tier=1, region="two\nlines"),
        values.InviteRequest(site="north", tier=1, valid_hours=10**6),
    ],
)
def test_a_bad_invitation_is_rejected(centre: Centre, request_: values.InviteRequest) -> None:
    with pytest.raises(RejectedError):
        centre.operator.invite(OPERATOR, request_)


def test_the_list_shows_state_certificate_and_last_sign_of_life(centre: Centre) -> None:
    north = centre.enrolled("north")
    centre.invite("south", tier=2)
    north.next_task()
    sites = {site.name: site for site in centre.operator.list_sites().sites}
    assert sites["north"].state == "active"
    assert sites["north"].certificate_ends_unix_ms > centre.clock()
    assert sites["north"].last_seen_unix_ms == centre.clock()
    assert (sites["south"].state, sites["south"].tier, sites["south"].last_seen_unix_ms) == ("invited", 2, 0)


def test_revoking_twice_changes_nothing_and_an_unknown_site_is_not_found(centre: Centre) -> None:
    centre.enrolled("north")
    request = values.RevokeSiteRequest(site="north", reason="key lost")
    centre.operator.revoke_site(OPERATOR, request)
    entries = centre.operator.verify_audit().entries
    centre.operator.revoke_site(OPERATOR, request)
    assert centre.operator.verify_audit().entries == entries
    with pytest.raises(NotFoundError):
        centre.operator.revoke_site(OPERATOR, values.RevokeSiteRequest(site="ghost"))


def test_a_bad_plan_is_refused_with_every_problem(centre: Centre) -> None:
    centre.enrolled("north"), centre.enrolled("south")
    text = made.BINARY.replace('kind = "binary"', 'kind = "bunary"').replace("min_rows", "min_raws")
    with pytest.raises(PlanError) as caught:
        centre.operator.create_study(OPERATOR, values.CreateStudyRequest(plan_toml=text))
    assert len(caught.value.problems) >= 2


def test_a_study_is_offered_to_all_t1_sites_that_are_not_revoked(centre: Centre) -> None:
    for name in ("east", "north", "south"):
        centre.enrolled(name)
    centre.enrolled("clinic", tier=3)
    centre.operator.revoke_site(OPERATOR, values.RevokeSiteRequest(site="east"))
    response = centre.operator.create_study(OPERATOR, values.CreateStudyRequest(plan_toml=made.BINARY))
    assert list(response.sites) == ["north", "south"]


def test_a_study_names_only_known_t1_sites(centre: Centre) -> None:
    for name in ("north", "south"):
        centre.enrolled(name)
    centre.enrolled("clinic", tier=3)
    with pytest.raises(NotFoundError, match="ghost"):
        centre.create("north", "ghost")
    with pytest.raises(RejectedError, match="T3"):
        centre.create("north", "clinic")


def test_a_study_that_could_never_reach_its_quorum_is_refused(centre: Centre) -> None:
    centre.enrolled("north")
    with pytest.raises(StateError, match="quorum"):
        centre.create("north")


def test_pause_and_resume_keep_the_deadline_fair_and_repeat_harmlessly(centre: Centre) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)
    before = centre.status(study).deadline_unix_ms
    centre.control(study, "pause")
    centre.control(study, "pause")
    assert centre.status(study).paused
    centre.clock.now += 1000
    centre.control(study, "resume")
    centre.control(study, "resume")
    assert centre.status(study).deadline_unix_ms == before + 1000


def test_an_unknown_action_is_rejected(centre: Centre) -> None:
    with pytest.raises(RejectedError):
        centre.operator.control_study(OPERATOR, values.ControlStudyRequest(study="x"))


def test_a_site_that_fails_is_listed_with_its_reason_and_late_ones_are_named(centre: Centre) -> None:
    sites = [centre.enrolled(name) for name in ("east", "north", "south")]
    study = centre.started(*sites, rounds=1)
    run_until(study, "rounds", *sites)
    task = sites[0].asked()
    sites[0].submit(failed(task, "east", "training", "the fit diverged"))
    centre.clock.now = centre.task(study).deadline_at + 1
    status = centre.status(study)
    assert [(r.site, r.code, r.reason) for r in status.refusals] == [("east", "training", "the fit diverged")]
    assert {m.site: (m.answer, m.late) for m in status.members} == {
        "east": ("failed", False),
        "north": ("waiting", True),
        "south": ("waiting", True),
    }


def test_the_norm_of_each_update_of_the_open_round_is_told(centre: Centre) -> None:
    sites = [centre.enrolled(name) for name in ("east", "north", "south")]
    study = centre.started(*sites, rounds=1)
    run_until(study, "rounds", *sites)
    answer, tensors = sites[0].ready(study)
    sites[0].submit(answer, tensors)
    length = float(decode_parameters(model_of(study.terms.plan).network, tensors).theta.norm())
    told = {m.site: m.norm for m in centre.status(study).members if m.norm is not None}
    assert told == {"east": pytest.approx(length, rel=1e-5)}


def test_everything_that_was_done_is_in_the_audit_log(centre: Centre) -> None:
    north, south = centre.enrolled("north"), centre.enrolled("south")
    study = centre.started(north, south)
    north.work(study)
    centre.control(study, "abort")
    with centre.store.reading() as transaction:
        actions = [(entry.actor, entry.action) for entry in transaction.audit.entries()]
    for expected in (
        ("operator:kim", "site.invite"),
        ("site:north", "site.enrol"),
        ("operator:kim", "study.create"),
        ("site:south", "study.approve"),
        ("operator:kim", "study.start"),
        ("site:north", "answer.accepted"),
        ("operator:kim", "study.abort"),
    ):
        assert expected in actions
