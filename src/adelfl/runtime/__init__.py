"""One loop for simulated and for real runs."""
