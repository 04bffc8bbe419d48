"""Columns: where the values of one key live."""
