"""Replay buffers in zarr."""
