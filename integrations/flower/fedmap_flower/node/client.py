"""The client app: a task in, an answer out, by the site agent's own stages.

Door and exit checks are `fedmap_site`'s, the step is `fedmap.study`'s; what leaves is what would leave
through its outbox, without the outbox. A task that cannot be done is answered with a code and a fixed
sentence, and the reason is told on the node's own console: an exception would reach the server as text.
"""

from __future__ import annotations

import sys

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedmap.contract.v1.values import Task
from fedmap.errors import FedmapError, IntegrityError, RejectedError, TrainingError
from fedmap.files.digests import sha256_hex
from fedmap.names import shown
from fedmap.process.log import configure, get_logger
from fedmap.study.failures import UNEXPECTED, failure_answer
from fedmap.study.models import model_of
from fedmap.study.site_step import is_step, site_step, use_one_thread
from fedmap.study.tensors.parameter_files import PriorFile, decode_prior
from fedmap.study.terms import StudyTerms, parse_terms
from fedmap_flower.node.node import Node, NodeOf
from fedmap_flower.records import MESSAGE_TYPES, Order, Reply, read_order, reply_record
from fedmap_site.data.cell_counts import count_cells
from fedmap_site.exit.checks import AnswerChecks, Checked
from fedmap_site.exit.gate import answer_of
from fedmap_site.policy import floors_of


def make_client_app(node_of: NodeOf) -> ClientApp:
    """An app whose nodes are found by `node_of`."""
    app = ClientApp()

    def handle(message: Message, context: Context) -> Message:
        return Message(reply_record(answer_to(message, context, node_of)), reply_to=message)

    app.train()(handle)
    app.evaluate()(handle)
    for action in ("statistics", "initialise", "rule"):
        app.query(action)(handle)
    return app


def answer_to(message: Message, context: Context, node_of: NodeOf) -> Reply:
    """The node's answer, whatever happens: one that fails is told as a failure, and the round goes on."""
    configure("info", service="flower-node")
    use_one_thread()
    task, node = Task(), None
    try:
        order = read_order(message.content)
        task = order.task
        if MESSAGE_TYPES.get(task.kind) != message.metadata.message_type:
            raise IntegrityError("the message is not of its task's kind", hint="Tell who runs the study.")
        terms = _terms(order)
        node = node_of(context, terms)
        return _answered(order, terms, node)
    except FedmapError as error:
        get_logger().warning("task_failed", study=task.study, task=task.id, exc_info=error)
        _tell(task, str(error))
        checked = Checked(failure_answer(error), b"", ())
    except UNEXPECTED as error:
        get_logger().error("task_failed_unexpectedly", study=task.study, task=task.id, exc_info=error)
        failure = TrainingError("the task failed in an unexpected way", hint="Read the SuperNode's log.")
        checked = Checked(failure_answer(failure), b"", ())
    return _reply(task, node, checked)


def _terms(order: Order) -> StudyTerms:
    terms = parse_terms(order.terms_json)
    if (order.task.study, order.task.terms_digest) != (terms.study, terms.digest):
        raise IntegrityError("the task does not belong to its terms", hint="Tell who runs the study.")
    if not is_step(order.task, terms.rounds):
        raise RejectedError(
            f"the task {shown(order.task.id)} is no step of the study's terms",
            hint="Tell who runs the study: the terms say which tasks there are, and how many rounds.",
        )
    return terms


def _answered(order: Order, terms: StudyTerms, node: Node) -> Reply:
    def work() -> Reply:
        return _reply(order.task, node, _work(order, terms, node))

    return work() if node.answers is None else node.answers.once(order.task, node.region, work)


def _work(order: Order, terms: StudyTerms, node: Node) -> Checked:
    """Load, do, keep the own model, and cut the answer down to what the policy lets go."""
    task, plan, network = order.task, terms.plan, model_of(terms.plan).network
    dataset = node.load(terms)
    prior = _prior(order, terms)
    own = node.models.newest_model(terms.study, network, task.round if task.kind == "fit" else None)
    floors = floors_of(plan, node.policy)
    work = site_step(task, terms, dataset, prior, own, floors.min_cell, lambda _stage, _share: None)
    if work.error is not None:
        get_logger().warning("task_failed", study=task.study, task=task.id)
        _tell(task, str(work.error))
    if work.model is not None:
        node.models.save_model(terms.study, task.round, network, work.model)
    return AnswerChecks(plan, floors, node.policy, count_cells(plan, dataset)).run(work, prior)


def _tell(task: Task, reason: str) -> None:
    """The reason in full, on the node's own console: it may hold counts, so it is neither logged nor sent."""
    sys.stderr.write(f"fedmap: {task.study} {task.id}: {reason}\n")
    sys.stderr.flush()


def _prior(order: Order, terms: StudyTerms) -> PriorFile | None:
    if not order.prior:
        return None
    if sha256_hex(order.prior) != order.task.prior_digest:
        raise IntegrityError("the prior is not the one that the task names", hint="Tell who runs the study.")
    return decode_prior(model_of(terms.plan).network, terms.plan.prior, order.prior)


def _reply(task: Task, node: Node | None, checked: Checked) -> Reply:
    site, region = ("", "") if node is None else (node.site, node.region)
    return Reply(answer_of(task, task.terms_digest, site, checked), region, checked.tensors)
