"""Sums of exponentials by series in spherical harmonics, with a certificate for each row."""
