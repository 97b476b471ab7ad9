"""Who calls, who may, and the aggregator’s own keys.

In: certificates, configuration.
Out: callers, identities, the release key.
May import: metrics and below.
"""
