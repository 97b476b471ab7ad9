"""A node's first answer to each task, on its disk: who asks again gets the same one, and no second noise.

Noise hides only while it is drawn once: the mean of many answers to one task would show what it hides. For
nodes whose policy adds noise. Kept under the terms, so another run under the same terms finds them too.
Failures hold no figure and are not kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedmap.contract import wire
from fedmap.contract.v1.values import Answer, Task
from fedmap.errors import IntegrityError, RejectedError
from fedmap.files.digests import sha256_hex
from fedmap.files.durable import make_folder, read_file, waiting_lock, write_durably
from fedmap_flower.records import Reply

_DIGEST = 64  # characters of the question's digest, before the answer


class KeptAnswers:
    """Those under one study's terms. Task ids are names of files here: the caller has checked them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def once(self, task: Task, region: str, work: Callable[[], Reply]) -> Reply:
        """The kept answer, or that of `work`, which is on the disk before it is returned."""
        make_folder(self._folder)
        with waiting_lock(self._folder / ".lock"):
            found = self._find(task, region)
            if found is not None:
                return found
            reply = work()
            if reply.answer.failure is None:
                self._keep(task, reply)
            return reply

    def _find(self, task: Task, region: str) -> Reply | None:
        path = self._folder / f"{task.id}.answer"
        if not path.exists():
            return None
        data = read_file(path)
        if data[:_DIGEST] != _question(task):
            raise RejectedError(
                f"{task.id} was answered before under these terms, to another question",
                hint="The policy adds noise, which one answer to each task protects: a new run needs new "
                "terms, such as another seed.",
            )
        try:
            answer = wire.read(Answer, data[_DIGEST:])
        except RejectedError:
            raise _damaged(path) from None
        tensors = read_file(self._tensors(task)) if answer.tensors_size else b""
        if answer.tensors_digest != (sha256_hex(tensors) if tensors else ""):
            raise _damaged(self._tensors(task))
        return Reply(answer, region, tensors)

    def _keep(self, task: Task, reply: Reply) -> None:
        """The tensors first: where there is an answer, it is whole."""
        if reply.tensors:
            write_durably(self._tensors(task), reply.tensors)
        data = _question(task) + wire.write(reply.answer)
        write_durably(self._folder / f"{task.id}.answer", data)

    def _tensors(self, task: Task) -> Path:
        return self._folder / f"{task.id}.safetensors"


def _question(task: Task) -> bytes:
    """All that is asked, but not which time."""
    return sha256_hex(wire.write(replace(task, attempt=0))).encode()


def _damaged(path: Path) -> IntegrityError:
    return IntegrityError(f"{path}: the file is damaged", hint="Restore the node's state from a backup.")
