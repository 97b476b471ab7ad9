"""A finished study as a signed bundle, and who may have it.

In: what a study left.
Out: bundles, links, downloads.
May import: gate and below.
"""
