"""Whether a release still stands: steps (5) to (7) of `verification`.

Each function takes a manifest and what is known, and gives its finding in words, or a `StateError`.
"""

from __future__ import annotations

from fedmap.bundles.manifest import Manifest
from fedmap.bundles.moments import day
from fedmap.bundles.withdrawals import Withdrawals
from fedmap.errors import StateError

UPDATE = "Update this software. If it is the newest, tell the operator: the release is at fault."

CLOCK_SLACK_MS = 24 * 3600 * 1000
"""How far a clinic's clock may be behind the release: a wrong time zone is no reason to refuse a bundle."""


def check_expiry(manifest: Manifest, now_unix_ms: int) -> str:
    released, expires = day(manifest.released_unix_ms), day(manifest.expires_unix_ms)
    if now_unix_ms >= manifest.expires_unix_ms:
        raise StateError(
            f"it expired on {expires}",
            hint="Download the newest version. If there is none, the federation no longer stands behind "
            "this model: do not use it.",
        )
    if manifest.released_unix_ms > now_unix_ms + CLOCK_SLACK_MS:
        raise StateError(
            f"it was released on {released}, which has not come yet",
            hint="Set this computer's clock; it seems to be behind. If it is right, do not use the file.",
        )
    return f"released on {released}, to be used before {expires}"


def check_withdrawal(manifest: Manifest, withdrawals: Withdrawals | None) -> str:
    if withdrawals is None:
        return "no list of withdrawn bundles is known here, so none was asked"
    found = withdrawals.find(manifest.name, manifest.version)
    if found is not None:
        raise StateError(
            f"it was withdrawn on {day(found.at_unix_ms)}: {found.reason}",
            hint="Do not use it. Download the newest version, and look at what was decided with this one.",
        )
    return f"not on list {withdrawals.serial} of {day(withdrawals.issued_unix_ms)}"


def check_rollback(manifest: Manifest, installed: int | None) -> str:
    if installed is None:
        return f"version {manifest.version}; no other was said to be installed"
    if manifest.version < installed:
        raise StateError(
            f"it is version {manifest.version}, and version {installed} was installed before",
            hint="Use the newer version. Somebody may have sent you an old one for the faults it has.",
        )
    return f"version {manifest.version}; the highest installed before is {installed}"
