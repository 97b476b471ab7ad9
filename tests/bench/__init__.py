"""Speed and memory of the services, as ratios measured in one run. Run by `make bench`, not by pytest."""
