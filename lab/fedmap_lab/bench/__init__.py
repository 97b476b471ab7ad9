"""Studies of the methods themselves: training seeds, shift calibration. Speed is measured by `make bench`.

In: plans and cohorts.
Out: tables of results over seeds and draws.
May import: local and below.
"""
