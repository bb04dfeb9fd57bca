"""The kernel as a sum over harmonics: on the circle, the sphere and the sphere of four dimensions."""
