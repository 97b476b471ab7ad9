"""How often an alarm may be false, and which differences are worth one. Set on
`fedmap_lab.bench.shift_calibration`.
"""

from __future__ import annotations

BUDGET = {"level": 0.005, "given": 0.025, "spread": 0.004, "shape": 0.003, "range": 0.003, "joint": 0.005}
"""Chances of a false alarm, 4.5 % in all: the rest is for what the normal theory does not know."""
SITES_FOR_FULL_BUDGET = 15
"""With fewer, "given the others" has a part of its chances: how inputs hang together is hardly known."""
LEAST_DIFFERENCE = 0.2
"""In standard deviations: what is worth an alarm."""
LEAST_RATIO = 1.15
"""Of standard deviations, either way."""
LEAST_INDEX = 0.1
"""Below it a distribution counts as stable by convention."""
LEAST_OUTSIDE = 0.01
"""Share of rows."""
SLACK = 0.03
"""Standard deviations by which any input may be off on its own: instruments, rounding."""
MOST_FREEDOM = 1e6
"""As good as a normal distribution."""
