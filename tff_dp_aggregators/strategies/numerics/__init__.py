"""Numerical algorithms that strategies use; they do not depend on strategies."""
