"""What an answer holds, for the person who has to release it: every field and tensor, and every check made.

The manifest describes the very bytes that would leave and nothing that stays. It is written twice: as JSON
for machines and as text for people. It stays at the site.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import safetensors.numpy
from pydantic import TypeAdapter, ValidationError

from fedmap.contract import wire
from fedmap.contract.v1.values import Answer
from fedmap.errors import IntegrityError
from fedmap.files.digests import sha256_hex
from fedmap.study.answer_names import content_name
from fedmap_site.policy import Floors, SitePolicy

FORMAT = 1
Outcome = Literal["passed", "changed", "withheld", "refused"]


@dataclass(frozen=True)
class Check:
    """One check of the exit gate, and what came of it."""

    name: str
    outcome: Outcome
    text: str


@dataclass(frozen=True)
class Field:
    """One value of the message."""

    name: str
    value: str


@dataclass(frozen=True)
class TensorFacts:
    """One tensor, without its values."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    norm: float


@dataclass(frozen=True)
class PolicyFacts:
    """What was in force when the answer was made."""

    digest: str
    egress: str
    min_rows: int
    min_events: int
    min_cell: int
    clip_norm: float
    noise_multiplier: float


@dataclass(frozen=True)
class Manifest:
    """Everything about one answer that a reviewer can judge by eye."""

    format: int
    study: str
    task: str
    attempt: int
    site: str
    content: str
    terms_digest: str
    made_unix_ms: int
    answer_digest: str
    answer_bytes: int
    tensors_digest: str
    tensors_bytes: int
    fields: tuple[Field, ...]
    tensors: tuple[TensorFacts, ...]
    policy: PolicyFacts
    checks: tuple[Check, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    def to_text(self) -> str:
        return "\n".join(_text(self)) + "\n"


@dataclass(frozen=True)
class Package:
    """An answer ready for the outbox, in the bytes that would leave."""

    answer: bytes
    tensors: bytes
    manifest: Manifest


_ADAPTER = TypeAdapter(Manifest)


def read_manifest(data: bytes) -> Manifest:
    """A manifest from its JSON; `IntegrityError` where it is damaged."""
    try:
        return _ADAPTER.validate_json(data, strict=True)
    except ValidationError:
        raise IntegrityError(
            "the manifest of an outbox item is damaged", hint="Restore the state folder from a backup."
        ) from None


def policy_facts(policy: SitePolicy, floors: Floors) -> PolicyFacts:
    return PolicyFacts(
        policy.digest,
        policy.egress,
        floors.min_rows,
        floors.min_events,
        floors.min_cell,
        policy.clip_norm,
        policy.noise_multiplier,
    )


def packed(
    answer: Answer, tensors: bytes, policy: PolicyFacts, checks: Sequence[Check], made_unix_ms: int
) -> Package:
    """Describes an answer from its own bytes, so that nothing in it can be forgotten."""
    data = wire.write(answer)
    manifest = Manifest(
        format=FORMAT,
        study=answer.study,
        task=answer.task_id,
        attempt=answer.attempt,
        site=answer.site,
        content=content_name(answer),
        terms_digest=answer.terms_digest,
        made_unix_ms=made_unix_ms,
        answer_digest=sha256_hex(data),
        answer_bytes=len(data),
        tensors_digest=answer.tensors_digest,
        tensors_bytes=len(tensors),
        fields=tuple(Field(name, value) for name, value in wire.fields_of(answer)),
        tensors=tuple(_tensors(tensors)),
        policy=policy,
        checks=tuple(checks),
    )
    return Package(data, tensors, manifest)


def _tensors(data: bytes) -> Iterator[TensorFacts]:
    if not data:
        return
    for name, array in sorted(safetensors.numpy.load(data).items()):
        norm = float(np.linalg.norm(array.astype(np.float64).ravel()))
        yield TensorFacts(name, str(array.dtype), tuple(int(n) for n in array.shape), norm)


def _text(m: Manifest) -> Iterator[str]:
    yield f"What would leave the site {m.site}: {m.content}"
    yield f"For task {m.task} (attempt {m.attempt}) of study {m.study}, terms {m.terms_digest}"
    yield ""
    yield f"Message: {m.answer_bytes} bytes, SHA-256 {m.answer_digest}"
    yield from (f"  {field.name} = {field.value}" for field in m.fields)
    yield ""
    if m.tensors:
        yield f"Tensors: {m.tensors_bytes} bytes, SHA-256 {m.tensors_digest}"
        yield from (
            f"  {t.name}  {t.dtype} {'x'.join(map(str, t.shape)) or 'scalar'}  norm {t.norm:.6g}"
            for t in m.tensors
        )
    else:
        yield "Tensors: none"
    yield ""
    p = m.policy
    yield (
        f"Policy {p.digest[:16]} in force: egress {p.egress}; at least {p.min_rows} rows, {p.min_events} "
        f"events, {p.min_cell} per cell; clip {p.clip_norm:g}, noise {p.noise_multiplier:g}"
    )
    yield "Checks:"
    yield from (f"  {check.name}: {check.outcome}. {check.text}" for check in m.checks)
