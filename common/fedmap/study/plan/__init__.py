"""The study plan: TOML in, one frozen and checked `StudyPlan` out.

`sections` are the plan's parts, `contradictions` what they must not say together,
`reading` is the way in. The plan knows nothing of patient files or of models.

In: TOML text.
Out: `StudyPlan`, or every problem at once.
May import: metrics and below.
"""
