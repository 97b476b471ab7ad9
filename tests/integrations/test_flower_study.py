"""A study by Flower's messages, apps and strategy, without the network: what holds, and who is left out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median_low

import numpy as np
import pytest
import torch
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedmap.contract.v1.values import FailureAnswer
from fedmap.errors import ConflictError, RejectedError, TrainingError, UnreachableError
from fedmap.files.digests import sha256_hex
from fedmap.files.tensors import encode_tensors
from fedmap.study.answers import content_as
from fedmap.study.models import model_of
from fedmap.study.record import status_of
from fedmap.study.run_folder import read_run
from fedmap.study.tensors.parameter_files import decode_parameters, decode_prior, named_parameters
from fedmap.study.terms import StudyTerms
from fedmap_flower.centre.exchange import Exchange, Member, Question, Step
from fedmap_flower.centre.grid_nodes import wait_for_nodes
from fedmap_flower.centre.outcome import record_of
from fedmap_flower.centre.server import FAILED, run_settings, run_study
from fedmap_flower.centre.strategy import FedMAP
from fedmap_flower.node.client import make_client_app
from fedmap_flower.node.node import simulated_node
from fedmap_flower.records import Reply, read_order, read_reply, reply_record, tensor_bytes
from tests.integrations.conftest import NodeInHand, Spoil, grid_in_hand, nodes_of, terms_of
from tests.lab.conftest import BINARY_PLAN
from tests.services.studies import SmallStudy, small_study

Nodes = dict[int, NodeInHand]


def config(terms: StudyTerms, out: Path, sites: int = 3) -> dict[str, object]:
    return {"terms": terms.to_json(), "sites": sites, "out": str(out)}


def run(nodes: Nodes, terms: StudyTerms, out: Path) -> FedMAP:
    return run_study(grid_in_hand(nodes), config(terms, out, len(nodes)))


def train(nodes: Nodes, terms: StudyTerms, scratch: Path) -> FedMAP:
    """The study without its last evaluation, which is the slow part."""
    strategy, grid = FedMAP(terms, scratch), grid_in_hand(nodes)
    strategy.start(grid, strategy.open(grid, len(nodes)), terms.rounds)
    return strategy


def refusals(strategy: FedMAP) -> list[tuple[str, str, str]]:
    return [(one.site, one.task, one.code) for one in strategy.refused]


def in_round_one(change: Spoil) -> Spoil:
    """Spoils the update of the first round alone."""

    def spoil(order: Message, reply: Message) -> Message | None:
        return change(order, reply) if read_order(order.content).task.id == "round-1" else reply

    return spoil


def with_tensors(reply: Message, order: Message, data: bytes) -> Message:
    """The same answer with other tensors, honestly labelled."""
    found = read_reply(reply.content)
    answer = replace(found.answer, tensors_digest=sha256_hex(data), tensors_size=len(data))
    return Message(reply_record(Reply(answer, found.region, data)), reply_to=order)


def update_with(terms: StudyTerms, value: float, shape: tuple[int, ...] | None = None) -> Spoil:
    """An update whose first tensor is all one value, or of another shape."""

    def change(order: Message, reply: Message) -> Message:
        network = model_of(terms.plan).network
        found = decode_parameters(network, read_reply(reply.content).tensors)
        named = dict(named_parameters(network, found))
        first = next(iter(named))
        named[first] = torch.full(shape or tuple(named[first].shape), value)
        return with_tensors(reply, order, encode_tensors(named))

    return in_round_one(change)


def simulated_nodes(nodes: Nodes, study: SmallStudy) -> Nodes:
    """The same nodes without a disk of their own, as in Flower's simulation."""
    for number, node in nodes.items():
        node.app = make_client_app(simulated_node)
        node.context.node_config = {"partition-id": number - 1, "num-partitions": len(nodes)}
        node.context.run_config = {"cohort": str(study.cohort)}
    return nodes


def test_the_study_gives_the_simulators_models_bit_for_bit(
    study: SmallStudy, terms: StudyTerms, nodes: Nodes, tmp_path: Path
) -> None:
    run(nodes, terms, tmp_path / "out")
    simulated = study.simulated()
    assert simulated.trained.prior is not None
    left = read_run(tmp_path / "out")
    network = model_of(terms.plan).network
    prior = decode_prior(network, terms.plan.prior, left.prior).prior
    assert torch.equal(prior.mu, simulated.trained.prior.mu)
    assert torch.equal(prior.psi, simulated.trained.prior.psi)
    assert left.record.rule is not None
    assert left.record.rule.threshold == (simulated.rule.threshold and simulated.rule.threshold.value)
    for site in study.sites:
        folder = tmp_path / f"state-{site.name}" / "run-1" / "studies" / study.name / "models"
        own = decode_parameters(network, folder / "round-0002.safetensors")
        assert torch.equal(own.theta, simulated.trained.personal[site.name].theta), site.name
    assert (tmp_path / "out" / "tables" / "metrics.csv").read_text().count("\n") > 30


