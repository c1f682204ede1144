"""Where torch lives: the networks, their layers, and how they are trained."""
