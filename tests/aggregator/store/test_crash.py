"""Kill −9 while the store works: what was acknowledged is there, and what was half done is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedmap_aggregator.store import BlobStore, Store
from tests.aggregator.store.conftest import MakeStore

WRITER = """
import sys
from pathlib import Path
from fedmap_aggregator.store import BlobStore, Store
url, folder = sys.argv[1:]
store = Store(url, BlobStore(Path(folder)))
store.prepare()
for number in range(1_000_000):
    digest = store.blobs.put(str(number).encode())
    with store.transaction() as transaction:
        transaction.audit.append("aggregator", "write", digest, {}, number)
    print(number, flush=True)
"""

HALF_WAY = """
import sys
from pathlib import Path
from fedmap_aggregator.store import BlobStore, Store
url, folder = sys.argv[1:]
store = Store(url, BlobStore(Path(folder)))
store.prepare()
with store.blobs.receive() as writer, store.transaction() as transaction:
    writer.write(bytes(100_000))
    transaction.audit.append("aggregator", "half", "", {}, 1)
    print("half way", flush=True)
    sys.stdin.read()
"""


def run_until(script: str, url: str, folder: Path, line: str) -> int:
    """Kills the process at the moment it has printed the line; returns how many lines came after it."""
    with subprocess.Popen(
        [sys.executable, "-c", script, url, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        for printed in child.stdout:
            if printed.strip() == line:
                break
        child.kill()
        return child.stdout.read().count("\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "blobs"


def test_everything_acknowledged_before_a_kill_is_there(
    database_url: str, folder: Path, open_store: MakeStore
) -> None:
    more = run_until(WRITER, database_url, folder, "25")
    acknowledged = 26 + more
    store = open_store(database_url)
    store.prepare()
    with store.reading() as transaction:
        entries = list(transaction.audit.entries())
        assert transaction.audit.verify().entries == len(entries)
    # The last commit may have come just before the kill, and its line after it.
    assert len(entries) in (acknowledged, acknowledged + 1)
    for entry in entries:
        store.blobs.verify(entry.subject)


def test_what_was_half_done_at_a_kill_is_cleaned_at_the_next_start(
    database_url: str, folder: Path, open_store: MakeStore
) -> None:
    run_until(HALF_WAY, database_url, folder, "half way")
    assert len(list((folder / "incoming").iterdir())) == 1
    store: Store = open_store(database_url)
    prepared = store.prepare()
    assert (prepared.schema.state, prepared.leftovers) == ("current", 1)
    assert list((folder / "incoming").iterdir()) == []
    with store.transaction() as transaction:
        assert transaction.audit.verify().entries == 0
    assert BlobStore(folder).clean() == 0
