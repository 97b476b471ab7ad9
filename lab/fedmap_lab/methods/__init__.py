"""One small file for each method, all behind the same interface (`method.Method`); `registry` names them.

Where a file does not say otherwise, T2 fine-tunes the global model by plain steps, and T3 uses it as it is.

In: a federation, an engine, settings.
Out: trained models, one prior or none.
May import: federation and below.
"""
