"""The site’s certificate: first, kept, renewed with a new key.

In: a token, a joining certificate.
Out: identity files.
May import: link and below.
"""
