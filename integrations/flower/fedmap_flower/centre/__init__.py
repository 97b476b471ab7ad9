"""The centre’s half: rounds, the gate, the folder of the run.

In: answers of nodes.
Out: priors, a run folder.
May import: node and below.
"""
