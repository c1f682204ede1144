"""The paper's experiments as commands: what is compared, how it is tuned, what is claimed, what came out."""
