"""The hospital’s agent: it dials out, works on local rows, and lets go what its policy allows.

In: tasks, a data file, a policy.
Out: answers through the exit gate; predictions.
May import: fedmap; never the aggregator or the lab.
"""
