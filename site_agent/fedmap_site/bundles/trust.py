"""Whom this site believes about bundles: pinned release keys, and the newest list of withdrawals of each.

    trust.json  withdrawals/KEY.json

A first key is pinned from paper or at first contact; another one only when a person says so. A list of
withdrawals is believed only under a pinned key, and its serial never goes back. Whether a bundle is sound
is `fedmap.bundles.verification`. Whoever writes here holds the store's lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from fedmap.bundles.withdrawals import Withdrawals, newer_of, read_withdrawals
from fedmap.errors import IntegrityError, NotAllowedError, NotFoundError
from fedmap.files.durable import make_folder, read_file, write_durably
from fedmap.process.settings import Section
from fedmap.trust.signing import bare_fingerprint, shown_fingerprint

_TRUST, _LISTS = "trust.json", "withdrawals"
_ASK = "Ask the operator by telephone, not by mail, for the fingerprint of the release key"


class TrustedKey(Section):
    """A release key, and how it came to be trusted."""

    fingerprint: str
    source: str
    at_unix_ms: int


class _TrustFile(Section):
    keys: tuple[TrustedKey, ...] = ()


def together(*lists: Withdrawals | None) -> Withdrawals | None:
    """All that any of the lists forbids; None where there is no list."""
    there = [one for one in lists if one is not None]
    if not there:
        return None
    return Withdrawals(
        serial=max(one.serial for one in there),
        issued_unix_ms=max(one.issued_unix_ms for one in there),
        entries=tuple({(e.name, e.version): e for one in there for e in one.entries}.values()),
    )


@dataclass(frozen=True)
class BundleTrust:
    """The part of a bundle store that says who is believed."""

    folder: Path

    def trusted(self) -> tuple[TrustedKey, ...]:
        """The pinned keys, in the order in which they were pinned."""
        path = self.folder / _TRUST
        if not path.exists():
            return ()
        try:
            return _TrustFile.model_validate_json(read_file(path), strict=True).keys
        except ValidationError:
            raise IntegrityError(
                f"{path}: the file is damaged",
                hint="Restore it from a backup; or delete it, and trust the key on paper again with "
                "`fedmap-site bundle trust FINGERPRINT`.",
            ) from None

    def fingerprints(self, given: str = "") -> frozenset[str]:
        """The keys to verify with: the pinned ones; a given one must be among them, where there are any."""
        pinned = frozenset(key.fingerprint for key in self.trusted())
        if given:
            self.check(given)
            return frozenset({bare_fingerprint(given)})
        if not pinned:
            raise NotAllowedError(
                "no release key is trusted here yet",
                hint=f"{_ASK}, and give it as --fingerprint. An enrolled site learns it from the aggregator.",
            )
        return pinned

    def check(self, fingerprint: str) -> bool:
        """Whether this key is pinned; an error where another one is, for a change is a person's decision."""
        bare, pinned = bare_fingerprint(fingerprint), self.trusted()
        if any(key.fingerprint == bare for key in pinned):
            return True
        if pinned:
            raise NotAllowedError(
                f"another release key is trusted here than {shown_fingerprint(bare)}",
                hint=f"Look for a typing mistake first. {_ASK}. Only if it has really changed: "
                "`fedmap-site bundle trust FINGERPRINT --trust-new-key`. If nobody at the federation knows "
                "of a change, do not use what you got.",
            )
        return False

    def pin(self, fingerprint: str, source: str, now_unix_ms: int, *, another: bool = False) -> bool:
        """Trust a key from now on; False where it was trusted already. `another`: beside those there are."""
        bare, pinned = bare_fingerprint(fingerprint), self.trusted()
        if any(key.fingerprint == bare for key in pinned):
            return False
        if not another:
            self.check(bare)
        self._write((*pinned, TrustedKey(fingerprint=bare, source=source, at_unix_ms=now_unix_ms)))
        return True

    def forget(self, fingerprint: str) -> None:
        """Trust a key no longer. Its withdrawals stay: they can only forbid."""
        bare, pinned = bare_fingerprint(fingerprint), self.trusted()
        kept = tuple(key for key in pinned if key.fingerprint != bare)
        if len(kept) == len(pinned):
            raise NotFoundError(
                f"{shown_fingerprint(bare)} is not trusted here",
                hint="`fedmap-site bundle trust` lists the trusted keys.",
            )
        self._write(kept)

    def accept_list(self, data: bytes) -> tuple[Withdrawals, bool]:
        """Keep a signed list of withdrawals; whether it is new. An older one than known is refused."""
        key, fresh = self._signer(data)
        path = self.folder / _LISTS / f"{key}.json"
        known = read_withdrawals(read_file(path), frozenset({key})) if path.exists() else None
        newer_of(known, fresh)
        if fresh != known:
            make_folder(path.parent)
            write_durably(path, data)
        return fresh, fresh != known

    def withdrawals(self) -> Withdrawals | None:
        """All that any list forbids, together; None where no list was ever received."""
        return together(*self._lists())

    def signed_list(self, key: str) -> bytes | None:
        """The newest list of one key as it was received."""
        path = self.folder / _LISTS / f"{bare_fingerprint(key)}.json"
        return read_file(path) if path.exists() else None

    def _lists(self) -> Iterator[Withdrawals]:
        for path in sorted((self.folder / _LISTS).glob("*.json")):
            yield read_withdrawals(read_file(path), frozenset({path.stem}))

    def _signer(self, data: bytes) -> tuple[str, Withdrawals]:
        """Which pinned key signed a list. The last refusal stands where none did."""
        refused: IntegrityError | NotAllowedError | None = None
        for key in sorted(self.fingerprints()):
            try:
                return key, read_withdrawals(data, frozenset({key}))
            except (IntegrityError, NotAllowedError) as error:
                refused = error
        assert refused is not None
        raise refused

    def _write(self, keys: tuple[TrustedKey, ...]) -> None:
        write_durably(self.folder / _TRUST, _TrustFile(keys=keys).model_dump_json(indent=1).encode() + b"\n")
