"""Code generated from `proto/fedmap/v1` by `make proto`. Not edited by hand; a test notices drift."""
