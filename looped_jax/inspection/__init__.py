"""A look inside one trained run: numbers, terminal text, figures."""
