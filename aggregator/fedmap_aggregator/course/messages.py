"""What the aggregator asks of its estimation process, and what comes back: values, and their JSON lines.

Tensors do not travel here: both sides name blobs by their digest. Floats keep every bit: each is
written as the shortest text that reads back as the same number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from fedmap.contract.v1.values import GlobalRule


@dataclass(frozen=True)
class SiteStatistics:
    """One site's accepted answer to the statistics task."""

    site: str
    rows: int
    layout_digest: str
    tensors_digest: str


@dataclass(frozen=True)
class PoolStatistics:
    """One scaler from the sites' statistics."""

    terms_json: str
    sites: tuple[SiteStatistics, ...]
    kind: Literal["statistics"] = "statistics"


@dataclass(frozen=True)
class PooledStatistics:
    """The scaler, as a blob, and the sites whose inputs are not those of the others."""

    scaler_digest: str
    scaler_size: int  # bytes
    rows: int  # of the sites that were pooled
    excluded: Mapping[str, str] = field(default_factory=dict)  # site → reason
    kind: Literal["statistics"] = "statistics"


@dataclass(frozen=True)
class InitialPrior:
    """γ⁰ from the first model of the drawn site."""

    terms_json: str
    scaler_digest: str
    theta_digest: str
    kind: Literal["initialise"] = "initialise"


@dataclass(frozen=True)
class EstimatedPrior:
    """A prior, as a blob with its scaler."""

    prior_digest: str
    prior_size: int  # bytes
    kind: Literal["initialise"] = "initialise"


@dataclass(frozen=True)
class SiteUpdate:
    """One site's accepted answer to a round."""

    site: str
    log_omega: float
    tensors_digest: str


@dataclass(frozen=True)
class NextPrior:
    """γ' from the prior of a round and its updates."""

    terms_json: str
    round: int
    prior_digest: str
    updates: tuple[SiteUpdate, ...]
    kind: Literal["fit"] = "fit"


@dataclass(frozen=True)
class EstimatedRound:
    """The next prior, as a blob with its scaler, and how it came to be."""

    prior_digest: str
    prior_size: int  # bytes
    weights: Mapping[str, float]  # ω̄ by site
    penalty: float  # Σ ω̄ R after the update
    convex_penalty: float  # the share of it that is f
    kind: Literal["fit"] = "fit"


@dataclass(frozen=True)
class SiteRule:
    """One site's accepted answer to the rule task."""

    site: str
    threshold: float | None
    validation_rows: int
    joined_intervals: int
    tensors_digest: str  # empty: neither baseline nor reference terms
    reference: bool = False  # the tensors hold reference terms


@dataclass(frozen=True)
class PoolRule:
    """The global model's rule from the sites' terms."""

    terms_json: str
    sites: tuple[SiteRule, ...]
    input_names: tuple[str, ...] = ()  # of the model's inputs; without them no reference is made
    kind: Literal["rule"] = "rule"


@dataclass(frozen=True)
class PooledRule:
    """The rule, as it travels to the sites, and the reference that a bundle carries."""

    rule: GlobalRule
    reference_digest: str = ""  # a blob of JSON; empty: no site sent terms
    kind: Literal["rule"] = "rule"


@dataclass(frozen=True)
class Failed:
    """Why there is no result: an error of `fedmap.errors` by its code."""

    code: str
    message: str
    hint: str
    kind: Literal["failed"] = "failed"


Request = PoolStatistics | InitialPrior | NextPrior | PoolRule
Result = PooledStatistics | EstimatedPrior | EstimatedRound | PooledRule
Reply = Result | Failed

_REQUEST: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])
_REPLY: TypeAdapter[Reply] = TypeAdapter(Annotated[Reply, Field(discriminator="kind")])


def to_line(message: Request | Reply) -> bytes:
    """One line of JSON. A number that is not finite has none: a ValueError."""
    return json.dumps(asdict(message), allow_nan=False).encode() + b"\n"


def request_of(line: bytes) -> Request:
    """Raises ValueError for what is no request."""
    return _REQUEST.validate_json(line)


def reply_of(line: bytes) -> Reply:
    """Raises ValueError for what is no reply, such as one that was cut off."""
    return _REPLY.validate_json(line)
