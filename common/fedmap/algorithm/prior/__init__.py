"""The prior γ = (μ, ψ): the penalty R, the weights ω, and the next γ from the sites’ parameters.

In: θ_k and log ω_k of the sites, a prior.
Out: R and its gradients, the next prior.
May import: algorithm.model and below.
"""
