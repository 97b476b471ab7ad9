"""Measurements: engines, prior step, seeds, shift calibration.

In: nothing but seeds.
Out: ratios measured in one run.
May import: local and below.
"""
