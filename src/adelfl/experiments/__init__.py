"""Studies: what is compared, how it is tuned, what is claimed, what came out. Those of the paper are in studies/."""
