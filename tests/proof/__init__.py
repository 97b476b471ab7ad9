"""The proof that a refactoring changes nothing: small studies through every driver.

    make proof                              run all, compare with recorded.json; exit code 1 on a difference
    python -m tests.proof record            run all, and store what was found: only for a change that is meant
    python -m tests.proof compare lab       some of the drivers only: services, lab, flower
    python -m tests.proof --out FOLDER ...  keep what the studies wrote; by default it is a temporary folder

The drivers are the services as processes over mutual TLS, the lab with its loop and its vectorised engine,
and Flower's messages and apps in one process. It speaks to them through their commands and the files that
they write, since modules move: `tests/integrations/proof_in_hand.py` is the one module that imports the
project.

On the machine type of the record (processor, cores, torch) every digest must be equal. Elsewhere only the
rounded figures beside the digests are compared, within a tolerance. On any machine, what the loop engine, the
services and Flower have in common must be equal bit for bit.
"""
