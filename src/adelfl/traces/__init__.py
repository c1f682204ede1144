"""Measured devices: step times, bandwidth and availability, read from files and played back."""
