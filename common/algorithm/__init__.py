"""FedMAP itself: tensors in, tensors out. No gRPC, files, clock, logging or globals.

The two halves of a round are one pure function each: `fitting.fit_local` at a site and
`aggregation.next_prior` at the centre. The simulator loops over the two; a service puts a network between.
"""
