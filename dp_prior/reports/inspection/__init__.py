"""`dp-prior inspect`: what a data set holds, what is wrong with it, and a configuration that trains on it."""
