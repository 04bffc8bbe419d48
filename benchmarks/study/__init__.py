"""Settings compared by evidence: a screening design over Push-T, its raw scores, and the page made from them.

`python -m benchmarks.study --help`.
"""