def test_simulated_nodes_keep_their_models_in_the_context_and_give_the_same_bits(
    study: SmallStudy, terms: StudyTerms, nodes: Nodes, tmp_path: Path
) -> None:
    strategy = run(simulated_nodes(nodes, study), terms, tmp_path / "out")
    simulated = study.simulated()
    assert simulated.trained.prior is not None
    prior = decode_prior(model_of(terms.plan).network, terms.plan.prior, strategy.prior).prior
    assert torch.equal(prior.mu, simulated.trained.prior.mu)
    assert not strategy.refused


def consensus_study(folder: Path) -> SmallStudy:
    """Three consensus rounds and one under the prior."""
    plan = BINARY_PLAN.replace("epochs = 3", "epochs = 3\nconsensus_share = 0.75")
    return small_study(folder, plan, rounds=4)


@pytest.mark.parametrize("where", ["disk", "context"])
def test_multipliers_of_consensus_rounds_are_kept_on_disk_and_in_the_context(
    where: str, tmp_path: Path
) -> None:
    study = consensus_study(tmp_path / "study")
    terms = terms_of(study)
    nodes = nodes_of(study, terms, tmp_path)
    if where == "context":
        nodes = simulated_nodes(nodes, study)
    strategy = train(nodes, terms, tmp_path)
    simulated = study.simulated()
    assert simulated.trained.prior is not None
    prior = decode_prior(model_of(terms.plan).network, terms.plan.prior, strategy.prior).prior
    assert torch.equal(prior.mu, simulated.trained.prior.mu)
    assert not strategy.refused


def test_a_node_that_misses_a_consensus_round_counts_with_what_it_sent_last(tmp_path: Path) -> None:
    study = consensus_study(tmp_path / "study")
    terms, scratch = terms_of(study), tmp_path / "scratch"
    scratch.mkdir()
    nodes = nodes_of(study, terms, tmp_path)
    sites = {site.name for site in study.sites}

    def silent(order: Message, reply: Message) -> Message | None:
        task = read_order(order.content).task.id
        if task == "round-3":
            kept_before_round_three.extend(sorted(file.name for file in scratch.glob("round-*")))
        return None if task in ("round-3", "round-4") else reply

    kept_before_round_three: list[str] = []
    nodes[1].spoil = silent
    strategy = train(nodes, terms, scratch)
    first, second, third, last = strategy.rounds
    (missing,) = third.absent
    assert first.weights.keys() == second.weights.keys() == third.weights.keys() == sites
    assert (second.summary.answered, third.summary.answered) == (len(sites), len(sites) - 1)
    assert (first.absent, second.absent, last.absent) == ((), (), ())
    told = status_of(record_of(strategy)).history[2]
    assert (told.answered, list(told.absent)) == (len(sites) - 1, [missing])
    assert kept_before_round_three == [f"round-2-{site}.safetensors" for site in sorted(sites)]
    assert last.weights.keys() == sites - {missing}, "a round under the prior takes what came"
    assert not list(scratch.glob("round-*")), "no update is kept longer than it can count"


def test_the_norm_that_updates_are_held_to_is_of_those_that_came_last_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier update that stands for a missing node says nothing of the cohort's norm."""
    study = consensus_study(tmp_path / "study")
    terms = terms_of(study)
    nodes = nodes_of(study, terms, tmp_path)
    held_to: dict[str, float | None] = {}
    found: dict[str, list[float]] = {}
    judge = Exchange.judge

    def noting(
        exchange: Exchange,
        question: Question,
        asked: Mapping[int, Member | None],
        replies: Iterable[Message],
        cohort_norm: float | None = None,
    ) -> Step:
        step = judge(exchange, question, asked, replies, cohort_norm)
        held_to[question.id] = cohort_norm
        found[question.id] = [one.norm for one in step.accepted.values() if one.norm is not None]
        return step

    def large_and_then_missing(order: Message, reply: Message) -> Message | None:
        if read_order(order.content).task.id == "round-2":
            return None
        return update_with(terms, 1.0)(order, reply)

    monkeypatch.setattr(Exchange, "judge", noting)
    nodes[1].spoil = large_and_then_missing
    strategy = train(nodes, terms, tmp_path)
    assert strategy.rounds[1].absent == ("a",)
    assert held_to["round-3"] == median_low(found["round-2"])
    with_the_missing = [max(found["round-1"]), *found["round-2"]]
    assert held_to["round-3"] != median_low(with_the_missing), "the test could not tell them apart"


