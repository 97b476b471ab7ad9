"""Uploads that stall, drip or never end, without a network: the clock is the test's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from fedmap.errors import LimitError
from fedmap_aggregator.rpc.pace import PacedParts, PaceLimits

LIMITS = PaceLimits(whole=100.0, stall=30.0, slowest=1000.0)


class Ticking:
    """A clock that each part moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_stream_at_a_good_pace_arrives_whole() -> None:
    with PacedParts(iter([b"a"] * 50), len, LIMITS) as parts:
        assert b"".join(parts) == b"a" * 50


def test_a_stream_that_drips_is_cut_off_though_it_never_stalls() -> None:
    clock = Ticking()

    def drips() -> Iterator[bytes]:
        while True:
            clock.now += 10
            yield b"x"

    with PacedParts(drips(), len, LIMITS, clock) as parts, pytest.raises(LimitError, match="slower"):
        for _ in parts:
            pass


def test_a_stream_that_takes_too_long_is_cut_off_though_it_is_fast() -> None:
    clock = Ticking()

    def floods() -> Iterator[bytes]:
        while True:
            clock.now += 1
            yield b"x" * 1_000_000

    with PacedParts(floods(), len, LIMITS, clock) as parts, pytest.raises(LimitError, match="longer"):
        for _ in parts:
            pass


def test_a_stream_that_stalls_is_cut_off_and_its_reader_ends() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def stalls() -> Iterator[bytes]:
        yield b"x"
        go_on.wait(60)
        ended.set()
        yield b"y"

    limits = PaceLimits(whole=100.0, stall=0.05, slowest=0.0)
    with PacedParts(stalls(), len, limits) as parts, pytest.raises(LimitError, match="nothing arrived"):
        for _ in parts:
            pass
    go_on.set()
    assert ended.wait(30)


def test_what_the_sender_raises_reaches_the_reader() -> None:
    def breaks() -> Iterator[bytes]:
        yield b"x"
        raise ConnectionResetError("gone")

    with PacedParts(breaks(), len, LIMITS) as parts, pytest.raises(ConnectionResetError):
        for _ in parts:
            pass


def test_a_reader_that_leaves_early_does_not_keep_the_senders_thread() -> None:
    with PacedParts(iter(lambda: b"x", None), len, LIMITS) as parts:
        next(parts)
        (thread,) = [t for t in threading.enumerate() if t.name == "upload"]
    thread.join(30)
    assert not thread.is_alive()
