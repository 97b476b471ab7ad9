"""The exit gate: whatever would leave the site is checked, described and put into the outbox here.

Steps: (1) the checks cut an answer down to what the policy allows (`checks`), (2) the manifest says
what is left, field by field, (3) the outbox keeps both. There a named person releases it or, where the policy
says automatic, the checks alone do. A failure answer holds a fixed sentence and is always released at once.
Sending is not done here.
"""

from __future__ import annotations

from fedmap.contract.v1.values import Answer, Task
from fedmap.data.table.site_dataset import SiteDataset
from fedmap.errors import FedmapError
from fedmap.files.digests import sha256_hex
from fedmap.study.answer_names import with_content
from fedmap.study.answers import Work
from fedmap.study.failures import failure_answer
from fedmap.study.tensors.parameter_files import PriorFile
from fedmap.study.terms import StudyTerms
from fedmap_site.data.cell_counts import count_cells
from fedmap_site.exit.checks import AnswerChecks, Checked
from fedmap_site.exit.item import OutboxItem
from fedmap_site.exit.manifest import Check, packed, policy_facts
from fedmap_site.exit.outbox import Outbox
from fedmap_site.policy import Floors, SitePolicy, floors_of
from fedmap_site.state.audit_log import Clock


class ExitGate:
    """The one way out of this site."""

    def __init__(self, site: str, policy: SitePolicy, outbox: Outbox, clock: Clock) -> None:
        self._site = site
        self._policy = policy
        self._outbox = outbox
        self._clock = clock

    def pass_out(
        self, task: Task, terms: StudyTerms, work: Work, dataset: SiteDataset, prior: PriorFile | None
    ) -> OutboxItem:
        """Check an answer and put what may leave of it into the outbox."""
        floors = floors_of(terms.plan, self._policy)
        checks = AnswerChecks(terms.plan, floors, self._policy, count_cells(terms.plan, dataset))
        return self._keep(task, terms, floors, checks.run(work, prior))  # (1)

    def fail(self, task: Task, terms: StudyTerms, error: FedmapError) -> OutboxItem:
        """A task that could not be done: the centre gets the code and a fixed sentence."""
        check = Check("failure", "passed", "a fixed sentence; the reason stays in the site's log")
        checked = Checked(failure_answer(error), b"", (check,))
        return self._keep(task, terms, floors_of(terms.plan, self._policy), checked)

    def _keep(self, task: Task, terms: StudyTerms, floors: Floors, checked: Checked) -> OutboxItem:
        answer = answer_of(task, terms.digest, self._site, checked)
        facts = policy_facts(self._policy, floors)
        package = packed(answer, checked.tensors, facts, checked.checks, self._clock())  # (2)
        at_once = self._policy.egress == "automatic" or answer.failure is not None
        return self._outbox.add(package, "released" if at_once else "waiting_review")  # (3)


def answer_of(task: Task, terms_digest: str, site: str, checked: Checked) -> Answer:
    """What leaves, as the contract has it; its tensors are hashed here, once."""
    tensors_digest = sha256_hex(checked.tensors) if checked.tensors else ""
    header = Answer(
        task.study, task.id, task.attempt, site, terms_digest, tensors_digest, len(checked.tensors)
    )
    return with_content(header, checked.content)
