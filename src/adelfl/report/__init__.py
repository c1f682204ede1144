"""What people look at: tables and pictures. Reads results, changes nothing."""
