"""HTTPS for people and programs: the server, the pages of a bundle catalogue, and what they share.

The only home of the web libraries next to the prediction server. What may be seen or downloaded is decided by
the service's own catalogue, never here.
"""
