"""Scientific parts that several figures share: starts, exact solutions, networks and texts, controls, layouts."""
