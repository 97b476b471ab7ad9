"""A newer version on the state folder of an older one: tables are upgraded, keys are not touched."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path

from fedmap.files.digests import file_sha256
from fedmap_aggregator.identity.initialise import initialise
from fedmap_aggregator.store import schema_status
from fedmap_aggregator.store.layout import database_url
from fedmap_aggregator.store.portable import dump, load
from fedmap_aggregator.wiring import Aggregator
from tests.aggregator.running import config_in
from tests.aggregator.store.recorded_rows import SCHEMA, counts, recorded_lines


def test_an_upgrade_keeps_every_key_and_certificate_byte_for_byte(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    initialise(config, "kim", datetime.now(UTC))
    url, lines = database_url(config), recorded_lines()
    load(url, SCHEMA, counts(lines), lines, lambda _: None)
    keys = [path for name in ("pki", "release") for path in (config.server.state / name).iterdir()]
    before = {path: (file_sha256(path), path.stat().st_mtime_ns, path.stat().st_mode) for path in keys}
    assert len(before) >= 7
    with Aggregator(config) as aggregator:
        assert aggregator.ready() is None
    assert schema_status(url).state == "current"
    after = {path: (file_sha256(path), path.stat().st_mtime_ns, path.stat().st_mode) for path in keys}
    assert after == before
    out = io.BytesIO()
    dump(url, out)
    known = out.getvalue().splitlines(keepends=True)
    identities = [line for line in lines if line.startswith((b'["sites"', b'["certificates"'))]
    assert identities
    assert set(identities) <= set(known)
