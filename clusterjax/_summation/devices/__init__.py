"""Tokens on several devices, of one process or of many."""
