"""A Flower app that trains on digits before a deadline, with nodes of unequal speed."""
