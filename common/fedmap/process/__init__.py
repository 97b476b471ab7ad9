"""What every running program needs: its command line, settings, findings, logs, metrics, listening, its end.

In: arguments, TOML files, events, errors.
Out: frozen settings, JSON lines, exit codes.
May import: files and below.
"""
