"""What a node is: its site, its rows, its policy and its own models, from Flower's configuration of the node.

A hospital's node says everything itself (`fedmap-flower node`); nothing of it comes from the centre. A
simulated node is one site of a cohort directory, chosen by its partition. The two never mix: a hospital's
node never takes a path from a run's configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context

from fedmap.data.cohort_directory import read_cohort_directory
from fedmap.data.loading import load_site
from fedmap.data.table.site_dataset import SiteDataset
from fedmap.errors import ConfigError, NotFoundError, RejectedError
from fedmap.files.digests import is_digest
from fedmap.names import check_site_name
from fedmap.study.terms import StudyTerms
from fedmap_flower.node.kept_answers import KeptAnswers
from fedmap_flower.node.own_models import ModelsInContext, OwnModels
from fedmap_site.data.loader import DataLoader, check_dataset
from fedmap_site.policy import LEAST_CELL, SitePolicy, check_terms, floors_of, read_policy
from fedmap_site.state.studies import SiteState

_T1 = 1
_KEYS = ("site", "data", "policy", "state", "terms")
_CONFIG = (
    'Start the SuperNode with --node-config \'site="NAME" data="FILE" policy="FILE" state="FOLDER" '
    'terms="DIGEST"\'; docs/flower.md says what each is.'
)


@dataclass(frozen=True)
class Node:
    """One taking part in one run."""

    site: str
    region: str
    policy: SitePolicy
    models: OwnModels
    load: Callable[[StudyTerms], SiteDataset]  # checked, not scaled
    answers: KeptAnswers | None = None  # where the policy adds noise


NodeOf = Callable[[Context, StudyTerms], Node]


def hospital_node(context: Context, terms: StudyTerms) -> Node:
    """The node of a SuperNode. It takes part under exactly the terms that its configuration names."""
    given = {key: str(context.node_config.get(key, "")) for key in _KEYS}
    missing = [f"{key} is missing" for key in _KEYS if not given[key]]
    if missing:
        raise ConfigError("the node's configuration", tuple(missing), hint=_CONFIG)
    if not is_digest(given["terms"]) or given["terms"] != terms.digest:
        raise NotFoundError(
            "the run is not under the terms that this node was started for",
            hint="Compare the digest with `fedmap-flower terms`, and start the SuperNode with the new one "
            "if the site agrees to the new terms.",
        )
    policy = read_policy(Path(given["policy"]))
    if policy.egress != "automatic":
        raise RejectedError(
            'the policy asks for a person\'s review (egress = "review"), and Flower has no outbox for it',
            hint='Take part through the site agent, or let the checks alone release: egress = "automatic".',
        )
    site = check_site_name(given["site"])
    blurs = policy.noise_multiplier > 0  # then answers outlast a run, and so must the models behind them
    kept = f"terms-{terms.digest}" if blurs else f"run-{context.run_id}"
    state = SiteState(Path(given["state"]) / kept)
    state.prepare()
    loader = DataLoader(site, state, policy)
    return Node(
        site,
        str(context.node_config.get("region", "")),
        policy,
        state,
        lambda asked: loader.load(asked, Path(given["data"])),
        KeptAnswers(state.folder / "answers") if blurs else None,
    )


def simulated_node(context: Context, terms: StudyTerms) -> Node:  # noqa: ARG001 - the researcher wrote them
    """A T1 site of the run's cohort directory, with the plan's own limits as its policy."""
    cohort, number = context.run_config.get("cohort"), context.node_config.get("partition-id")
    if not isinstance(cohort, str) or not isinstance(number, int):
        raise ConfigError(
            "the simulation",
            ("a simulated node needs the run's cohort and its own partition",),
            hint="Start it with `fedmap-flower simulate`.",
        )
    sites = [entry for entry in read_cohort_directory(Path(cohort)) if entry.tier == _T1]
    if number >= len(sites):
        raise ConfigError(
            "the simulation",
            (f"there are {len(sites)} T1 sites, and this is node {number + 1}",),
            hint="Give as many nodes as the cohort has T1 sites.",
        )
    entry = sites[number]
    policy = SitePolicy(min_rows=1, min_events=0, min_cell=LEAST_CELL, egress="automatic")

    def load(asked: StudyTerms) -> SiteDataset:
        check_terms(policy, asked)
        dataset = load_site(asked.plan, entry.site, entry.path, _T1)
        check_dataset(asked.plan, dataset, floors_of(asked.plan, policy))
        return dataset

    return Node(entry.site, entry.region, policy, ModelsInContext(context.state), load)
