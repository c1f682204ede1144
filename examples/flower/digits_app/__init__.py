"""A Flower app: digits, learned by nodes of unequal speed before a deadline."""
