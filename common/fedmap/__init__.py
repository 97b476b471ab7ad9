"""The library that every program of FedMAP shares: the algorithm, one study engine, data, scores, bundles.

In: tensors, plans, tables and files.
Out: frozen values, scores, signed files.
May import: libraries; of its rooms (the order is in tests/test_import_directions.py) the lower ones.
"""
