"""Expansions of the kernel in harmonics of the circle, the sphere and the sphere in four dimensions."""
