"""What a site tells of its inputs, with small cells joined.

In: a site’s scaled rows.
Out: `ReferenceTerms`.
May import: data and below.
"""
