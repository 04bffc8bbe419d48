"""Samples: what they are made of, the order of training, and the batches it makes."""
