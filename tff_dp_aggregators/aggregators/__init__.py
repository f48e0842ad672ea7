"""The aggregators layer."""
