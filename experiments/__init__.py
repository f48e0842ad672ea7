"""Programs that simulate private federated learning; run from the repository root."""
