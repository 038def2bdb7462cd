"""Modules that run in a trainer's environment: they import it and the standard library."""
