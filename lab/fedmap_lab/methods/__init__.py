"""One small file for each method, all behind the same interface (`method.Method`); `registry` names them.

In: a federation, an engine, settings.
Out: trained models, one prior or none.
May import: federation and below.
"""
