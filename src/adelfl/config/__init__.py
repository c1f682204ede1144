"""Configuration files: their sections, checks of their values, and what is built from them."""
