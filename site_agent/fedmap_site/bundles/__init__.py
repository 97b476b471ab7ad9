"""Bundles at a site: fetch, trust, verify, keep, hand on.

In: links, files.
Out: installed bundles.
May import: loop and below.
"""
