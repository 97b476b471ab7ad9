"""What a learned prior says, as facts and as words.

In: kept models.
Out: facts, sentences.
May import: report.facts and below.
"""
