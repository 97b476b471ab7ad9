"""The researcher's bench: cohorts, the simulator and its baselines. Imports `common` only."""
