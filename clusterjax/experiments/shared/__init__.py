"""What several figures share and is science: starts, exact solutions, networks and texts, controls."""
