"""Sampling: filters, distributions, seeded noise and near ties."""
