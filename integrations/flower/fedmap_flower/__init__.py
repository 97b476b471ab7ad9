"""FedMAP on Flower: thin, over the services’ own stages.

In: Flower’s messages.
Out: the same study, bit for bit.
May import: fedmap, and the stages of the services that the import test lists.
"""
