"""The researcher’s bench: cohorts, methods, simulation, comparison, report, real federations on one machine.

In: plans and cohorts.
Out: tables, pictures, a report.
May import: fedmap; never a service.
"""
