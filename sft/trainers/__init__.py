"""Modules that run inside a trainer's environment: they import that trainer and the standard library."""
