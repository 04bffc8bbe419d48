"""Faster CPU versions of the arithmetic of some layers, which decide when to use them. Used by no other module.

Each equals torch's own operator up to rounding. Timings stated here: one or two cores of an AMD Zen 5, torch 2.13.
"""
