"""Studies: their description, execution and results. The studies of the paper are in the folder studies/."""
