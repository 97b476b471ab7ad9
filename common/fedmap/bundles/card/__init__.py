"""The model card: what a person reads of a bundle.

In: a manifest.
Out: text and pictures.
May import: bundles.manifest and below.
"""
