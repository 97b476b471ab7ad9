"""How good a model is: decision rules, scores, calibration, figures over sites, small cells left out.

In: model outputs, rows at a site, terms of sites at the centre.
Out: metrics, rules, pooled figures.
May import: study.plan and below.
"""
