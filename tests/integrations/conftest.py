"""A small study, and Flower's client apps behind a grid without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedmap.study.plan.reading import load_plan
from fedmap.study.terms import StudyTerms
from fedmap_flower.node.client import make_client_app
from fedmap_flower.node.node import hospital_node
from tests.services.studies import SEED, SmallStudy, small_study

ROUNDS = 2
POLICY = 'egress = "automatic"\nmin_rows = 10\nmin_events = 0\n'
Spoil = Callable[[Message, Message], Message | None]
"""The order and its reply; the reply as it arrives, None for one that never does."""


@dataclass
class NodeInHand:
    """A node whose app is called instead of reached."""

    context: Context
    app: ClientApp = field(default_factory=lambda: make_client_app(hospital_node))
    spoil: Spoil = lambda _order, reply: reply


class _GridInHand:
    """Hands each message to the app of its node, as it would arrive, and waits for nothing."""

    def __init__(self, nodes: Mapping[int, NodeInHand]) -> None:
        self.nodes = nodes

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def send_and_receive(
        self,
        messages: Iterable[Message],
        *,
        timeout: float | None = None,  # noqa: ARG002
    ) -> Iterable[Message]:
        for order in messages:
            node = self.nodes[order.metadata.dst_node_id]
            reply = node.spoil(order, node.app(message=order, context=node.context))
            if reply is not None:
                yield reply


def grid_in_hand(nodes: Mapping[int, NodeInHand]) -> Grid:
    return cast(Grid, _GridInHand(nodes))  # what else a grid can do, nobody here asks for


def in_flower() -> None:
    """Flower's processes know which run and task they are in; messages are stamped with it."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def terms_of(study: SmallStudy) -> StudyTerms:
    return StudyTerms.of_plan(load_plan(study.plan), study.rounds, SEED)


def nodes_of(study: SmallStudy, terms: StudyTerms, folder: Path) -> dict[int, NodeInHand]:
    """One for each site, by node id; configured as `fedmap-flower node` does."""
    policy = folder / "policy.toml"
    policy.write_text(POLICY)
    return {
        number: NodeInHand(
            Context(
                run_id=1,
                node_id=number,
                node_config={
                    "site": site.name,
                    "region": site.region,
                    "data": str(site.data),
                    "policy": str(policy),
                    "state": str(folder / f"state-{site.name}"),
                    "terms": terms.digest,
                },
                state=RecordDict(),
                run_config={},
            )
        )
        for number, site in enumerate(study.sites, start=1)
    }


@pytest.fixture(autouse=True)
def in_a_run() -> None:
    in_flower()


@pytest.fixture
def study(tmp_path: Path) -> SmallStudy:
    return small_study(tmp_path / "study", rounds=ROUNDS)


@pytest.fixture
def terms(study: SmallStudy) -> StudyTerms:
    return terms_of(study)


@pytest.fixture
def nodes(study: SmallStudy, terms: StudyTerms, tmp_path: Path) -> dict[int, NodeInHand]:
    return nodes_of(study, terms, tmp_path)
