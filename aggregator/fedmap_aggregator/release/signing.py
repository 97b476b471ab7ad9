"""From a round's prior to a signed bundle, and its withdrawal.

A release takes these steps: (1) the round has a model that can stand alone; (2) the same release again is the
one there was; (3) manifest, card and picture from the study's records; (4) the file and its manifest become
blobs; (5) the row that names them and the audit entry are one transaction. The file format is
`fedmap.bundles`, figures are `figures`, handing out is `catalogue`. No gRPC.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import version as version_of
from typing import Literal

from fedmap.bundles.manifest import Draft, Lineage, Manifest
from fedmap.bundles.writing import prior_parts, readable_parts, scaler_values, write_bundle
from fedmap.errors import RejectedError, StateError, StorageError
from fedmap.files.durable import read_file
from fedmap.study.plan.sections import FeatureBlock
from fedmap.study.plan.study_plan import StudyPlan
from fedmap.study.record import StudyRecord
from fedmap.study.tensors.parameter_files import PriorFile, decode_prior
from fedmap_aggregator.identity.release_key import ReleaseKey
from fedmap_aggregator.release.figures import release_figures
from fedmap_aggregator.release.rule import baseline_of, releasable_round, threshold_of
from fedmap_aggregator.store import BundleRow, Store
from fedmap_aggregator.studies.records import study_record
from fedmap_aggregator.studies.service import Study

DAY_MS = 86_400_000
_LONGEST_DAYS = 3650
_SOFTWARE = version_of("fedmap")


@dataclass(frozen=True)
class ReleaseOrder:
    """What the operator asks for."""

    study: str
    round: int | None = None  # None: the last one
    tier: int = 2
    expires_at: int | None = None  # unix ms; None: after the configured days


@dataclass(frozen=True)
class _Label:
    """What tells one release from another."""

    name: str
    version: int
    tier: Literal[2, 3]
    released_at: int
    expires_at: int


@dataclass(frozen=True)
class BundleRelease:
    """Makes and withdraws bundles, one at a time. Safe to call from any thread."""

    study_of: Callable[[str], Study]
    store: Store
    key: ReleaseKey
    valid_days: int
    clock_ms: Callable[[], int]
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def release(
        self, order: ReleaseOrder, actor: str, elsewhere: StudyRecord | None = None
    ) -> tuple[BundleRow, bool]:
        """The bundle, and whether it was made now. `elsewhere`: the record of one that was run elsewhere."""
        study, tier, blobs = self.study_of(order.study), _tier(order.tier), self.store.blobs
        with self._turn:
            now = self.clock_ms()
            expires = self._expiry(order.expires_at, now)
            number = releasable_round(study.terms.plan, study.state, order.round)  # (1)
            name = f"{study.state.study}-t{tier}"
            with self.store.reading() as transaction:
                earlier = [row for row in transaction.bundles.list() if row.name == name]
                record = elsewhere or study_record(transaction, study.terms, study.state, blobs=blobs)
            digest = prior_digest(record, number)
            same = self._same(earlier, number, digest, order.expires_at, now)  # (2)
            if same is not None:
                return same, False
            label = _Label(name, earlier[-1].version + 1 if earlier else 1, tier, now, expires)
            row = self._make(study, number, label, record)
            with self.store.transaction() as transaction:  # (5)
                transaction.bundles.add(row)
                detail = {
                    "study": row.study,
                    "round": str(number),
                    "sha256": row.file_digest,
                    "key": row.key_fingerprint,
                    "expires": str(expires),
                }
                transaction.audit.append(actor, "bundle.release", row.file_name, detail, now)
            return row, True

    def withdraw(self, row: BundleRow, reason: str, actor: str) -> BundleRow:
        """From now on withdrawn; the first reason stands."""
        now = self.clock_ms()
        with self.store.transaction() as transaction:
            if transaction.bundles.withdraw(row.name, row.version, reason, now):
                detail = {"reason": reason, "sha256": row.file_digest}
                transaction.audit.append(actor, "bundle.withdraw", row.file_name, detail, now)
            return transaction.bundles.get(row.name, row.version) or replace(row, withdrawn_at=now)

    def _expiry(self, asked: int | None, now: int) -> int:
        """The end of a day, so that people can read it."""
        if asked is None:
            return (now // DAY_MS + self.valid_days + 1) * DAY_MS
        if not now < asked <= now + _LONGEST_DAYS * DAY_MS:
            raise RejectedError(
                f"the expiry must be in the future, at most {_LONGEST_DAYS} days from now",
                hint="give the last day of use as --expires YYYY-MM-DD",
            )
        return asked

    def _same(
        self, earlier: list[BundleRow], number: int, digest: str, expires: int | None, now: int
    ) -> BundleRow | None:
        """The release that this one would repeat: of the same prior and expiry, and still standing."""
        for row in reversed(earlier):
            stands = row.withdrawn_at is None and row.key_fingerprint == self.key.fingerprint
            fits = row.expires_at == expires if expires is not None else row.expires_at > now
            if stands and fits and row.round == number and self._prior_of(row) == digest:
                return row
        return None

    def _prior_of(self, row: BundleRow) -> str:
        """Which prior a bundle was made from: a study of that name may have been run elsewhere as well."""
        manifest = read_file(self.store.blobs.existing(row.manifest_digest))
        return Manifest.model_validate_json(manifest).lineage.prior_digest

    def _make(self, study: Study, number: int, label: _Label, record: StudyRecord) -> BundleRow:
        """The bundle on the disk, and the row that is to name it."""
        digest = prior_digest(record, number)
        if not digest and any(one.summary.round == number for one in record.rounds):
            raise StateError(
                f"the prior of round {number} of {study.state.study} was deleted by retention.keep_rounds",
                hint="release the last round; priors of older ones are kept when keep_rounds is 0",
            )
        prior = self._prior(study, digest)
        figures = release_figures(record, number)
        plan = study.terms.plan
        draft = Draft(  # (3)
            name=label.name,
            version=label.version,
            study=study.state.study,
            title=plan.study.title,
            intended_use=plan.study.intended_use,
            tier=label.tier,
            released_unix_ms=label.released_at,
            expires_unix_ms=label.expires_at,
            software_version=_SOFTWARE,
            terms_json=study.terms.to_json(),
            terms_digest=study.terms.digest,
            plan_digest=plan.digest,
            model=plan.model.name,
            inputs=record.input_names or planned_names(plan),
            lineage=Lineage(
                round=number,
                rounds=study.state.rounds,
                sites=figures.sites,
                prior_digest=digest,
                accepted_updates=figures.accepted_updates,
                refused=figures.refused,
            ),
            scaler=scaler_values(prior.scaler),
            threshold=threshold_of(record, number),
            baseline=baseline_of(record, number),
            reference=record.reference,
            data=figures.data,
            performance=figures.performance,
            calibration=figures.calibration,
            groups=figures.groups,
        )
        blobs = self.store.blobs
        parts = prior_parts(plan, prior.prior, label.tier) | readable_parts(draft)
        file = write_bundle(blobs.draft(), draft, parts, self.key.pem)  # (4)
        blobs.adopt(file.path)
        return BundleRow(
            name=label.name,
            version=label.version,
            study=study.state.study,
            round=number,
            tier=label.tier,
            file_digest=file.sha256,
            size=file.size,
            manifest_digest=blobs.put(file.manifest.to_json()),
            key_fingerprint=self.key.fingerprint,
            released_at=label.released_at,
            expires_at=label.expires_at,
        )

    def _prior(self, study: Study, digest: str) -> PriorFile:
        if not digest:
            raise StorageError(
                f"a round of {study.state.study} is computed and its result is not stored",
                hint="the database was changed by hand, or is an older copy: restore it from a backup",
            )
        self.store.blobs.verify(digest)  # what a disk has changed is not signed
        path = self.store.blobs.existing(digest)
        return decode_prior(study.model.network, study.terms.plan.prior, path)


def prior_digest(record: StudyRecord, number: int) -> str:
    """Of the prior that round `number` made; empty where it is not stored, or no longer."""
    return next((one.prior_digest for one in record.rounds if one.summary.round == number), "")


def _tier(tier: int) -> Literal[2, 3]:
    if tier == 2:
        return 2
    if tier == 3:
        return 3
    raise RejectedError(
        "a bundle is of tier 2 or 3", hint="2 has the prior, to fine-tune; 3 has the model, to predict"
    )


def planned_names(plan: StudyPlan) -> tuple[str, ...]:
    """The names of the inputs where no agent sent them, as `fedmap.data.features` would name them."""
    names: list[str] = []
    for feature in plan.features:
        if isinstance(feature, FeatureBlock):
            raise StateError(
                "no site has sent the names of the inputs, and the plan alone does not give them",
                hint="the study was run by older agents: update them, and run it again",
            )
        if feature.kind == "category":
            names += [f"{feature.name}={category}" for category in feature.categories[1:]]
        else:
            names.append(feature.name)
    return tuple(names)
