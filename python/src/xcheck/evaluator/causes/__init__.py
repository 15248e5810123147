"""Causes of a wrong module output: one changed thing that explains every value."""
