"""The central service: coordinates rounds and estimates the prior. Imports `common` only."""
