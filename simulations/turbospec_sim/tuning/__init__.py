"""Searching for a policy's settings."""
