"""An HTTPS server and the pages that offer bundles: no script, no cookie.

In: requests.
Out: pages, files with ranges.
May import: transport and below.
"""
