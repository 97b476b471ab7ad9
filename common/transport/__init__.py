"""gRPC as both sides use it: channel options, translation of errors, files in chunks. No service logic."""
