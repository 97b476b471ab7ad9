"""A bare gRPC byte stream over mutual TLS: what the federation's transfers are measured against.

`python -m tests.bench.bare_stream PORT CERTIFICATE KEY CA FILE` serves four calls with raw bytes and
gRPC as it comes: `drop` takes a stream and forgets it, `keep` writes it to a file and syncs it, `prove` does
that and takes its SHA-256 along, `give` sends the bytes of FILE from memory.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from fedmap.transport.channel_options import CHUNK
from fedmap.transport.client import Credentials

THREADS = 16


@dataclass(frozen=True)
class BareClient:
    channel: grpc.Channel

    def send(self, call: str, data: bytes) -> None:
        method: grpc.StreamUnaryMultiCallable[bytes, bytes] = self.channel.stream_unary(f"/bare/{call}")
        assert int(method(_pieces(data))) == len(data)

    def receive(self) -> int:
        return sum(len(part) for part in self._given())

    def receive_into(self, path: Path) -> None:
        with path.open("wb", buffering=0) as file:
            for part in self._given():
                file.write(part)

    def receive_proven(self, path: Path) -> str:
        """Into a file, with the SHA-256 of the bytes."""
        digest = hashlib.sha256()
        with path.open("wb", buffering=0) as file:
            for part in self._given():
                digest.update(part)
                file.write(part)
        return digest.hexdigest()

    def _given(self) -> Iterator[bytes]:
        method: grpc.UnaryStreamMultiCallable[bytes, bytes] = self.channel.unary_stream("/bare/give")
        return iter(method(b""))


def _pieces(data: bytes) -> Iterator[bytes]:
    return (data[start : start + CHUNK] for start in range(0, len(data), CHUNK))


def _serve(port: int, certificate: Path, key: Path, ca: Path, source: Path) -> None:
    data = source.read_bytes()

    def drop(parts: Iterator[bytes], _: grpc.ServicerContext) -> bytes:
        return b"%d" % sum(len(part) for part in parts)

    def keep(parts: Iterator[bytes], _: grpc.ServicerContext) -> bytes:
        size = 0
        with tempfile.TemporaryFile(dir=source.parent, buffering=0) as file:
            for part in parts:
                size += file.write(part) or 0
            os.fsync(file.fileno())
        return b"%d" % size

    def prove(parts: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        digest = hashlib.sha256()

        def hashed() -> Iterator[bytes]:
            for part in parts:
                digest.update(part)
                yield part

        size = keep(hashed(), context)
        digest.hexdigest()
        return size

    def give(_: bytes, __: grpc.ServicerContext) -> Iterator[bytes]:
        return _pieces(data)

    server = grpc.server(ThreadPoolExecutor(THREADS))
    calls: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "drop": grpc.stream_unary_rpc_method_handler(drop),
        "keep": grpc.stream_unary_rpc_method_handler(keep),
        "prove": grpc.stream_unary_rpc_method_handler(prove),
        "give": grpc.unary_stream_rpc_method_handler(give),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", calls),))
    credentials = grpc.ssl_server_credentials(
        [(key.read_bytes(), certificate.read_bytes())], ca.read_bytes(), require_client_auth=True
    )
    bound = server.add_secure_port(f"127.0.0.1:{port}", credentials)
    server.start()
    sys.stdout.write(f"{bound}\n")
    sys.stdout.flush()
    server.wait_for_termination()


@contextmanager
def bare_server(pki_folder: Path, source: Path) -> Iterator[int]:
    """A bare stream server in a process of its own, with the aggregator's certificate; its port."""
    files = [str(pki_folder / name) for name in ("server.pem", "server.key", "ca.pem")]
    command = [sys.executable, "-m", "tests.bench.bare_stream", "0", *files, str(source)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@contextmanager
def bare_client(port: int, credentials: Credentials) -> Iterator[BareClient]:
    secure = grpc.ssl_channel_credentials(credentials.authority, credentials.key, credentials.certificate)
    options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own for each client
    with grpc.secure_channel(f"localhost:{port}", secure, options=options) as channel:
        yield BareClient(channel)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), *(Path(argument) for argument in sys.argv[2:6]))
