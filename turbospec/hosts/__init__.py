"""Hosts: the controller in engines that others wrote, one package for each engine.

Nothing is exported: an engine loads its host through a plugin, and imports no other.
"""

__all__: list[str] = []
