"""Speculative rounds: drafters, acceptance rules, draft controller, cost model and profiles."""
