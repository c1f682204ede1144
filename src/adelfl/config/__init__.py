"""What a user's file may say, checked where it comes in."""
