"""A trained network's heads as a particle model, and the network with parts removed."""
