"""The integrator: `simulate` and `iterate`, solvers, noise, events, and why a run stopped."""
