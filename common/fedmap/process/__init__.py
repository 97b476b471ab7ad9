"""What every running program needs: settings, logs, metrics, listening, its end.

In: TOML files, events, errors.
Out: frozen settings, JSON lines, exit codes.
May import: files and below.
"""
