"""Sampling: filters, distributions, seeded noise and near ties."""

__all__: list[str] = []
