"""A web page that shows runs while they are written; it reads records only."""
