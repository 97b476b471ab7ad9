"""One study, whoever runs it: plan, terms, models, course, answers, steps.

In: plans, datasets, priors, answers.
Out: answers, results, what a finished study left.
May import: shift and below.
"""
