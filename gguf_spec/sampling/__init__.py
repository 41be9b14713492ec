"""From a row of logits to a token: filters, distributions, seeded noise and near ties."""
