"""Speculative rounds: drafters, acceptance rules, draft controller, cost model and profiles."""

__all__: list[str] = []
