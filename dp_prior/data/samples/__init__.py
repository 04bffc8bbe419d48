"""Samples: the rows that form a sample, the order of training, and the batches in this order."""
