"""FedMAP itself: tensors in, tensors out. No gRPC, files, clock, logging or globals.

The two halves of a round are one pure function each: `fit.fitting.fit_sites` for the sites and
`prior.aggregation.next_prior` at the centre.

In: settings, seeds, examples, parameters.
Out: fits, the next prior, pooled statistics.
May import: fedmap.errors only.
"""
