"""Web page that shows runs while they are in progress; it only reads records."""
