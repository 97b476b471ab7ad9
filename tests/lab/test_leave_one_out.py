"""Leaving one site out: what is refused before any process starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmap.errors import DataError
from fedmap_lab.local.leave_one_out import leave_one_out
from tests.services.studies import small_study


def test_too_few_sites_to_leave_one_out_are_refused_before_anything_starts(tmp_path: Path) -> None:
    study = small_study(tmp_path / "study", sites={"a": 60, "b": 60})
    directory = study.sites[0].data.parent
    with pytest.raises(DataError, match="quorum is missed"):
        leave_one_out(study.plan, directory, tmp_path / "out", 1, 0, lambda *_: None)
    assert not (tmp_path / "out").exists()
