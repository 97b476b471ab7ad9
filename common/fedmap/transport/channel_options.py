"""What both ends of a connection share: message sizes, throughput, signs of life, proxy, version.

Certificates are not here: who is trusted is decided where a channel or a server is made. Of the contract
the newest version that both know is spoken; that of the software is told for people to read and never
compared.
"""

from __future__ import annotations

MIB = 1024 * 1024
CHUNK = MIB - 1024
"""Bytes of tensors in one message; with its framing the message stays within 1 MiB."""

MAX_MESSAGE = 2 * MIB
LOOKAHEAD = 4 * MIB
MAX_METADATA = 64 * 1024
KEEPALIVE_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 20_000

Options = list[tuple[str, int | str]]

_SHARED: tuple[tuple[str, int | str], ...] = (
    ("grpc.optimization_target", "throughput"),
    ("grpc.http2.lookahead_bytes", LOOKAHEAD),
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    # The trailer of an error carries its whole text.
    ("grpc.max_metadata_size", MAX_METADATA),
    ("grpc.absolute_max_metadata_size", 2 * MAX_METADATA),
    # Firewalls forget silent connections, and a machine that vanished must be noticed.
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)


def client_options(proxy: str = "") -> Options:
    """For a channel. Only the proxy given here is used: what the environment says is ignored."""
    through: Options = [("grpc.http_proxy", proxy)] if proxy else [("grpc.enable_http_proxy", 0)]
    return [
        *_SHARED,
        # After an outage the first attempt of the caller's own backoff should really dial.
        ("grpc.initial_reconnect_backoff_ms", 500),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        *through,
    ]


def server_options() -> Options:
    """For the server: it takes the clients' signs of life, and no second server may share its port."""
    return [
        *_SHARED,
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MS // 3),
        ("grpc.so_reuseport", 0),
    ]


OLDEST_PROTOCOL = 1
"""Oldest version of the contract that this software still speaks; the release before this one speaks it."""
PROTOCOL = 1
"""Newest version of the contract that this software speaks."""


def agreed_protocol(
    oldest: int, newest: int, own_oldest: int = OLDEST_PROTOCOL, own_newest: int = PROTOCOL
) -> int | None:
    """The version to speak with a peer that knows `oldest` to `newest`; None where there is none."""
    agreed = min(newest, own_newest)
    return agreed if agreed >= max(oldest, own_oldest) else None
