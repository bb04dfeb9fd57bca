"""Files: written atomically, sealed by a checksum, read within bounds."""
