"""Speed and memory, as ratios measured in one run: bare seconds mean nothing on a shared machine."""
