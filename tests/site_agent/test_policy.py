"""The site's policy can only be stricter than the study, and without one nothing happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmap.errors import ConfigError, RejectedError
from fedmap_site.policy import Floors, SitePolicy, check_terms, floors_of, read_policy
from tests.site_agent.stages import terms_of


def write(folder: Path, text: str) -> Path:
    path = folder / "policy.toml"
    path.write_text(text)
    return path


def test_an_empty_policy_is_the_careful_one(tmp_path: Path) -> None:
    policy = read_policy(write(tmp_path, ""))
    assert policy.egress == "review"
    assert (policy.min_rows, policy.min_events, policy.min_cell) == (50, 5, 10)


def test_a_missing_policy_fails_closed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        read_policy(tmp_path / "policy.toml")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("min_cell = 4", "min_cell"),
        ("min_rows = 0", "min_rows"),
        ('egress = "always"', "egress"),
        ("noise_multiplier = 1.0", "clip_norm"),
        ("clip_norm = -1.0", "clip_norm"),
        ('allowed_models = ["gpt"]', "no such model"),
        ("min_cel = 10", "min_cell"),
        ("min_cell = ", "TOML"),
    ],
)
def test_a_policy_with_a_fault_fails_closed_and_names_it(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_policy(write(tmp_path, text))


def test_each_floor_is_the_stricter_of_plan_and_policy() -> None:
    plan = terms_of().plan
    assert floors_of(plan, SitePolicy(min_rows=99, min_events=0, min_cell=5)) == Floors(99, 2, 5)
    limits = plan.limits.model_copy(update={"min_cell": 20})
    stricter = plan.model_copy(update={"limits": limits})
    assert floors_of(stricter, SitePolicy(min_cell=7)).min_cell == 20


@pytest.mark.parametrize(
    ("policy", "named"),
    [(SitePolicy(max_rounds=3), "max_rounds"), (SitePolicy(allowed_models=("linear",)), "allowed_models")],
)
def test_a_study_that_the_policy_does_not_allow_is_refused(policy: SitePolicy, named: str) -> None:
    with pytest.raises(RejectedError, match=named):
        check_terms(policy, terms_of())


def test_a_study_within_the_policy_is_allowed() -> None:
    check_terms(SitePolicy(max_rounds=4, allowed_models=("mlp",)), terms_of())


def test_another_policy_has_another_digest() -> None:
    assert SitePolicy().digest == SitePolicy().digest
    assert SitePolicy().digest != SitePolicy(min_cell=11).digest
