"""The course of a study as a pure state machine: events and time in, decisions out.

In: events of sites, operators and the clock.
Out: the next state, and what is to be done.
May import: study.plan and below; no file, no clock, no message.
"""
