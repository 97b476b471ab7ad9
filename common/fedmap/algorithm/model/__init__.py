"""The shape of a model: ordered parameters, layers, networks, likelihoods, all with an axis of sites.

In: parameter vectors, features.
Out: outputs, losses, gradients.
May import: errors, algorithm.settings, algorithm.seeding, algorithm.examples.
"""
