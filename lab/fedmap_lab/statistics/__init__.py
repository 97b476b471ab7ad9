"""What the tables of a comparison can say: pairs, tests, equity, caveats.

In: scores by site.
Out: gains, intervals, words.
May import: simulation and below.
"""