@pytest.mark.parametrize(
    ("value", "reason"),
    [(np.nan, "not finite"), (np.inf, "not finite"), (1e6, "norm is over")],
    ids=["nan", "infinite", "far too large"],
)
def test_an_update_of_rubbish_is_left_out_of_its_round_alone(
    value: float, reason: str, terms: StudyTerms, nodes: Nodes, tmp_path: Path
) -> None:
    nodes[2].spoil = update_with(terms, value)
    strategy = train(nodes, terms, tmp_path)
    assert refusals(strategy) == [("b", "round-1", "rejected")]
    assert reason in strategy.refused[0].reason
    assert [sorted(note.weights) for note in strategy.rounds] == [["a", "c"], ["a", "b", "c"]]


def test_an_update_of_another_shape_is_left_out(terms: StudyTerms, nodes: Nodes, tmp_path: Path) -> None:
    nodes[2].spoil = update_with(terms, 0.0, (2, 2))
    strategy = train(nodes, terms, tmp_path)
    assert refusals(strategy) == [("b", "round-1", "rejected")]
    assert "shape" in strategy.refused[0].reason


def test_tensors_that_changed_on_the_way_are_left_out(
    terms: StudyTerms, nodes: Nodes, tmp_path: Path
) -> None:
    def change(order: Message, reply: Message) -> Message:
        found = read_reply(reply.content)
        return Message(reply_record(Reply(found.answer, "", found.tensors[::-1])), reply_to=order)

    nodes[1].spoil = in_round_one(change)
    assert refusals(train(nodes, terms, tmp_path)) == [("a", "round-1", "integrity")]


def test_a_node_that_falls_silent_is_left_out_and_asked_again(
    terms: StudyTerms, nodes: Nodes, tmp_path: Path
) -> None:
    nodes[3].spoil = in_round_one(lambda _order, _reply: None)
    strategy = train(nodes, terms, tmp_path)
    assert refusals(strategy) == [("c", "round-1", "unreachable")]
    assert "c" in strategy.rounds[1].weights


def test_a_node_whose_app_crashes_is_left_out_and_its_words_do_not_travel(
    terms: StudyTerms, nodes: Nodes, tmp_path: Path
) -> None:
    secret = "patient 4711"
    nodes[1].spoil = in_round_one(lambda order, _reply: Message(Error(code=2, reason=secret), reply_to=order))
    strategy = run(nodes, terms, tmp_path / "out")
    assert refusals(strategy) == [("a", "round-1", "rejected")]
    assert [one.site for one in read_run(tmp_path / "out").record.refusals] == ["a"]
    assert secret not in (tmp_path / "out" / "run.json").read_text()


def test_a_crash_in_training_is_answered_as_a_failure(
    terms: StudyTerms, nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("patient 4711")

    monkeypatch.setattr("fedmap_flower.node.client.AnswerChecks.run", crash)
    with pytest.raises(TrainingError, match="the fit gave no usable result"):
        run(nodes, terms, tmp_path / "out")
    told = json.loads((tmp_path / "out" / FAILED).read_text())
    assert [one["code"] for one in told["refusals"]] == ["training"] * 3
    assert "4711" not in json.dumps(told)


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("data", "/nowhere/a.csv", "data"),
        ("terms", "0" * 64, "not_found"),
        ("policy", "/nowhere/policy.toml", "config"),
        ("site", "No Such Name", "rejected"),
        ("state", "", "config"),
    ],
    ids=["no data", "another plan", "no policy", "no name", "no state"],
)
def test_a_node_that_is_not_fit_for_the_study_is_left_out_of_it(
    key: str, value: str, code: str, terms: StudyTerms, nodes: Nodes, tmp_path: Path
) -> None:
    nodes[1].context.node_config[key] = value
    strategy = train(nodes, terms, tmp_path)
    (left_out,) = strategy.refused
    assert (left_out.task, left_out.code) == ("statistics", code)
    assert left_out.site in ("a", "node 1")
    assert sorted(strategy.members) == ["b", "c"]


def test_a_node_with_other_columns_is_left_out_of_the_study(
    study: SmallStudy, terms: StudyTerms, nodes: Nodes, tmp_path: Path
) -> None:
    file = study.sites[0].data
    header, _, rows = file.read_text().partition("\n")
    file.write_text(header.replace("b", "q", 1) + "\n" + rows)
    strategy = train(nodes, terms, tmp_path)
    assert refusals(strategy) == [("a", "statistics", "data")]
    assert "q" not in strategy.refused[0].reason.split()


