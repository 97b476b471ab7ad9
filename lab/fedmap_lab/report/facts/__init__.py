"""The tables, description and models of a comparison as facts.

In: the folder of a comparison.
Out: frozen facts.
May import: comparison and below.
"""
