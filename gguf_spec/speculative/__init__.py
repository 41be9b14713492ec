"""The round: drafters, acceptance rules, draft controller, cost model and profiles."""
