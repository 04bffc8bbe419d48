"""One network for robots of several bodies: their joined recordings, the network, and errors of each body."""
