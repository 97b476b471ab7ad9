"""The reference of a made-up federation, pooled once."""

from __future__ import annotations

import pytest

from fedmap.shift.pooling import pool_reference
from fedmap.shift.reference import Reference
from fedmap.shift.told.terms import reference_terms
from tests.common.shift.made_up_federation import FLOOR, NAMES, SCALED, draw_site


@pytest.fixture(scope="session")
def reference() -> Reference:
    """Of 30 sites."""
    terms = {
        f"site_{seed:02d}": reference_terms(draw_site(1000 + seed, 1500), SCALED, FLOOR) for seed in range(30)
    }
    return pool_reference(terms, NAMES)
