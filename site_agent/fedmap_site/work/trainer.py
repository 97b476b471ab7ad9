"""Does a task as the contract's messages: the step itself is `fedmap.study.site_step`."""

from __future__ import annotations

from dataclasses import dataclass

from fedmap.algorithm.fit.round import OwnModel
from fedmap.contract import wire
from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.contract.v1 import values
from fedmap.data.table.site_dataset import SiteDataset
from fedmap.errors import FedmapError
from fedmap.study import site_step
from fedmap.study.answers import encode_work
from fedmap.study.models import model_of
from fedmap.study.site_step import OnProgress, use_one_thread
from fedmap.study.tensors.parameter_files import PriorFile
from fedmap.study.terms import StudyTerms
from fedmap_site.policy import SitePolicy, floors_of

__all__ = ["Content", "OnProgress", "Work", "failed_work", "is_step", "perform", "use_one_thread"]

Content = (
    pb.StatisticsAnswer
    | pb.InitialModelAnswer
    | pb.FitAnswer
    | pb.RuleAnswer
    | pb.EvaluationAnswer
    | pb.FailureAnswer
)


@dataclass(frozen=True)
class Work:
    """`fedmap.study.answers.Work` with messages and bytes."""

    content: Content
    tensors: bytes = b""
    model: OwnModel | None = None
    notes: tuple[str, ...] = ()
    local_reason: str = ""


def failed_work(error: FedmapError) -> Work:
    failed = site_step.failed_work(error)
    return Work(content_of(failed.content), local_reason=failed.local_reason)


def perform(
    task: pb.Task,
    terms: StudyTerms,
    dataset: SiteDataset,
    prior: PriorFile | None,
    own: OwnModel | None,
    policy: SitePolicy,
    on_progress: OnProgress,
) -> Work:
    floor = floors_of(terms.plan, policy).min_cell
    asked = wire.value_of(values.Task, task)
    done = site_step.site_step(asked, terms, dataset, prior, own, floor, on_progress)
    tensors = encode_work(model_of(terms.plan).network, done.tensors)
    return Work(content_of(done.content), tensors, done.model, done.notes, done.local_reason)


def is_step(task: pb.Task, rounds: int) -> bool:
    return site_step.is_step(wire.value_of(values.Task, task), rounds)


def content_of(content: object) -> Content:
    message = wire.message_of(content)
    assert isinstance(message, Content)
    return message
