"""Tensors as files: models, priors, statistics, the terms of a rule.

In: bytes, or the path of a file.
Out: values that fit the plan's model, or an error that names what does not.
May import: study.course and below.
"""
