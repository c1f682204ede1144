"""Tables, figures and pages about recorded runs."""
