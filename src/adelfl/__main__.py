"""``python -m adelfl``."""

from adelfl.cli import main

main()
