"""gRPC without the services: channel options, chunks, errors ↔ statuses.

In: messages, bytes, errors.
Out: chunks, statuses.
May import: bundles and below.
"""
