"""`doctor`: what is wrong at this site, and what to do.

In: configuration, files, the network.
Out: findings.
May import: personalise and below.
"""
