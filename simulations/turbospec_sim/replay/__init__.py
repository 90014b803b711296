"""Counterfactuals on recorded decision traces."""
