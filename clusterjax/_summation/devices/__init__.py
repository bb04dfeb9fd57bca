"""Sums over tokens that are distributed over several devices, of one process or of many."""
