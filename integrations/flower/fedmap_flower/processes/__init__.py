"""Flower’s own processes, started and watched.

In: a plan, addresses.
Out: a deployment that runs.
May import: centre and below.
"""
