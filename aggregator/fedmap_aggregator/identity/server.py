"""The certificate that the aggregator shows, read anew when its file changes and renewed before it ends.

With its own authority the aggregator renews by itself, also while it runs for months; with external PKI
whoever replaces the files is noticed at the next handshake. Connections that exist are not touched.
"""

from __future__ import annotations

import datetime
import threading
from dataclasses import dataclass, field
from pathlib import Path

from fedmap.errors import FedmapError
from fedmap.files.durable import read_file, storage_errors, write_durably
from fedmap.process.log import get_logger
from fedmap.trust.pki import CertificateAuthority, certificate_facts, fits
from fedmap_aggregator.config import AggregatorConfig
from fedmap_aggregator.identity.initialise import (
    check_external,
    issue_server_certificate,
    names_host,
    pki_paths,
)

_RENEW_BEFORE = datetime.timedelta(days=30)


@dataclass(frozen=True)
class ServerPair:
    """Certificate chain and key that belong together."""

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)


class ServerIdentity:
    """Safe to call from any thread."""

    def __init__(
        self, config: AggregatorConfig, authority: CertificateAuthority | None, now: datetime.datetime
    ) -> None:
        self._config = config
        self._authority = authority
        external = config.pki.external
        if external is not None:
            check_external(external, config, now)
        own = pki_paths(config)
        self._certificate = external.server_certificate if external else own.server_certificate
        self._key = external.server_key if external else own.server_key
        self.client_ca_pem = read_file(external.client_ca if external else own.ca)
        self._lock = threading.Lock()
        self.renew(now)
        self._stamp = self._read_stamp()
        self._pair = self._read()

    @property
    def pair(self) -> ServerPair:
        return self._pair

    @property
    def files(self) -> tuple[Path, Path]:
        """Certificate and key, for a server that looks at them itself."""
        return self._certificate, self._key

    @property
    def ends(self) -> datetime.datetime:
        return certificate_facts(self._pair.certificate_pem).not_after

    def refresh(self) -> ServerPair | None:
        """The new pair where the files have changed and fit each other; None: nothing new."""
        with self._lock:
            try:
                stamp = self._read_stamp()
                if stamp == self._stamp:
                    return None
                pair = self._read()
                if not fits(pair.key_pem, pair.certificate_pem):
                    return None  # half replaced: the other file is about to follow
            except FedmapError as error:
                get_logger().error("server_certificate_unreadable", exc_info=error)
                return None
            self._pair, self._stamp = pair, stamp
            get_logger().info("server_certificate_changed", expires=f"{self.ends:%Y-%m-%d}")
            return pair

    def renew(self, now: datetime.datetime) -> bool:
        """Replace our own certificate when it has to be; True when that was done."""
        if self._authority is None:
            return False
        if not self._is_due(now):
            return False
        certificate, key = issue_server_certificate(self._authority, self._config, now)
        # Two files, but a pair that does not fit is not taken up, so the order does not matter.
        write_durably(self._key, key)
        write_durably(self._certificate, certificate, mode=0o644)
        get_logger().info("server_certificate_renewed")
        return True

    def _is_due(self, now: datetime.datetime) -> bool:
        """It ends soon, is gone, does not fit its key, or does not name the host that sites dial."""
        if not (self._certificate.is_file() and self._key.is_file()):
            return True
        pair = self._read()
        facts = certificate_facts(pair.certificate_pem)
        soon = min(_RENEW_BEFORE, datetime.timedelta(days=self._config.pki.server_days) / 3)
        return (
            facts.not_after - now <= soon
            or not fits(pair.key_pem, pair.certificate_pem)
            or not all(names_host(facts.dns_names, host) for host in self._config.dialled_hosts)
        )

    def _read(self) -> ServerPair:
        return ServerPair(read_file(self._certificate), read_file(self._key))

    def _read_stamp(self) -> tuple[tuple[int, int], ...]:
        return tuple(_stamp(path) for path in (self._certificate, self._key))


def _stamp(path: Path) -> tuple[int, int]:
    with storage_errors(path):
        status = path.stat()
    return status.st_mtime_ns, status.st_ino
