"""The outbox: every answer lies here, whole and described, before anything of it can leave.

    outbox/STUDY.TASK.ATTEMPT/{answer.pb, tensors.safetensors, manifest.json, manifest.txt, status.json}

    waiting_review → released → sent | refused
                   ↘ rejected: a failure answer (….withheld) stands in its place, released at once
    waiting_review, released → withdrawn

An item appears in one rename, and its status changes in one rename; each change is recorded in the audit log
first. After a kill at any point an item is in one state or the other, and nothing happened unrecorded. What
may become an item is `gate`; how it travels is `connection`.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from fedmap.contract.v1.values import Answer, Receipt
from fedmap.errors import IntegrityError, NotFoundError, RejectedError, StateError
from fedmap.files.durable import make_folder, storage_errors, sync_folder, waiting_lock, write_durably
from fedmap.names import shown
from fedmap.process.fault_points import reach
from fedmap.study.answer_names import WITHHELD
from fedmap.study.failures import failure_of
from fedmap_site.exit.item import (
    ANSWER,
    MANIFEST,
    MANIFEST_TEXT,
    STATUS,
    TENSORS,
    OutboxItem,
    State,
    Status,
    is_item_name,
    item_name,
    read_item,
    withheld_name,
)
from fedmap_site.exit.manifest import Check, Package, packed
from fedmap_site.state.audit_log import AGENT, AuditLog, Clock

_UNFINISHED = ".new-"
_LOCK = ".lock"
_MOST_REASON = 2000
_MOST_APPROVER = 100
_NEXT: Mapping[State, tuple[State, ...]] = MappingProxyType(
    {
        "waiting_review": ("released", "rejected", "withdrawn"),
        "released": ("sent", "refused", "withdrawn"),
        "sent": (),
        "refused": (),
        "rejected": (),
        "withdrawn": (),
    }
)


class Outbox:
    """All answers of this site. The agent and the command line may both work on it at once."""

    def __init__(self, folder: Path, audit: AuditLog, clock: Clock) -> None:
        self._folder = folder
        self._audit = audit
        self._clock = clock

    def clear_leftovers(self) -> None:
        """Remove what a killed process left half written."""
        with self._locked():
            for path in self._leftovers():
                shutil.rmtree(path, ignore_errors=True)

    def add(self, package: Package, state: Literal["waiting_review", "released"]) -> OutboxItem:
        """Keep an answer; durable when it returns. A task and attempt that have one already keep that one."""
        made = package.manifest
        with self._locked():
            found = self.find(made.study, made.task, made.attempt)
            if found is not None:
                return found
            return self._put(item_name(made.study, made.task, made.attempt), package, state, AGENT)

    def find(self, study: str, task_id: str, attempt: int) -> OutboxItem | None:
        """The answer that stands for a task: what is here is never computed again."""
        name = item_name(study, task_id, attempt)
        for candidate in (withheld_name(name), name):
            if (self._folder / candidate).is_dir():
                return read_item(self._folder / candidate)
        return None

    def answers_to(self, study: str, task_id: str, before: int) -> tuple[OutboxItem, ...]:
        """What was made for a task in attempts before that one, in order."""
        found = [self.find(study, task_id, attempt) for attempt in self._attempts(study, task_id)]
        return tuple(item for item in found if item is not None and item.attempt < before)

    def was_rejected(self, study: str, task_id: str) -> bool:
        """Whether every fit that was made for a task was kept back by a reviewer."""
        made = [self.get(item_name(study, task_id, attempt)) for attempt in self._attempts(study, task_id)]
        fits = [item for item in made if item.content == "fit"]
        return bool(fits) and all(item.status.state == "rejected" for item in fits)

    def get(self, name: str) -> OutboxItem:
        if not is_item_name(name) or not (self._folder / name).is_dir():
            raise NotFoundError(
                f"there is no item {shown(name)} in the outbox", hint="`fedmap-site outbox` lists all items."
            )
        return read_item(self._folder / name)

    def items(self, *states: State) -> tuple[OutboxItem, ...]:
        """All items, or those in the given states, oldest first."""
        if not self._folder.is_dir():
            return ()
        found = [read_item(path) for path in self._folder.iterdir() if is_item_name(path.name)]
        found.sort(key=lambda item: (item.manifest.made_unix_ms, item.id))
        return tuple(item for item in found if not states or item.status.state in states)

    def release(self, name: str, approver: str) -> OutboxItem:
        """A named person lets an answer go; it must still be what was described."""
        by = check_approver(approver)
        self.get(name).answer_bytes()
        return self._change(name, "released", by)

    def reject(self, name: str, approver: str) -> OutboxItem:
        """A named person keeps an answer back; the centre hears that it was withheld, and no more."""
        by = check_approver(approver)
        with self._locked():
            item = self.get(name)
            self._refuse_move(item, "rejected")
            self._record(item, "rejected", by)
            self._put(withheld_name(name), self._stand_in(item), "released", by)
            self._set(item, Status(state="rejected", at_unix_ms=self._clock(), by=by))
            return self.get(name)

    def mark_sent(self, name: str, receipt: Receipt) -> OutboxItem:
        """The aggregator has it on disk. A receipt for other bytes is an `IntegrityError`."""
        item = self.get(name)
        if receipt.answer_digest != item.answer_digest:
            raise IntegrityError(
                f"the receipt for {name} is for another answer",
                hint="Tell the operator. The item stays in the outbox and is sent again.",
            )
        if item.status.state == "sent":
            return item  # sent again after a lost receipt
        return self._change(name, "sent", AGENT, received_unix_ms=receipt.received_unix_ms)

    def mark_refused(self, name: str, code: str, reason: str) -> OutboxItem:
        """The aggregator refused it for good."""
        return self._change(name, "refused", AGENT, code=code, reason=reason)

    def withdraw(self, name: str, reason: str, by: str = AGENT) -> OutboxItem:
        """Not wanted any more: the task is closed, or the site has left the study."""
        return self._change(name, "withdrawn", by, reason=reason)

    def folders_of(self, study: str) -> tuple[Path, ...]:
        """The folders of a study's items, sorted."""
        if not self._folder.is_dir():
            return ()
        found = (path for path in self._folder.iterdir() if is_item_name(path.name))
        return tuple(sorted(path for path in found if path.name.split(".")[0] == study))

    def remove_study(self, study: str) -> None:
        """Delete all items of a study. Each loses its name first, so that half an item is never met.

        What a killed process left without a name goes too: it may be of this study.
        """
        with self._locked(), storage_errors(self._folder):
            for path in self._leftovers():
                shutil.rmtree(path)
            for path in self.folders_of(study):
                gone = path.rename(self._folder / f"{_UNFINISHED}{secrets.token_hex(8)}")
                sync_folder(self._folder)
                shutil.rmtree(gone)

    def _leftovers(self) -> list[Path]:
        """For the holder of the lock: nobody else is writing an item then."""
        return list(self._folder.glob(f"{_UNFINISHED}*"))

    def _attempts(self, study: str, task_id: str) -> list[int]:
        if not self._folder.is_dir():
            return []
        names = [path.name.split(".") for path in self._folder.iterdir() if is_item_name(path.name)]
        return sorted({int(name[2]) for name in names if name[:2] == [study, task_id]})

    def _change(
        self, name: str, state: State, by: str, code: str = "", reason: str = "", received_unix_ms: int = 0
    ) -> OutboxItem:
        with self._locked():
            item = self.get(name)
            self._refuse_move(item, state)
            self._record(item, state, by, code)
            status = Status(
                state=state,
                at_unix_ms=self._clock(),
                by=by,
                code=code,
                reason=reason[:_MOST_REASON],
                received_unix_ms=received_unix_ms,
            )
            self._set(item, status)
            return self.get(name)

    def _refuse_move(self, item: OutboxItem, state: State) -> None:
        if state not in _NEXT[item.status.state]:
            raise StateError(
                f"{item.id} is {item.status.state.replace('_', ' ')} and cannot become {state}",
                hint="`fedmap-site outbox` shows where each item stands.",
            )

    def _record(self, item: OutboxItem, state: State, by: str, code: str = "") -> None:
        detail = {"answer": item.answer_digest, "content": item.content} | ({"code": code} if code else {})
        self._audit.append(f"outbox.{state}", item.id, detail, by)

    def _stand_in(self, item: OutboxItem) -> Package:
        """The failure answer that takes a rejected item's place."""
        kept = item.manifest
        answer = Answer(
            kept.study, kept.task, kept.attempt, kept.site, kept.terms_digest, failure=failure_of(WITHHELD)
        )
        check = Check(
            "review", "withheld", "the reviewer did not release the answer; this stands in its place"
        )
        return packed(answer, b"", kept.policy, (check,), self._clock())

    def _put(self, name: str, package: Package, state: State, by: str) -> OutboxItem:
        """Write a whole item under another name, then give it its own."""
        manifest = package.manifest
        detail = {"answer": manifest.answer_digest, "content": manifest.content, "state": state}
        self._audit.append("outbox.added", name, detail, by)
        unfinished = self._folder / f"{_UNFINISHED}{secrets.token_hex(8)}"
        make_folder(unfinished)
        write_durably(unfinished / ANSWER, package.answer)
        if package.tensors:
            write_durably(unfinished / TENSORS, package.tensors)
        write_durably(unfinished / MANIFEST, manifest.to_json().encode())
        write_durably(unfinished / MANIFEST_TEXT, manifest.to_text().encode())
        _write_status(unfinished, Status(state=state, at_unix_ms=self._clock(), by=by))
        reach("agent.outbox_before_rename")
        with storage_errors(self._folder / name):
            unfinished.rename(self._folder / name)
            sync_folder(self._folder)
        return read_item(self._folder / name)

    def _set(self, item: OutboxItem, status: Status) -> None:
        reach("agent.outbox_before_status")
        _write_status(item.folder, status)

    def _locked(self) -> AbstractContextManager[None]:
        """One change at a time. Nobody holds it for long."""
        return waiting_lock(self._folder / _LOCK)


def check_approver(name: str) -> str:
    """Who releases or rejects must be named, on one line."""
    if not name.strip() or not name.isprintable() or len(name) > _MOST_APPROVER:
        raise RejectedError(
            "the approver must be named, on one line",
            hint="Give --approver the name of the person who looked at the manifest.",
        )
    return name.strip()


def _write_status(folder: Path, status: Status) -> None:
    write_durably(folder / STATUS, status.model_dump_json(indent=1).encode() + b"\n")
