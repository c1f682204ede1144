"""Networks, their layers, and engines that train them with torch."""
