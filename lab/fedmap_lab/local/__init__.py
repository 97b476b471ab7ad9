"""Federations of real processes on this machine: demo, compose, leave-one-out.

In: a plan, a cohort, commands.
Out: studies run for real, with their results.
May import: report and below.
"""
