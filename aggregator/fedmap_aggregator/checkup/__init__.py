"""`doctor` and `health`: what is wrong, and what to do.

In: configuration, state, the network.
Out: findings.
May import: operator and below.
"""
