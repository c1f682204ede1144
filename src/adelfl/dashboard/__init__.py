"""A page that shows runs while they go: reads records only, so a simulated and a real run look alike."""
