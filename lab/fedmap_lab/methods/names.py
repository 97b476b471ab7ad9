"""The names of all methods, for commands that must not load torch to answer --help. A test holds them to
METHODS.
"""

from __future__ import annotations

BASELINES = (
    *("individual", "pooled", "fedavg", "fedprox", "scaffold", "qfedavg", "feddyn"),
    *("ditto", "pfedme", "pfedbayes", "pfedgp", "pfedfda"),
)
ABLATIONS = (
    *("fedmap-paper", "fedmap-quadratic", "fedmap-convex"),
    *("fedmap-per-sample", "fedmap-literal", "fedmap-reference", "fedmap-sample-count"),
    *("fedmap-start-local", "fedmap-start-global", "fedmap-no-consensus", "fedmap-frozen", "fedmap-sketch"),
)
METHOD_NAMES = (*BASELINES, "fedmap", *ABLATIONS)
