"""What a broken connection most likely means, told apart by the words that gRPC uses for it.

The words are gRPC's own and change between versions: what is not recognised gets a general hint, never a
wrong one. `doctor` looks closer than this.
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from fedmap.errors import UnreachableError


@dataclass(frozen=True)
class Cause:
    """One way in which a connection fails."""

    words: str  # any of them, divided by commas, in lower case, in gRPC's details
    message: str
    hint: str
    only: str = ""  # where this, too, is in the details

    def fits(self, said: str) -> bool:
        """Whether gRPC's words, in lower case, speak of this cause."""
        return self.only in said and any(word in said for word in self.words.split(", "))


# The first that fits counts: the more telling ones stand first.
CAUSES = (
    Cause(
        "http proxy, proxy returned, http connect, trying to connect an http1.x server, http status: 403",
        "the proxy does not let the connection through",
        "Check the `proxy` setting; ask the network team to allow CONNECT to the aggregator's port.",
    ),
    Cause(
        "certificate has expired, certificate is not yet valid",
        "the aggregator's certificate has ended or is not valid yet",
        "Check this machine's clock first; if it is right, the operator must renew the certificate.",
    ),
    Cause(
        "certificate_verify_failed, certificate verify failed, self signed, self-signed, "
        "unable to get local issuer",
        "the aggregator's certificate is not trusted here",
        "Check that the CA file is this federation's. If the network inspects TLS, ask for an exception "
        "for this address: with inspection a federation cannot work.",
    ),
    Cause(
        "is not in peer certificate, hostname verification",
        "the aggregator's certificate is for another name than the one dialled",
        "Dial the name in the aggregator's certificate, or have the operator issue one for this name.",
    ),
    Cause(
        "certificate_required, bad_certificate, bad certificate, certificate_expired, "
        "certificate expired, unknown_ca, unknown ca, certificate_revoked, certificate_unknown, "
        "access_denied",
        "the aggregator does not accept this side's certificate",
        "Check with `doctor` that the certificate is this federation's and has not ended; else enrol again.",
    ),
    Cause(
        "dns resolution, errors resolving, name or service not known, name resolution, "
        "domain name not found, could not resolve, nodename nor servname, no address associated, "
        "address lookup",
        "the aggregator's name cannot be resolved",
        "Check the spelling of the address and this machine's DNS.",
    ),
    Cause(
        "handshake failed, handshaker shutdown, ssl_error, tsi_",
        "the TLS handshake failed",
        "Check that address and port are the aggregator's, that no device inspects TLS, and that this "
        "machine's clock is right.",
    ),
    Cause(
        "connection refused",
        "the connection to the aggregator is refused",
        "Check the port, and that the aggregator runs; where a `proxy` is set, that the proxy runs. "
        "A firewall may also refuse.",
    ),
    Cause(
        "no route to host, network is unreachable, host is down",
        "there is no way through the network to the aggregator",
        "Check this machine's network, and that the firewall allows outgoing connections to the address.",
    ),
    Cause(
        "timed out, timeout, fd shutdown, deadline",
        "the aggregator does not answer",
        "A firewall may drop packets without a word: have it allow outgoing connections to address and port.",
    ),
    Cause(
        "socket closed, connection reset, broken pipe",
        "the aggregator closed the connection before it was made",
        "Most likely it does not accept this side's certificate: check with `doctor` that it is this "
        "federation's and has not ended. A firewall on the way can also do this.",
        only="failed to connect",
    ),
    Cause(
        "socket closed, connection reset, broken pipe, stream removed, rst_stream, goaway, "
        "connection closed, end of tcp stream",
        "the connection was cut",
        "The aggregator may have restarted: trying again is right. If it goes on, run `doctor`: the "
        "aggregator may refuse this side's certificate, or a device on the way cuts connections.",
    ),
)


def unreachable(status: grpc.StatusCode, details: str) -> UnreachableError:
    """The likeliest cause. Only what gRPC says of the connection itself is quoted, and in short."""
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return UnreachableError(
            "the aggregator did not answer in time",
            hint="It may be busy or the network slow: trying again is right. If it goes on, run `doctor`.",
        )
    if status is grpc.StatusCode.CANCELLED:
        return UnreachableError(
            "the call was cancelled", hint="Nothing to do if this side is stopping; else try again."
        )
    said = details.lower()
    quoted = " ".join(details.split())[:200] if status is grpc.StatusCode.UNAVAILABLE else status.name
    for cause in CAUSES:
        if cause.fits(said):
            return UnreachableError(f"{cause.message} ({quoted})", hint=cause.hint)
    return UnreachableError(
        f"the call failed ({quoted or status.name})",
        hint="Trying again is right. If it goes on, run `doctor` and tell the operator.",
    )
