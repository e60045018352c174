"""Engines the oracle can drive, and the protocol they share."""
