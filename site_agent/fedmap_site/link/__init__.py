"""The way to the centre: the one gRPC connection, proxies, HTTPS downloads.

In: an address, credentials.
Out: calls with answers or errors in words.
May import: metrics and below.
"""
