"""One module per service of the contract: authenticated callers and messages in, messages out. No gRPC."""
