"""One answer in the outbox: its name, what it holds, where it stands. Reading only; changes are `outbox`.

An item's name is STUDY.TASK.ATTEMPT, which a person can type. Names from outside become paths only after
they were found to be plain.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from fedmap.contract import wire
from fedmap.contract.v1.values import Answer
from fedmap.errors import IntegrityError, RejectedError
from fedmap.files.digests import file_sha256, sha256_hex
from fedmap.files.durable import read_file
from fedmap.names import check_study_name, is_study_name, shown
from fedmap.process.settings import Section
from fedmap.study.answer_names import WITHHELD
from fedmap_site.exit.manifest import Manifest, read_manifest

State = Literal["waiting_review", "released", "sent", "refused", "rejected", "withdrawn"]

ANSWER, TENSORS, STATUS = "answer.pb", "tensors.safetensors", "status.json"
MANIFEST, MANIFEST_TEXT = "manifest.json", "manifest.txt"
_TASK = re.compile(r"[a-z]{1,20}(-[1-9][0-9]{0,6})?")


class Status(Section):
    """Where an item stands."""

    state: State
    at_unix_ms: int
    by: str
    code: str = ""
    reason: str = ""
    received_unix_ms: int = 0
    """By the aggregator's clock, from its receipt."""


@dataclass(frozen=True)
class OutboxItem:
    """One answer as it lies in its folder."""

    id: str
    manifest: Manifest
    status: Status
    folder: Path

    @property
    def study(self) -> str:
        return self.manifest.study

    @property
    def task_id(self) -> str:
        return self.manifest.task

    @property
    def attempt(self) -> int:
        return self.manifest.attempt

    @property
    def content(self) -> str:
        """statistics, initial_model, fit, rule, evaluation or failure"""
        return self.manifest.content

    @property
    def answer_digest(self) -> str:
        return self.manifest.answer_digest

    @property
    def tensors_path(self) -> Path | None:
        """The tensors that go with the answer; None where there are none."""
        return self.folder / TENSORS if self.manifest.tensors_bytes else None

    def manifest_text(self) -> str:
        return read_file(self.folder / MANIFEST_TEXT).decode("utf-8", "replace")

    def answer(self) -> Answer:
        return wire.read(Answer, self.answer_bytes())

    def answer_bytes(self) -> bytes:
        """What to send; `IntegrityError` where it or its tensors are not what was described."""
        data = read_file(self.folder / ANSWER)
        found = "" if self.tensors_path is None else file_sha256(self.tensors_path)
        try:
            described = found == wire.read(Answer, data).tensors_digest == self.manifest.tensors_digest
        except RejectedError:
            described = False
        if not described or sha256_hex(data) != self.answer_digest:
            raise IntegrityError(
                f"the outbox item {self.id} was changed after it was described",
                hint="Nothing of it was sent. Find out who can write to the state folder, "
                "then reject the item.",
            )
        return data


def item_name(study: str, task_id: str, attempt: int) -> str:
    """The name under which an answer is kept; `RejectedError` for a task that could not be one."""
    check_study_name(study)
    if _TASK.fullmatch(task_id) is None or attempt < 0:
        raise RejectedError(
            f"{shown(task_id)} is not the name of a task", hint="Both sides must run compatible versions."
        )
    return f"{study}.{task_id}.{attempt}"


def withheld_name(name: str) -> str:
    """The failure answer that stands for a rejected item."""
    return f"{name}.{WITHHELD}"


def is_item_name(name: str) -> bool:
    parts = name.removesuffix(f".{WITHHELD}").split(".")
    return (
        len(parts) == 3
        and is_study_name(parts[0])
        and _TASK.fullmatch(parts[1]) is not None
        and parts[2].isascii()
        and parts[2].isdecimal()
    )


def read_item(folder: Path) -> OutboxItem:
    """An item from its folder. One that has a stand-in is rejected, even if a kill came before it said so."""
    try:
        status = Status.model_validate_json(read_file(folder / STATUS), strict=True)
    except ValidationError:
        raise IntegrityError(
            f"{folder / STATUS}: the file is damaged", hint="Restore the state folder from a backup."
        ) from None
    if status.state == "waiting_review" and folder.with_name(withheld_name(folder.name)).exists():
        status = status.model_copy(update={"state": "rejected"})
    return OutboxItem(folder.name, read_manifest(read_file(folder / MANIFEST)), status, folder)