def test_a_policy_that_wants_a_persons_review_keeps_the_node_out(
    terms: StudyTerms, nodes: Nodes, tmp_path: Path
) -> None:
    (tmp_path / "careful.toml").write_text("min_rows = 10\nmin_events = 0\n")  # egress is review by default
    nodes[2].context.node_config["policy"] = str(tmp_path / "careful.toml")
    strategy = train(nodes, terms, tmp_path)
    assert [(one.task, one.code) for one in strategy.refused] == [("statistics", "rejected")]


def test_two_nodes_of_one_name_are_both_left_out(terms: StudyTerms, nodes: Nodes, tmp_path: Path) -> None:
    impostor = NodeInHand(
        Context(4, 4, dict(nodes[1].context.node_config), nodes[1].context.state, {}), nodes[1].app
    )
    strategy = train({**nodes, 4: impostor}, terms, tmp_path)
    assert refusals(strategy) == [("a", "statistics", "rejected")] * 2
    assert sorted(strategy.members) == ["b", "c"]


def test_a_node_that_answers_for_another_site_is_left_out(
    terms: StudyTerms, nodes: Nodes, tmp_path: Path
) -> None:
    def change(order: Message, reply: Message) -> Message:
        found = read_reply(reply.content)
        impersonating = replace(found, answer=replace(found.answer, site="c"))
        return Message(reply_record(impersonating), reply_to=order)

    nodes[1].spoil = in_round_one(change)
    assert refusals(train(nodes, terms, tmp_path)) == [("a", "round-1", "rejected")]


def test_a_round_in_which_every_node_failed_is_an_error_and_leaves_no_result(
    terms: StudyTerms, nodes: Nodes, tmp_path: Path
) -> None:
    for node in nodes.values():
        node.spoil = update_with(terms, np.nan)
    with pytest.raises(TrainingError, match="round 1: 0 usable answer"):
        run(nodes, terms, tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [FAILED]
    told = json.loads((tmp_path / "out" / FAILED).read_text())
    assert {one["site"] for one in told["refusals"]} == {"a", "b", "c"}


def test_a_round_below_the_quorum_is_an_error(terms: StudyTerms, nodes: Nodes, tmp_path: Path) -> None:
    for number in (1, 2):
        nodes[number].spoil = in_round_one(lambda _order, _reply: None)
    with pytest.raises(TrainingError, match=r"round 1: 1 usable answer.*2 are needed"):
        run(nodes, terms, tmp_path / "out")


def test_another_site_gives_the_first_model_where_the_drawn_one_fails(
    terms: StudyTerms, nodes: Nodes, tmp_path: Path
) -> None:
    asked: list[int] = []

    def spoil(order: Message, reply: Message) -> Message | None:
        if read_order(order.content).task.kind != "initialise":
            return reply
        asked.append(order.metadata.dst_node_id)
        return None if len(asked) == 1 else reply

    for node in nodes.values():
        node.spoil = spoil
    strategy = train(nodes, terms, tmp_path)
    assert len(set(asked)) == 2
    assert [one.task for one in strategy.refused] == ["initialise"]


def test_a_message_that_is_not_fedmaps_is_answered_as_a_failure(nodes: Nodes) -> None:
    app: ClientApp = nodes[1].app
    foreign = Message(nodes[1].context.state, 1, "train")
    found = read_reply(app(message=foreign, context=nodes[1].context).content)
    assert content_as(FailureAnswer, found.answer).code == "rejected"


def test_a_folder_that_is_not_empty_is_left_alone(terms: StudyTerms, nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text("mine")
    with pytest.raises(ConflictError):
        run(nodes, terms, tmp_path / "out")
    assert (tmp_path / "out" / "run.json").read_text() == "mine"


def test_every_fault_of_the_runs_configuration_is_told_at_once() -> None:
    with pytest.raises(Exception, match=r"(?s)terms:.*sites:.*out:"):
        run_settings({"out": "relative"})


def test_too_few_nodes_are_an_error_and_not_waited_for_for_ever(nodes: Nodes) -> None:
    with pytest.raises(UnreachableError, match="3 node"):
        wait_for_nodes(grid_in_hand(nodes), 4, 0)


def test_tensors_in_another_form_than_safetensors_are_refused(nodes: Nodes) -> None:
    from flwr.app import ArrayRecord

    with pytest.raises(RejectedError):
        tensor_bytes(ArrayRecord([np.zeros(3)]))
    assert nodes
