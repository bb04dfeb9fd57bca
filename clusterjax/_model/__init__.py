"""What moves, and how: spaces, schedules, masks, attention, fields, densities, layers."""
