"""Sums over sites that no single site’s rows can be read from: scaler, baseline hazard.

In: each site’s terms.
Out: pooled statistics and hazards.
May import: algorithm.fit and below.
"""
