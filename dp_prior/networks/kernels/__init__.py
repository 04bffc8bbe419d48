"""Faster CPU versions of some layers' arithmetic. The layers decide when to use them; nothing else needs to know them.

Each computes what torch's own operator computes. Timings named here: one or two cores of an AMD Zen 5, torch 2.13.
"""
